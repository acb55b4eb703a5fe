"""The search for settings with the engine that costs predict, or with the other if that fails."""

from typing import TypeAlias

import numpy as np

from sghmc.posterior.host_potential import HostPotential
from sghmc.posterior.posterior import RowPosterior
from sghmc.tuning.budget import BudgetError
from sghmc.tuning.choices import (
    EngineChoice,
    GradientCandidates,
    check_first_pilot,
    choose_engine,
)
from sghmc.tuning.exact_search import ExactSearch
from sghmc.tuning.minibatch_search import MinibatchSearch
from sghmc.tuning.pilots import Pilots
from sghmc.tuning.result import Tuned
from sghmc.tuning.whitening import Whitening

Search: TypeAlias = ExactSearch | MinibatchSearch


def search_settings(
    engine: str,
    pilots: Pilots,
    potential: HostPotential,
    whitening: Whitening,
    starts: np.ndarray,
    candidates: GradientCandidates,
    num_draws: int,
) -> tuple[Search, Tuned, str]:
    """Return a search that has ended, its settings, and why its engine was taken.

    If "auto" chose minibatches and pilot runs show that they fail, HMC on all data goes on from
    where they ended, as far as the budget allows. HMC needs no such deputy: with its accept step
    the run's own draws show whether they are right.
    """
    target, budget = pilots.target, pilots.budget
    choice = choose_engine(
        engine,
        target,
        whitening,
        pilots.costs,
        batch_size=candidates.batch_size,
        num_draws=num_draws,
        gibbs=pilots.gibbs,
    )
    is_open = engine == "auto" and pilots.gibbs is None and isinstance(target, RowPosterior)

    def searched(name: str, whitening: Whitening, starts: np.ndarray) -> tuple[Search, Tuned]:
        if name == "minibatch":
            search: Search = MinibatchSearch(pilots, potential, whitening, starts, candidates)
            return search, search.search()
        check_first_pilot(pilots.costs, whitening, budget)
        tolerance = candidates.tolerance
        search = ExactSearch(pilots, whitening, starts, tolerance, num_draws, slopes)
        return search, search.search()

    def slopes(points: np.ndarray) -> np.ndarray:
        return potential.evaluate(points)[1]

    try:
        search, found = searched(choice.engine, whitening, starts)
    except BudgetError:
        if not (is_open and choice.engine == "exact"):
            raise
        choice = EngineChoice("minibatch", "a first pilot run over all data exceeds the budget")
        return *searched("minibatch", whitening, starts), choice.reason
    reason = choice.reason
    if choice.engine == "minibatch" and is_open and not found.report.is_met:
        reason += "; but pilot runs of minibatches failed or did not settle"
        try:
            search, found = searched("exact", search.whitening, search.starts)
            reason += ", so exact was taken"
        except BudgetError:
            reason += ", and one of exact exceeds the budget"
    return search, found, reason
