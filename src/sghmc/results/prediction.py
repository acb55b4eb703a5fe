"""What theory says of a run's settings, given noise and curvature measured where its chains are."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import theory
from sghmc.core import matrices, tree
from sghmc.core.double import double_precision, widened
from sghmc.gradients.exact import FullBatch, NoisyGradient
from sghmc.gradients.fisher import EmpiricalFisher, mean_gradient_noise
from sghmc.posterior import mode
from sghmc.posterior.base import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.results.origin import Origin
from sghmc.samplers.base import Dynamics, Sampler
from sghmc.types import PyTree

_DENSE_LIMIT = 150
"""Up to so many parameters the law of the settings is computed in all directions."""
_NUM_POINTS, _NUM_ROWS = 32, 512
"""Draws at which gradient noise is measured, and rows at each: 16,384 terms of a variance, known to
1 % where they are normal."""
_MOST_NUMBERS = 1 << 25
"""Of all gradients that are looked at together, 256 MB: networks have fewer rows and draws. Their
mean over parameters needs fewer, too."""
_LEAST_ROWS, _LEAST_POINTS = 8, 2
_MOST_PARAMETERS = 20_000_000
"""Beyond that the least would take gigabytes."""
_NUM_CURVATURE_ROWS = 20_000
"""Rows from which the curvature is estimated: to 1 % where rows' curvatures vary by their size."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What theory says of the settings: relative errors, None where not known."""

    noise_share: float | None = None
    predicted_error: float | None = None
    step_error: float = 0.0
    fault: str | None = None
    skipped: str | None = None


def predict(origin: Origin, positions: PyTree, hyper: PyTree, is_finite: np.ndarray) -> Prediction:
    """The law of the settings on a Gaussian with the curvature and noise measured at the draws."""
    if origin.sampler.dynamics.metropolis is True:
        return Prediction(0.0, 0.0)
    reason = _no_law(origin)
    if reason is not None:
        return Prediction(skipped=f"the law of the settings: {reason}")
    points = _points(origin.target, positions, is_finite)
    if isinstance(points, str):
        return Prediction(skipped=points)
    target, size = _under(origin.target, hyper), _size_of_one(points)
    with double_precision():
        noise = _noise(origin, target, points, diagonal=size > _DENSE_LIMIT)
    if isinstance(noise, str):
        return Prediction(skipped=noise)
    if size > _DENSE_LIMIT:
        return _average(origin, noise, jax.tree.map(lambda leaf: leaf[0], points))
    return _in_all_directions(origin, target, points, noise)


def _share(number: int, least: int, size: int) -> int:
    """How many vectors of `size` numbers to take, at best `number`."""
    return min(number, max(least, _MOST_NUMBERS // size))


def _size_of_one(points: PyTree) -> int:
    return tree.size(jax.tree.map(lambda leaf: leaf[0], points))


def _no_law(origin: Origin) -> str | None:
    if origin.is_adapted:
        return "they were adapted in burn-in"
    if origin.target.is_stochastic:
        return "the potential is stochastic, and has no exact curvature"
    if not origin.sampler.is_affine:
        return "they are not those of a linear step"
    return "at temperature 0 it is a point" if origin.temperature == 0 else None


def _points(target: Target, positions: PyTree, is_finite: np.ndarray) -> PyTree | str:
    """Some of the draws, as parameters in double precision with a leading axis."""
    if target.source is not None and target.source.is_sequential:
        return "the law of the settings: a stream's rows cannot be looked at again"
    chains, draws = np.nonzero(is_finite)
    if len(chains) == 0:
        return "no draw is finite"
    size = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(positions))
    if size > _MOST_PARAMETERS:
        return "the law of the settings: too many parameters"
    number = _share(_NUM_POINTS, _LEAST_POINTS, size)
    chosen = np.linspace(0, len(chains) - 1, number).astype(int)
    points = jax.tree.map(
        lambda leaf: np.asarray(leaf[chains[chosen], draws[chosen]], np.float64), positions
    )
    try:
        one = jax.tree.map(lambda leaf: leaf[0], points)
        # Not the method itself: jax compares methods it has seen, and these by all their data.
        jax.eval_shape(lambda params: target.potential(params), one)  # noqa: PLW0108
    except Exception:  # whatever a user's function raises on what is not its parameters
        return "the law of the settings: the draws kept are not the parameters"
    return points


def _under(target: Target, hyper: PyTree) -> Target:
    if hyper is None:
        return target
    return target.with_hyper(
        jax.tree.map(lambda leaf: jnp.asarray(np.mean(leaf, (0, 1)), leaf.dtype), hyper)
    )


def _noise(origin: Origin, target: Target, points: PyTree, *, diagonal: bool):
    """V of the gradient estimate, or why it is not known."""
    gradient, estimator = origin.gradient, origin.estimator
    if isinstance(gradient, NoisyGradient):
        return np.asarray(gradient.variance, np.float64)
    if isinstance(gradient, FullBatch) or not isinstance(target, AbstractPosterior):
        return np.zeros(())
    if not gradient.is_independent:
        return "gradient noise: that of shuffled passes cancels over a pass"
    if estimator.renew_every is not None:
        return "gradient noise: its center moves with the chain"
    count = int(target.num_examples)
    num_rows = _share(_NUM_ROWS, _LEAST_ROWS, _size_of_one(points))
    shape = (len(jax.tree.leaves(points)[0]), min(num_rows, 4 * count))
    rows = np.random.default_rng(0).integers(0, count, shape)
    points = jax.tree.map(jnp.asarray, points)
    rows = jnp.asarray(rows, jnp.int32)
    # In double precision, as a tuner has looked at it: so there is nothing to compile again.
    estimator = jax.tree.map(widened, estimator)
    return np.asarray(mean_gradient_noise(estimator, target, points, rows, diagonal=diagonal))


def _in_all_directions(
    origin: Origin, target: Target, points: PyTree, noise: np.ndarray
) -> Prediction:
    center = jax.tree.map(lambda leaf: jnp.asarray(leaf.mean(0), jnp.float32), points)
    curvature = mode.hessian(target, center, num_rows=_NUM_CURVATURE_ROWS)
    if not np.all(np.isfinite(curvature)) or np.linalg.eigvalsh(curvature)[0] <= 0:
        return Prediction(
            skipped="the law of the settings: at the mean of the draws there is no mode"
        )
    noise = (
        np.broadcast_to(noise, curvature.shape)
        if noise.ndim == 2
        else np.diag(np.broadcast_to(noise, len(curvature)))
    )
    sampler = _with_known_noise(origin.sampler, noise)
    try:
        with_noise = theory.stationary_law(sampler, curvature, noise)
        without = with_noise
        if np.any(noise):  # none as a matrix, too: so the same compiled program serves both
            without = theory.stationary_law(sampler, curvature, 0 * noise)
    except ValueError as error:
        return Prediction(fault=f"the settings have no law here: {error}")
    if without.effective_temperature == 0:  # all noise is that of the gradient, as in SGD
        return Prediction(skipped="the law of the settings: at temperature 0 it is a point")
    share = with_noise.effective_temperature / without.effective_temperature - 1
    return Prediction(float(share), _largest(with_noise), _largest(without))


def _largest(law: theory.Law) -> float:
    """The largest error of a standard deviation, with its sign."""
    errors = law.standard_deviation_error
    return float(errors[np.argmax(np.abs(errors))])


def _average(origin: Origin, noise: np.ndarray, like: PyTree) -> Prediction:
    """What gradient noise adds on average over the parameters, εV/(2τC) or, for SGLD, εPV/(2τ)."""
    dynamics, sizes = origin.sampler.dynamics, tree.sizes(like)
    if isinstance(dynamics.gradient_noise, EmpiricalFisher):
        return Prediction(0.0, 0.0)
    ends = np.cumsum(sizes)[:-1]
    over_params = np.split(np.broadcast_to(noise, tree.size(like)), ends)
    own = origin.sampler.pull_back_covariance(matrices.Diagonal(over_params), like)
    damping = _damping(dynamics, like)
    if damping is None or dynamics.step_size is None or callable(dynamics.step_size):
        return Prediction(
            skipped="the law of the settings: it is known of constant SGHMC and SGLD only"
        )
    if not (isinstance(own, matrices.Diagonal) and isinstance(damping, matrices.Diagonal)):
        return Prediction(skipped="the law of the settings: too many parameters")
    with np.errstate(divide="ignore"):
        heating = dynamics.step_size * own.vector(sizes) / (2 * damping.vector(sizes))
    share = np.mean(heating / origin.temperature)
    return Prediction(float(share), float(np.sqrt(1 + share) - 1))


def _damping(dynamics: Dynamics, like: PyTree) -> matrices.Matrix | None:
    """C or P⁻¹: what gradient noise is relative to; None where that is not a constant."""
    if dynamics.preconditioner is not None:
        given = dynamics.preconditioner
        return matrices.parse(given, like, "preconditioner", definite=True).inverse()
    if dynamics.friction is None or callable(dynamics.friction):
        return None
    return matrices.parse(dynamics.friction, like, "friction", definite=False)


def _with_known_noise(sampler: Sampler, noise: np.ndarray) -> Sampler:
    """The sampler with V̂ = V in place of an estimator that estimates it."""
    fisher, size = sampler.dynamics.gradient_noise, len(noise)
    if not isinstance(fisher, EmpiricalFisher):
        return sampler
    like = jax.ShapeDtypeStruct((size,), np.float64)
    own = sampler.pull_back_covariance(matrices.Dense(noise), like).dense([size]).array
    return sampler.with_settings(gradient_noise=np.diag(own.diagonal()) if fisher.diagonal else own)
