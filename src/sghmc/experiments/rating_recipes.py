"""How each row of Table 1 is run: model, sampler, and what happens at which step."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.experiments import methods
from sghmc.experiments.methods import OPTIMIZERS, MethodSettings
from sghmc.experiments.rating_folds import Problem, TestSets
from sghmc.experiments.runs import draw
from sghmc.gradients.minibatch import Minibatch
from sghmc.models.factor_gibbs import SIDES
from sghmc.models.factorization import FactorizationModel
from sghmc.posterior.stacked import StackedPosterior
from sghmc.results.samples import Samples
from sghmc.samplers.base import Sampler
from sghmc.samplers.sghmc import SGHMC

_RATE_A_RATING = 1e-10
"""Of our own recipe, until masses adapt: one learning rate for all rows, this times the batch size,
so that the factors' scales can settle."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What happens when, in steps; the first `num_quiet` are without noise, or without adapted
    masses where those are adapted."""

    batch_size: int
    num_steps: int
    num_burnin: int
    average_every: int
    gibbs_every: int
    num_quiet: int


class Recipe(NamedTuple):
    model: FactorizationModel
    sampler: Sampler
    schedule: Schedule
    is_adapted: bool
    """Whether masses follow the rows' curvature in burn-in."""


def papers(
    name: str, problem: Problem, rank: int, settings: MethodSettings, schedule: Schedule
) -> Recipe:
    """One of the paper's four methods."""
    sampler = settings.sampler(name, schedule.num_quiet)
    return Recipe(problem.model(rank), sampler, schedule, is_adapted=False)


def ours(problem: Problem, rank: int, step_size: float, decay: float, schedule: Schedule) -> Recipe:
    """SGHMC with a mass for each row, and priors with means."""
    rate = _RATE_A_RATING * schedule.batch_size
    sampler = SGHMC(step_size, friction=decay * step_size / rate, mass=step_size**2 / rate)
    return Recipe(problem.model(rank, prior="dimension"), sampler, schedule, is_adapted=True)


def sample_folds(
    recipe: Recipe, name: str, problem: Problem, regularizer: float, key, progress
) -> Samples:
    """All folds of one method, a fold a chain. `regularizer` is that of the optimizers."""
    model, schedule, num_folds = recipe.model, recipe.schedule, len(problem.splits)
    tests, posterior = TestSets.of(model, problem), problem.posterior(model)
    options: dict[str, Any] = methods.kept(
        name, tests.score_draw, tests.averages(), tests.score_average
    )
    if name in OPTIMIZERS:
        posterior = _regularized(posterior, regularizer)
    else:
        # Ours updates precisions from the first step on: its masses need them.
        start = 0 if recipe.is_adapted else schedule.num_quiet
        options["gibbs"] = model.gibbs(schedule.gibbs_every, start)
    if recipe.is_adapted:
        counts = problem.counts()
        options["adapt"] = model.adapt(
            lambda hyper: {side: counts[side][hyper["fold"]] for side in SIDES},
            schedule.gibbs_every,
            until=schedule.num_burnin,
            start=schedule.num_quiet,
        )
    rounds = schedule.num_burnin // schedule.average_every
    of_starts, of_run = (jax.random.fold_in(key, i) for i in range(2))
    return draw(
        of_run,
        posterior,
        recipe.sampler,
        jax.vmap(model.init)(jax.random.split(of_starts, num_folds)),
        init_axis=0,
        posterior_axis=0,
        num_chains=num_folds,
        gradient=Minibatch(schedule.batch_size, replacement="epochs"),
        thinning=schedule.average_every,
        num_burnin=rounds,
        num_samples=schedule.num_steps // schedule.average_every - rounds,
        progress=progress,
        **options,
    )


def _regularized(posterior: StackedPosterior, regularizer: float) -> StackedPosterior:
    """Unit noise and one fixed precision for everything, as the optimizers have it."""
    precisions = [posterior.chains.hyper[side]["precision"] for side in SIDES]
    return eqx.tree_at(
        lambda p: [p.chains.hyper[side]["precision"] for side in SIDES],
        posterior,
        [jnp.full_like(precision, regularizer) for precision in precisions],
    )
