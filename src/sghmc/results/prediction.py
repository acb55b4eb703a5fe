"""Bias that theory predicts for a run's settings, from noise and curvature measured at its draws.

`Origin` says what made the draws of a run; `predict` compares its stationary distribution on a
Gaussian with that Gaussian.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import theory
from sghmc.core import checks, matrices, tree
from sghmc.core.runtime import double_precision, widened
from sghmc.gradients import FullBatch, Gradient, GradientEstimator
from sghmc.gradients.noise import EmpiricalFisher, NoisyGradient, mean_gradient_noise
from sghmc.posterior import mode
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.samplers import Dynamics, Sampler
from sghmc.samplers.wrappers import Whitened
from sghmc.types import PyTree

# Up to this many parameters the stationary distribution is computed in all directions.
_MAX_DENSE = 150
# Draws at which gradient noise is measured, and rows at each: 16,384 terms of a variance, which is
# then known to 1 % if they are normal.
_NUM_POINTS, _NUM_ROWS = 32, 512
# Numbers in all gradients that are evaluated together, 256 MB. Networks get fewer rows and draws:
# their mean over parameters needs fewer, too.
_MAX_NUMBERS = 1 << 25
_MIN_ROWS, _MIN_POINTS = 8, 2
# Beyond this even the fewest rows and draws would take gigabytes.
_MAX_PARAMETERS = 20_000_000
# Rows from which the curvature is estimated: to 1 % if rows' curvatures vary by their own size.
_NUM_CURVATURE_ROWS = 20_000


@dataclasses.dataclass(frozen=True)
class Origin:
    """Target, sampler and gradient of a run, the temperature of its last step, and what is kept."""

    target: Target
    sampler: Sampler
    gradient: Gradient
    estimator: GradientEstimator
    temperature: float
    is_adapted: bool = False
    keeps_positions: bool = False


@dataclasses.dataclass(frozen=True)
class SavedOrigin:
    """Like `Origin`, but as strings: for runs read from disk or produced by sghmc.torch."""

    arguments: dict[str, str]
    temperature: float | None


@dataclasses.dataclass(frozen=True)
class BiasPrediction:
    """Relative errors of standard deviations by theory; None if not known.

    | field | meaning |
    | --- | --- |
    | `noise_share` | what gradient noise adds to the injected noise, relative to it |
    | `predicted_error` | largest error of a standard deviation, with its sign |
    | `step_error` | what of it remains without gradient noise |
    | `complaint` | why the settings have no stationary distribution here |
    | `skipped` | why nothing is predicted |
    """

    noise_share: float | None = None
    predicted_error: float | None = None
    step_error: float = 0.0
    complaint: str | None = None
    skipped: str | None = None


def predict(
    origin: Origin, positions: PyTree, hyper: PyTree, is_finite: np.ndarray
) -> BiasPrediction:
    """Predict the bias of a run on a Gaussian with its posterior's curvature and gradient noise."""
    if origin.sampler.dynamics.metropolis is True:
        return BiasPrediction(0.0, 0.0)
    reason = _why_unknown(origin)
    if reason is not None:
        return BiasPrediction(skipped=f"the law of the settings: {reason}")
    points = _choose_points(origin.target, positions, is_finite)
    if isinstance(points, str):
        return BiasPrediction(skipped=points)
    target, like = origin.target, jax.tree.map(lambda leaf: leaf[0], points)
    if hyper is not None:
        means = jax.tree.map(lambda leaf: jnp.asarray(np.mean(leaf, (0, 1)), leaf.dtype), hyper)
        target = target.with_hyper(means)
    is_large = tree.size(like) > _MAX_DENSE
    with double_precision():
        noise = _gradient_noise(origin, target, points, diagonal=is_large)
    if isinstance(noise, str):
        return BiasPrediction(skipped=noise)
    if is_large:
        return _average_bias(origin, noise, like)
    return _bias_by_direction(origin, target, points, noise)


def _why_unknown(origin: Origin) -> str | None:
    """Return why there is no closed form for these settings, or None."""
    if origin.is_adapted:
        return "they were adapted in burn-in"
    if origin.target.is_stochastic:
        return "the potential is stochastic, and has no exact curvature"
    if not origin.sampler.is_affine:
        return "they are not those of a linear step"
    return "at temperature 0 it is a point" if origin.temperature == 0 else None


def _choose_points(target: Target, positions: PyTree, is_finite: np.ndarray) -> PyTree | str:
    """Return some of the draws in double precision, with one leading axis, or why there are none.

    `positions` have axes (chain, draw, …).
    """
    if target.source is not None and target.source.is_sequential:
        return "the law of the settings: a stream's rows cannot be looked at again"
    chains, draws = np.nonzero(is_finite)
    if len(chains) == 0:
        return "no draw is finite"
    size = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(positions))
    if size > _MAX_PARAMETERS:
        return "the law of the settings: too many parameters"
    number = _number_that_fits(_NUM_POINTS, _MIN_POINTS, size)
    chosen = np.linspace(0, len(chains) - 1, number).astype(int)
    points = jax.tree.map(
        lambda leaf: np.asarray(leaf[chains[chosen], draws[chosen]], np.float64), positions
    )
    try:
        one = jax.tree.map(lambda leaf: leaf[0], points)
        # Not the method itself: jax compares methods it has seen, and these by all their data.
        jax.eval_shape(lambda params: target.potential(params), one)  # noqa: PLW0108
    except Exception:  # whatever a user's function raises if the draws are not its parameters
        return "the law of the settings: the draws kept are not the parameters"
    return points


def _number_that_fits(wanted: int, minimum: int, size: int) -> int:
    """Return how many vectors of `size` numbers to evaluate together."""
    return min(wanted, max(minimum, _MAX_NUMBERS // size))


def _gradient_noise(
    origin: Origin, target: Target, points: PyTree, *, diagonal: bool
) -> np.ndarray | str:
    """Return V of the gradient estimate, a matrix or a diagonal or 0, or why it is not known."""
    gradient, estimator = origin.gradient, origin.estimator
    like = jax.tree.map(lambda leaf: leaf[0], points)
    if isinstance(gradient, NoisyGradient):
        variance = checks.parse_matrix(gradient.variance, like, "variance", definite=False)
        sizes = tree.sizes(like)
        if isinstance(variance, matrices.Diagonal):
            return variance.vector(sizes)
        array = variance.dense(sizes).array
        return array.diagonal() if diagonal else array
    if isinstance(gradient, FullBatch) or not isinstance(target, AbstractPosterior):
        return np.zeros(())
    if not gradient.is_independent:
        return "gradient noise: that of shuffled passes cancels over a pass"
    if estimator.renew_every is not None:
        return "gradient noise: its center moves with the chain"
    count = int(target.num_examples)
    num_rows = min(_number_that_fits(_NUM_ROWS, _MIN_ROWS, tree.size(like)), 4 * count)
    num_points = len(jax.tree.leaves(points)[0])
    rows = np.random.default_rng(0).integers(0, count, (num_points, num_rows))
    points, rows = jax.tree.map(jnp.asarray, points), jnp.asarray(rows, jnp.int32)
    # In double precision, as the tuner measures it: so there is nothing to compile again.
    estimator = jax.tree.map(widened, estimator)
    return np.asarray(mean_gradient_noise(estimator, target, points, rows, diagonal=diagonal))


def _bias_by_direction(
    origin: Origin, target: Target, points: PyTree, noise: np.ndarray
) -> BiasPrediction:
    """Compare the stationary covariance with the inverse curvature at the mean of the draws."""
    center = jax.tree.map(lambda leaf: jnp.asarray(leaf.mean(0), jnp.float32), points)
    curvature = mode.hessian(target, center, num_rows=_NUM_CURVATURE_ROWS)
    if not np.all(np.isfinite(curvature)) or np.linalg.eigvalsh(curvature)[0] <= 0:
        return BiasPrediction(
            skipped="the law of the settings: at the mean of the draws there is no mode"
        )
    if noise.ndim < 2:
        noise = np.diag(np.broadcast_to(noise, len(curvature)))
    sampler = _with_known_noise(_with_vectors(origin.sampler, center), noise)
    try:
        with_noise = theory.stationary_law(sampler, curvature, noise)
        without = with_noise
        if np.any(noise):  # zeros in a matrix, too: so one compiled program serves both
            without = theory.stationary_law(sampler, curvature, 0 * noise)
    except ValueError as error:
        return BiasPrediction(complaint=f"the settings have no law here: {error}")
    if without.effective_temperature == 0:  # all noise is that of the gradient, as in SGD
        return BiasPrediction(skipped="the law of the settings: at temperature 0 it is a point")
    share = with_noise.effective_temperature / without.effective_temperature - 1
    largest, step_error = (
        float(errors[np.argmax(np.abs(errors))])
        for errors in (with_noise.standard_deviation_error, without.standard_deviation_error)
    )
    return BiasPrediction(float(share), largest, step_error)


def _with_vectors(sampler: Sampler, like: PyTree) -> Sampler:
    """Return the sampler with one vector in place of each setting that has the leaves of `like`."""

    def has_leaves(part: Any) -> bool:
        return jax.tree.structure(part) == jax.tree.structure(like) != jax.tree.structure(0)

    def vector(part: Any) -> Any:
        if not has_leaves(part):
            return part
        full = jax.tree.map(lambda leaf, one: np.broadcast_to(leaf, one.shape), part, like)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(full)])

    return jax.tree.map(vector, sampler, is_leaf=has_leaves)


def _with_known_noise(sampler: Sampler, noise: np.ndarray) -> Sampler:
    """Return the sampler with V̂ = V in place of an estimator of it."""
    fisher, size = sampler.dynamics.gradient_noise, len(noise)
    if not isinstance(fisher, EmpiricalFisher):
        return sampler
    like = jax.ShapeDtypeStruct((size,), np.float64)
    own = sampler.pull_back_covariance(matrices.Dense(noise), like).dense([size]).array
    return sampler.with_settings(gradient_noise=np.diag(own.diagonal()) if fisher.diagonal else own)


def _average_bias(origin: Origin, noise: np.ndarray, like: PyTree) -> BiasPrediction:
    """Predict for many parameters what gradient noise adds to temperatures on average.

    It is εV/(2τC) or, for SGLD, εPV/(2τ).
    """
    dynamics, sizes = origin.sampler.dynamics, tree.sizes(like)
    if isinstance(dynamics.gradient_noise, EmpiricalFisher):
        return BiasPrediction(0.0, 0.0)
    sampler = origin.sampler
    if isinstance(sampler, Whitened) and isinstance(sampler.factor, matrices.LowRankFactor):
        # Of LᵀVL only the mean of the diagonal counts here.
        noise, sampler = noise * sampler.factor.row_squares, sampler.sampler
    ends = np.cumsum(sizes)[:-1]
    by_leaf = np.split(np.broadcast_to(noise, tree.size(like)), ends)
    own = sampler.pull_back_covariance(matrices.Diagonal(by_leaf), like)
    damping = _damping(dynamics, like)
    if damping is None or dynamics.step_size is None or callable(dynamics.step_size):
        return BiasPrediction(
            skipped="the law of the settings: it is known of constant SGHMC and SGLD only"
        )
    if not (isinstance(own, matrices.Diagonal) and isinstance(damping, matrices.Diagonal)):
        return BiasPrediction(skipped="the law of the settings: too many parameters")
    with np.errstate(divide="ignore"):
        heating = dynamics.step_size * own.vector(sizes) / (2 * damping.vector(sizes))
    share = np.mean(heating / origin.temperature)
    return BiasPrediction(float(share), float(np.sqrt(1 + share) - 1))


def _damping(dynamics: Dynamics, like: PyTree) -> matrices.Matrix | None:
    """Return C or P⁻¹, to which gradient noise is relative; None if that is not a constant."""
    if dynamics.preconditioner is not None:
        given = dynamics.preconditioner
        return checks.parse_matrix(given, like, "preconditioner", definite=True).inverse()
    if dynamics.friction is None or callable(dynamics.friction):
        return None
    return checks.parse_matrix(dynamics.friction, like, "friction", definite=False)
