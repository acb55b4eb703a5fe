"""tune() and tune_network(): settings without hand work.

`tune` searches the mode, chooses an engine and lets pilot runs find its settings; `tune_network`
takes a trained network's settings from a few Hessian products.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from sghmc.core import tree
from sghmc.core.checks import check_count, check_setting
from sghmc.core.signals import whole_or_nothing
from sghmc.engine import checks
from sghmc.engine.layout import InitialPositions
from sghmc.engine.options import RunOptions, hold_fixed
from sghmc.gradients import Minibatch, with_data
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.host_potential import HostPotential, as_vector
from sghmc.posterior.mode import DENSE_LIMIT, ModeError
from sghmc.posterior.posterior import AbstractPosterior, RowPosterior, StackedPosterior
from sghmc.posterior.target import Target
from sghmc.results.until import Until
from sghmc.samplers.sghmc import SGHMC
from sghmc.tuning.budget import Budget, Costs, ModeAllowance
from sghmc.tuning.choices import GradientCandidates
from sghmc.tuning.engines import search_settings
from sghmc.tuning.exact_search import Trajectories
from sghmc.tuning.modeless_search import (
    DEFAULT_GRADIENTS,
    ModelessSearch,
    plain_gradient,
    unit_whitening,
)
from sghmc.tuning.other_modes import MIN_MASS, find_other_mode
from sghmc.tuning.pilots import Pilots
from sghmc.tuning.result import Tuned
from sghmc.tuning.whitening import Whitening, draw_starts, find_whitening
from sghmc.types import PyTree, Schedule

Engine: TypeAlias = Literal["auto", "exact", "minibatch"]
_ENGINES = get_args(Engine)

# With more, a single pilot run takes minutes and says little about any one parameter.
_MAX_PARAMETERS = 50_000
# Restart from the second mode if its Laplace share of the mass exceeds this: not by chance.
_RESTART_MASS = 0.75
_NO_PEAK = (
    "not searched, as there is no single mode to search from: the draws show only those where a "
    "chain has been"
)
# Pilots draw at least so many at once, though fewer be wanted later.
_MIN_PIECE_DRAWS = 100
# Without a mode, gradients of each chain for a step size, scales and one comparison.
_MIN_GRADIENTS_PER_CHAIN = 1_000

# Hessian products that a call of `tune_network` costs, each two or three gradients of `num_rows`.
NUM_PRODUCTS = 20
# Random vectors for the mean curvatures of leaves, each with a fourth of the rows: what other
# leaves add to a leaf's mean is noise, which more vectors reduce.
_NUM_PROBES, _PROBE_ROWS_DIVISOR = 32, 4
# ε in units of 1/√h: on a Gaussian the step is stable below 2, and its bias is ε²h/4, 3 %.
_STEP_SHARE = 0.35


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
    until: Until | None = None,
    num_samples: int = 1000,
    progress: bool = False,
) -> Tuned:
    """Choose sampler, gradient estimator and starts for a posterior.

    | argument | meaning |
    | --- | --- |
    | `init` | a point from which to search the mode |
    | `batch_size` | examples that a step may evaluate |
    | `tolerance` | largest relative error of any standard deviation |
    | `num_chains` | how many starts to return |
    | `gibbs` | updates of hyperparameters that will run, too |
    | `engine` | "exact": HMC on all data; "minibatch": SGHMC; "auto": the faster one |
    | `mode` | False: no mode is searched, for mixtures and networks; SGHMC starts from `init`, |
    | | and pilot chains find scales and step size |
    | `num_gradients` | with `mode=False`: gradients of all pilot chains, of batches or all data |
    | `until` | `Until(seconds=60)`: the best so far is returned then, or an error if there is \
none; results then depend on the machine and its load. None: work is counted, and they do not |
    | `num_samples` | draws of each chain in the later run, which decide which engine is faster |
    | `progress` | show in the terminal what is being done |

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(jnp.array([1e6, 1.0]) * theta**2) / 2)
    >>> tuned = sghmc.tune(jax.random.key(0), target, jnp.ones(2))
    >>> tuned.report.is_met
    True
    """
    checks.check_outside(key, init)
    checks.check_key(key)
    checks.check_counts(num_samples, 0, 1, num_chains)
    like = checks.check_init(init, None, 1)
    _check_arguments(
        target, like, batch_size, tolerance, engine, mode, num_gradients, num_chains, until
    )
    start = jax.tree.map(np.asarray, InitialPositions(init, None).of_chain(0))
    checks.check_functions(target, like)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    num_draws, missed, searched = num_samples * num_chains, (), ""
    budget = None if until is None else until.seconds
    with whole_or_nothing(), Budget(budget, progress) as clock:
        costs = Costs.count(target, like, num_chains)
        max_draws = max(num_samples, _MIN_PIECE_DRAWS)
        pilots = Pilots(key, target, num_chains, max_draws, clock, gibbs, costs)
        if not mode:
            whitening, reason = unit_whitening(as_vector(start), like), "no mode was asked for"
            gradient = plain_gradient(target, batch_size)
            search = ModelessSearch(pilots, whitening, gradient, tolerance, num_gradients)
            with clock.stage("pilot runs"):
                found = search.search()
        else:
            with clock.stage("mode"):
                num_gradients = Trajectories.of_size(tree.size(like)).num_steps + 1
                allowance = ModeAllowance(clock, costs, num_gradients, num_draws)
                potential = HostPotential(target, like, check=allowance.spend)
                whitening, missed, searched = _find_main_mode(potential, start, allowance, key)
                starts = draw_starts(potential, whitening, rng, num_chains)
            with clock.stage("pilot runs"):
                candidates = GradientCandidates(target, batch_size, tolerance, rng)
                search, found, reason = search_settings(
                    engine, pilots, potential, whitening, starts, candidates, num_draws
                )
    notes = found.report.notes
    if not search.whitening.is_gaussian:
        note = "no single mode was found or looked for: the coordinates are those of pilot runs"
        notes = (*notes, note)
    if budget is not None:
        notes += (
            "the budget is in seconds: another machine, or a busier one, may choose otherwise",
        )
    complaints = found.report.complaints + missed
    report = dataclasses.replace(
        found.report,
        complaints=complaints,
        notes=complaints + found.report.unsettled + notes,
        num_examples=int(target.num_examples) if isinstance(target, RowPosterior) else None,
        choice=reason,
        searched=searched,
        seconds=clock.spent,
        stages=clock.stages,
        step_cost=costs.of_steps(found.sampler.sampler, found.gradient, 1),
        budget=budget,
    )
    init = jax.tree.map(jnp.asarray, found.init)
    return dataclasses.replace(found, init=init, report=report)


def _find_main_mode(
    potential: HostPotential, start: PyTree, allowance: ModeAllowance, key: jax.Array
) -> tuple[Whitening, tuple[str, ...], str]:
    """Whiten around the mode near the start, or around another with far more of the mass.

    The second result is a complaint if chains from there would miss the other mode, the third says
    where other modes were searched.
    """
    whitening = find_whitening(potential, start, allowance.goes_on)
    if not whitening.is_gaussian:
        return whitening, (), _NO_PEAK
    if not isinstance(whitening.factor, np.ndarray) or tree.size(whitening.like) > DENSE_LIMIT:
        return whitening, (), "not searched, as the parameters are many"
    # Of its own: starts do not depend on how long walkers went.
    rng = np.random.default_rng([*np.asarray(jax.random.key_data(key)).ravel(), 1])
    other, searched = find_other_mode(
        potential, whitening.center, whitening.factor, rng, allowance.num_for_walks
    )
    if other is not None and other.mass > _RESTART_MASS:
        first = dataclasses.replace(other, position=whitening.center, mass=1 - other.mass)
        with contextlib.suppress(ModeError):  # a ridge has no mode with a share of its own
            there = whitening.params(other.position)
            whitening = find_whitening(potential, there, allowance.goes_on)
            other = first
    if other is None or other.mass < MIN_MASS:
        return whitening, (), searched
    return whitening, (other.complaint(whitening.like),), searched


def _check_arguments(
    target: Target,
    like: PyTree,
    batch_size: Any,
    tolerance: Any,
    engine: Any,
    mode: Any,
    num_gradients: int,
    num_chains: int,
    until: Any,
) -> None:
    number = int | float | np.integer | np.floating
    if isinstance(target, StackedPosterior):
        raise TypeError("tune takes one posterior at a time: tune one of the stack.")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1, but is {batch_size!r}.")
    if not (isinstance(tolerance, number) and 0 < tolerance < 1):
        raise ValueError(f"tolerance must lie between 0 and 1, but is {tolerance!r}.")
    if engine not in _ENGINES:
        raise ValueError(f"engine must be one of {', '.join(_ENGINES)}, but is {engine!r}.")
    if until is not None and until != Until(seconds=getattr(until, "seconds", None) or 1.0):
        raise ValueError(f"tune takes until=sghmc.Until(seconds=…) alone, not {until!r}.")
    if not isinstance(mode, bool):
        raise TypeError(f"mode must be True or False, but is {mode!r}.")
    check_count(num_gradients, "num_gradients")
    if not mode and engine == "exact":
        raise ValueError('mode=False is for engine="minibatch" or "auto": HMC is tuned at a mode.')
    if not mode and num_gradients < _MIN_GRADIENTS_PER_CHAIN * num_chains:
        raise ValueError(
            f"num_gradients is {num_gradients:,}: without a mode {num_chains} chains need at least "
            f"{_MIN_GRADIENTS_PER_CHAIN * num_chains:,}."
        )
    num_parameters = tree.size(like)
    if num_parameters > _MAX_PARAMETERS:
        raise ValueError(
            f"There are {num_parameters:,} parameters: the tuner takes up to {_MAX_PARAMETERS:,}. "
            f"For a network take the estimators of sghmc.estimators, or train it and take "
            f"sghmc.tune_network(…) with sghmc.Minibatch(…)."
        )


def tune_network(
    key: jax.Array,
    posterior: AbstractPosterior,
    params: PyTree,
    *,
    trainable: PyTree | None = None,
    temperature: float | Schedule = 1.0,
    momentum_decay: float = 0.1,
    num_rows: int = 64,
) -> SGHMC:
    """Choose SGHMC for a trained network of any size, without runs and without a search.

        M = mean of ∂²U/∂θ² over a leaf, and its standard error
        ε = 0.35/√h, h the largest eigenvalue of M^{−½} ∇²U M^{−½}
        C = (α/ε) M, so that all momenta decay by the same share α in a step

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `posterior` | U | with its prior, the curvature of what data do not determine |
    | `params` | | where chains will start, not far from a mode |
    | `trainable` | | which leaves will move, as for `sample`: the settings are those of that part |
    | `temperature` | τ | handed on to the sampler |
    | `momentum_decay` | α | 1 is SGLD; the smaller, the longer momenta last |
    | `num_rows` | | rows of a Hessian product: few make h too large, and ε small |

    Scales differ between the leaves of a network far more than inside one. With one mass a leaf the
    sampler's state is that of SGD with momentum, parameters and velocities.

    These settings make a run stable, and its momenta nearly as warm as they should be. They promise
    nothing of how long it takes, nor of gradient noise: see `samples.health()`.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> posterior = sghmc.Posterior(
    ...     lambda theta, x: -0.5 * x * (4 * jnp.sum(theta["a"]**2) + 100 * theta["b"] ** 2),
    ...     lambda theta: -0.5 * jnp.sum(theta["a"]**2), jnp.ones(50),
    ... )
    >>> start = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    >>> sampler = sghmc.tune_network(jax.random.key(0), posterior, start)
    >>> {name: round(mass) for name, mass in sampler.mass.items()}, round(sampler.step_size, 2)
    ({'a': 201, 'b': 5000}, 0.35)
    """
    checks.check_key(key)
    check_count(num_rows, "num_rows")
    check_setting(temperature, "temperature")
    if not 0 < momentum_decay <= 1:
        raise ValueError(f"momentum_decay must lie in (0, 1], but is {momentum_decay!r}.")
    target = posterior
    if trainable is not None:
        target, params, _ = hold_fixed(posterior, params, trainable, RunOptions())
    target = with_data(target, Minibatch(num_rows))
    params = jax.tree.map(jnp.asarray, params)
    leaves_key, step_key = jax.random.split(key)
    mass = jax.tree.map(float, _mean_curvatures(leaves_key, target, params, num_rows))
    for path, curvature in jax.tree.leaves_with_path(mass):
        if not (math.isfinite(curvature) and curvature > 0):
            raise ValueError(
                f"The curvature of the potential in params{jax.tree_util.keystr(path)} is "
                f"{curvature:g} on average: give this leaf a proper prior, train it first, or set "
                f"mass and step size by hand."
            )
    curvature = _largest_curvature(step_key, target, params, mass, num_rows)
    step_size = _STEP_SHARE / math.sqrt(curvature)
    friction = jax.tree.map(lambda leaf_mass: momentum_decay / step_size * leaf_mass, mass)
    return SGHMC(step_size, friction, mass, temperature=temperature)


@eqx.filter_jit
def _mean_curvatures(
    key: jax.Array, target: AbstractPosterior, params: PyTree, num_rows: int
) -> PyTree:
    """Estimate tr(∇²U)/size of each leaf's block by Hutchinson's method, plus its standard error.

    The likelihood's part counts only if it is positive: far from a mode it need not be. The error
    is added because what a large leaf adds to a small one's estimate may hide all of it. A mass
    that is too light makes the step of all leaves short; one too heavy slows its own leaf alone.
    """
    prior = jax.grad(lambda params: -jnp.asarray(target.log_prior_at(params), jnp.float32))

    def probe(key: jax.Array) -> tuple[PyTree, PyTree]:
        rows_key, vector_key = jax.random.split(key)
        vector = _random_like(jax.random.rademacher, vector_key, params)
        likelihood = _likelihood_gradient(target, rows_key, max(1, num_rows // _PROBE_ROWS_DIVISOR))

        def leaf_means(gradient: Callable[[PyTree], PyTree]) -> PyTree:
            product = jax.jvp(gradient, (params,), (vector,))[1]
            return jax.tree.map(lambda v, hv: jnp.mean(v * hv, dtype=jnp.float32), vector, product)

        return leaf_means(likelihood), leaf_means(prior)

    def upper_mean(data: Float[Array, " probe"], prior: Float[Array, " probe"]) -> Float[Array, ""]:
        error = jnp.std(data, ddof=1) / math.sqrt(_NUM_PROBES)
        return jnp.maximum(jnp.mean(data), 0) + error + jnp.mean(prior)

    return jax.tree.map(upper_mean, *lax.map(probe, jax.random.split(key, _NUM_PROBES)))


@eqx.filter_jit
def _largest_curvature(
    key: jax.Array, target: AbstractPosterior, params: PyTree, mass: PyTree, num_rows: int
) -> Float[Array, ""]:
    """Return |h| of the stiffest direction of M^{−½} ∇²U M^{−½}, by power iteration."""
    rows_key, vector_key = jax.random.split(key)
    likelihood = _likelihood_gradient(target, rows_key, num_rows)
    prior = jax.grad(lambda params: -jnp.asarray(target.log_prior_at(params), jnp.float32))

    def whitened(vector: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, leaf_mass: leaf / jnp.sqrt(leaf_mass), vector, mass)

    def gradient(params: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, likelihood(params), prior(params))

    def length(vector: PyTree) -> jax.Array:
        squares = [jnp.sum(jnp.square(leaf), dtype=jnp.float32) for leaf in jax.tree.leaves(vector)]
        return jnp.sqrt(jnp.sum(jnp.stack(squares)))

    def multiply(_: jax.Array, carry: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
        vector, norm = carry
        vector = jax.tree.map(lambda leaf: (leaf / norm).astype(leaf.dtype), vector)
        image = whitened(jax.jvp(gradient, (params,), (whitened(vector),))[1])
        return image, length(image)

    start = _random_like(jax.random.normal, vector_key, params)
    num_products = NUM_PRODUCTS - _NUM_PROBES // _PROBE_ROWS_DIVISOR
    return lax.fori_loop(0, num_products, multiply, (start, length(start)))[1]


def _likelihood_gradient(
    target: AbstractPosterior, key: jax.Array, num_rows: int
) -> Callable[[PyTree], PyTree]:
    """Return θ ↦ −(N/n) Σ ∇log p(x | θ) over some rows."""
    rows = target.rows(jax.random.randint(key, (num_rows,), 0, target.num_examples))
    scale = target.num_examples / num_rows

    def potential(params: PyTree) -> jax.Array:
        return -scale * jnp.sum(target.log_likelihoods(params, rows))

    return jax.grad(potential)


def _random_like(draw: Callable[..., jax.Array], key: jax.Array, params: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [draw(own, leaf.shape, leaf.dtype) for own, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, drawn)
