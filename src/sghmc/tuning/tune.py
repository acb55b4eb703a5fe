"""tune(): settings without hand work: engine, estimator, whitening, step size for a posterior."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from sghmc.core import tree
from sghmc.core.checking import check_count
from sghmc.engine import checks
from sghmc.engine.starts import Start
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.posterior.stacked import StackedPosterior
from sghmc.posterior.surface import Surface, as_vector
from sghmc.posterior.target import Target
from sghmc.tuning.budget import DEFAULT_BUDGET, Budget
from sghmc.tuning.choice import ENGINES, Engine, check_pilots, choose_engine
from sghmc.tuning.estimators import Estimators
from sghmc.tuning.exact import Exact
from sghmc.tuning.minibatch import Batches
from sghmc.tuning.modeless import DEFAULT_GRADIENTS, Modeless, blank_region, plain_gradient
from sghmc.tuning.peaks import LEAST_SHARE, other_peak
from sghmc.tuning.pilot import Pilots
from sghmc.tuning.region import Region, draw_starts, find_region
from sghmc.tuning.report import Outcome, Tuned, tuned
from sghmc.types import PyTree


def tune(
    key: jax.Array,
    target: Target,
    init: PyTree,
    *,
    batch_size: int = 500,
    tolerance: float = 0.05,
    num_chains: int = 4,
    gibbs: Gibbs | None = None,
    engine: Engine = "auto",
    mode: bool = True,
    num_gradients: int = DEFAULT_GRADIENTS,
    budget: float = DEFAULT_BUDGET,
    num_samples: int = 1000,
    progress: bool = False,
) -> Tuned:
    """Choose sampler, gradient estimator and starts for a posterior.

    | argument | meaning |
    | --- | --- |
    | `init` | a point to search the mode from |
    | `batch_size` | examples a step may look at |
    | `tolerance` | largest relative error of any standard deviation |
    | `num_chains` | how many starts to return |
    | `gibbs` | updates of hyperparameters that will run too |
    | `engine` | "exact": HMC on all data; "minibatch": SGHMC; "auto": what will be quicker |
    | `mode` | False: no mode is searched, for mixtures and networks; SGHMC from `init`, whose |
    | | scales and step size pilot chains find |
    | `num_gradients` | with `mode=False`: what these chains may take, of batches or all data |
    | `budget` | seconds: then what there is is returned, or an error says what is missing |
    | `num_samples` | draws of each chain that will be wanted: they decide what is quicker |
    | `progress` | show what is being done |

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(jnp.array([1e6, 1.0]) * theta**2) / 2)
    >>> tuned = sghmc.tune(jax.random.key(0), target, jnp.ones(2))
    >>> tuned.report.is_met
    True
    """
    checks.check_outside(key, init)
    checks.check_key(key)
    _check(target, batch_size, tolerance, engine, budget)
    _check_modeless(mode, num_gradients, num_chains, engine)
    checks.check_counts(num_samples, 0, 1, num_chains)
    like = checks.check_init(init, None, 1)
    start = jax.tree.map(np.asarray, Start(init, None).of_chain(0))
    checks.check_functions(target, like)
    _check_size(tree.size(like))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    room = max(num_samples, _LEAST_PIECE)
    with Budget(budget, progress) as clock:
        if not mode:
            pilots = Pilots(key, target, num_chains, room, clock, gibbs)
            region = blank_region(as_vector(start), like)
            gradient = plain_gradient(target, batch_size)
            with clock.stage("pilot runs"):
                outcome = Modeless(pilots, region, gradient, tolerance, num_gradients).search()
            return _reported(outcome, target, tolerance, "no mode was asked for", clock)
        with clock.stage("mode"):
            surface = Surface(target, like, check=clock.check)
            region, faults = _main_region(surface, start, lambda: clock.spent < budget / 4)
            places = draw_starts(surface, region, rng, num_chains)
        chosen = choose_engine(
            engine,
            surface,
            region,
            batch_size=batch_size,
            num_draws=num_samples * num_chains,
            num_chains=num_chains,
            gibbs=gibbs,
        )
        pilots = Pilots(key, target, num_chains, room, clock, gibbs)
        with clock.stage("pilot runs"):
            if chosen.engine == "exact":
                check_pilots(surface, region, clock)
                outcome = Exact(
                    pilots, region, places, tolerance, num_samples * num_chains
                ).search()
            else:
                estimators = Estimators(target, batch_size, tolerance, rng)
                outcome = Batches(pilots, surface, region, places, estimators).search()
    outcome.faults.extend(faults)
    return _reported(outcome, target, tolerance, chosen.reason, clock)


def _main_region(
    surface: Surface, start: PyTree, goes_on: Callable[[], bool]
) -> tuple[Region, list[str]]:
    """Around the mode near the start, or around another with far more of the posterior.

    And what there is to say where chains would miss one of them.
    """
    region = find_region(surface, start, goes_on)
    other = None
    if region.is_gaussian and region.is_dense:
        other = other_peak(surface, region.center, region.factor)
    if other is None:
        return region, []
    if other.share > _FAR_MORE:
        old = dataclasses.replace(other, place=region.center, share=1 - other.share)
        region, other = find_region(surface, region.params(other.place), goes_on), old
    return region, [other.told(region.like)] if other.share >= LEAST_SHARE else []


def _reported(
    outcome: Outcome, target: Target, tolerance: float, choice: str, clock: Budget
) -> Tuned:
    return tuned(
        outcome,
        num_examples=int(target.num_examples) if isinstance(target, RowPosterior) else None,
        tolerance=tolerance,
        choice=choice,
        seconds=clock.spent,
        stages=clock.stages,
    )


_MOST_PARAMETERS = 50_000
"""Beyond that a single pilot run takes minutes, and says little about any one parameter."""
_FAR_MORE = 0.75
"""Of two modes: not by chance the heavier one."""
_LEAST_PIECE = 100
"""Draws that pilots make at once, though fewer be wanted later."""


def _check_size(num_parameters: int) -> None:
    if num_parameters > _MOST_PARAMETERS:
        raise ValueError(
            f"There are {num_parameters:,} parameters: the tuner takes up to {_MOST_PARAMETERS:,}. "
            f"For a network take the estimators of sghmc.estimators, or train it and take "
            f"sghmc.tune_network(…) with sghmc.Minibatch(…)."
        )


_NUMBER = int | float | np.integer | np.floating


def _check(target, batch_size, tolerance, engine, budget) -> None:
    if isinstance(target, StackedPosterior):
        raise TypeError("tune takes one posterior at a time: tune one of the stack.")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1, but is {batch_size!r}.")
    if not (isinstance(tolerance, _NUMBER) and 0 < tolerance < 1):
        raise ValueError(f"tolerance must lie between 0 and 1, but is {tolerance!r}.")
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, but is {engine!r}.")
    if not (isinstance(budget, _NUMBER) and budget > 0):
        raise ValueError(
            f"budget must be a number of seconds above 0 (math.inf: no end), but is {budget!r}."
        )


_LEAST_GRADIENTS = 1_000
"""Of each chain without a mode: a step size, scales and one comparison."""


def _check_modeless(mode, num_gradients, num_chains, engine) -> None:
    if not isinstance(mode, bool):
        raise TypeError(f"mode must be True or False, but is {mode!r}.")
    check_count(num_gradients, "num_gradients")
    if not mode and engine == "exact":
        raise ValueError('mode=False is for engine="minibatch" or "auto": HMC is tuned at a mode.')
    if not mode and num_gradients < _LEAST_GRADIENTS * num_chains:
        raise ValueError(
            f"num_gradients is {num_gradients:,}: without a mode {num_chains} chains need at least "
            f"{_LEAST_GRADIENTS * num_chains:,}."
        )
