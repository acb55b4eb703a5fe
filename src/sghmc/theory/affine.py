"""A step on a Gaussian target as an affine map, by differentiating the step that runs.

`cycle` has the steps after which a sampler repeats; the rest computes their stationary law.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from sghmc.core import checks, runtime
from sghmc.core.runtime import double_precision
from sghmc.gradients import GradientEstimator, Oracle
from sghmc.gradients.noise import EmpiricalFisher, NoisyGradient
from sghmc.posterior.target import Potential
from sghmc.samplers import Kernel, Sampler
from sghmc.types import PyTree

# A step counts as affine if it ends so near to where its derivatives say.
_MAX_AFFINE_ERROR = 1e-8


@dataclasses.dataclass(frozen=True, eq=False)
class AffineMap:
    """A step z' = F z + L n: F is `transition`, L is `noise`, z = (θ, r) or θ alone.

    `view` is the matrix that takes z to the draw it gives, θ itself or half a drift earlier.
    """

    transition: np.ndarray
    noise: np.ndarray
    view: np.ndarray


def affine_map(
    sampler: Sampler,
    precision: ArrayLike,
    gradient_noise: ArrayLike = 0.0,
    *,
    t: int = 0,
    num_steps: int | None = None,
) -> AffineMap:
    """Step `t` of a run of `num_steps` (by default, up to t) as z' = F z + L n.

    z is (θ, r), with r the momentum itself, whatever units and coordinates the sampler's state has.
    The columns of L are the sampler's normals, then those of the gradient noise.
    """
    check_affine(sampler)
    sampler, precision = sampler.eager, as_matrix(precision)
    size = len(precision)
    with double_precision():
        like = jax.ShapeDtypeStruct((size,), np.float64)
        kernel = sampler.with_center(np.zeros(size)).prepare(
            like, t + 1 if num_steps is None else num_steps
        )
        estimator = NoisyGradient(np.asarray(gradient_noise)).prepare(_gaussian(precision), like)
        step = jax.tree.map(
            np.asarray, _differentiated()(kernel, estimator, precision, np.asarray(t, np.int32))
        )
    if not step.is_affine:
        raise ValueError(_not_affine(sampler))
    back = np.linalg.inv(step.units)
    return AffineMap(step.units @ step.transition @ back, step.units @ step.noise, step.view @ back)


def check_affine(sampler: Sampler) -> None:
    """Refuse samplers whose step has no such map."""
    if sampler.dynamics.metropolis:
        raise ValueError(
            "A sampler with an accept step is not affine, and its law is exact: "
            "pass metropolis=False to see the law without that step."
        )
    if not sampler.is_affine:
        raise ValueError(_not_affine(sampler))
    if isinstance(sampler.dynamics.gradient_noise, EmpiricalFisher):
        raise ValueError(
            "EmpiricalFisher has no V̂ before it runs: give gradient_noise as numbers, such as the "
            "V that you expect."
        )


class Derivatives(NamedTuple):
    """F, L and the view in the state's own units; where a step ends, and where F and L say.

    From z = 0 without noise a step ends at `offset`. `units` is the matrix that takes the state to
    (θ, r); what else it holds stays as it is.
    """

    transition: Any
    noise: Any
    offset: Any
    view: Any
    units: Any
    seen: Any
    foretold: Any

    @property
    def is_affine(self) -> bool:
        return np.allclose(self.seen, self.foretold, rtol=_MAX_AFFINE_ERROR, atol=_MAX_AFFINE_ERROR)


@functools.cache
def _differentiated() -> Any:
    return eqx.filter_jit(_differentiate, **runtime.jit_options("once"))


def _differentiate(kernel: Kernel, estimator: GradientEstimator, precision, t) -> Derivatives:
    like = jnp.zeros(len(precision), precision.dtype)
    target = _gaussian(precision)
    key = jnp.zeros(2, jnp.uint32)
    of_gradient = jax.eval_shape(lambda: estimator.draw(key, 0, 1, kernel.num_gradients, like))
    return derivatives(kernel, like, of_gradient, lambda noise: estimator.oracle(target, noise), t)


def derivatives(
    kernel: Kernel, like: PyTree, of_gradient: PyTree, oracle: Callable[[PyTree], Oracle], t
) -> Derivatives:
    """Differentiate step t; `oracle` makes an oracle of normals shaped like `of_gradient`."""
    key = jnp.zeros(2, jnp.uint32)
    # No program need draw what only its shape is wanted of.
    shapes = (jax.eval_shape(lambda: kernel.draw(key, 0, 1, like)), of_gradient)
    normals, unravel_normals = ravel_pytree(
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    )
    of_start = [jnp.zeros(leaf.size, leaf.dtype) for leaf in jax.tree.leaves(like)]
    state, unravel_state = ravel_pytree(kernel.init(of_start, like))

    def step(z, n):
        own, of_gradient = unravel_normals(n)
        return ravel_pytree(kernel.step(t, own, unravel_state(z), oracle(of_gradient))[0])[0]

    def looks(z):
        state = unravel_state(z)
        shown = ravel_pytree((kernel.position(state), kernel.momentum(state)))[0]
        return ravel_pytree(kernel.draw_from(t, state))[0], shown

    # What an affine map does to zero, to each unit vector and to a point of no special kind says
    # all of it, and whether it is one: that compiles sooner than the step's derivatives.
    z, n = (jnp.cos(jnp.arange(x.size) + 1.0) for x in (state, normals))
    columns = jnp.eye(len(z) + len(n), dtype=state.dtype)
    points = jnp.concatenate([jnp.zeros_like(columns[:1]), columns, jnp.append(z, n)[None]])
    ends = jax.vmap(step)(*jnp.split(points, [len(z)], axis=1))
    offset, seen = ends[0], ends[-1]
    transition, noise = jnp.split((ends[1:-1] - offset[None]).T, [len(z)], axis=1)
    view, shown = jax.jacfwd(looks)(jnp.zeros_like(state))
    units = jnp.eye(len(state), dtype=state.dtype).at[: len(shown)].set(shown)
    foretold = offset + transition @ z + noise @ n
    return Derivatives(transition, noise, offset, view, units, seen, foretold)


def _gaussian(precision) -> Potential:
    return Potential(lambda theta: theta @ (precision @ theta) / 2)


def as_matrix(precision: ArrayLike) -> np.ndarray:
    """A number, a diagonal or a dense matrix as a dense array."""
    array = np.asarray(precision, np.float64)
    size = 1 if array.ndim == 0 else len(array)
    like = jax.ShapeDtypeStruct((size,), np.float64)
    return checks.parse_matrix(array, like, "precision", definite=True).dense([size]).array


def _not_affine(sampler: Sampler) -> str:
    return (
        f"A step of {sampler.name} is not affine on a Gaussian target: it has no "
        f"Gaussian law to compute."
    )


# The affine steps after which a sampler repeats, and the law that they have.

# A spectral radius above 1 is rounding up to here.
LARGEST_RADIUS = 1 + 1e-9
# A term of a sum, relative to the sum, that double precision loses.
_NEGLIGIBLE_TERM = 1e-17


def held(sampler: Sampler, t: int) -> Sampler:
    """The sampler with every schedule held at its value at step t."""
    with double_precision():
        values = {n: float(np.asarray(value(t))) for n, value in sampler.schedules.items()}
    return sampler.with_settings(**values)


def cycle(sampler: Sampler, precision: np.ndarray, gradient_noise) -> list[AffineMap]:
    """The steps after which the dynamics repeat: one, or all from one resampling to the next."""
    period = sampler.dynamics.resample_every
    if period is None:
        return [affine_map(sampler, precision, gradient_noise)]
    resampling, plain = (
        affine_map(sampler, precision, gradient_noise, t=t) for t in (period, 2 * period - 1)
    )
    return [resampling] + [plain] * (period - 1)


def spectral_radius(steps: Sequence[AffineMap]) -> float:
    return float(np.max(np.abs(np.linalg.eigvals(_compose(steps).transition))))


def _compose(steps: Sequence[AffineMap]) -> AffineMap:
    """All the steps as one map."""
    whole = steps[0]
    for step in steps[1:]:
        noise = np.concatenate([step.transition @ whole.noise, step.noise], axis=1)
        whole = AffineMap(step.transition @ whole.transition, noise, step.view)
    return whole


def cycle_covariances(steps: Sequence[AffineMap]) -> list[np.ndarray]:
    """The stationary covariance before each step of the cycle."""
    covariances = [_solve_lyapunov(_compose(steps))]
    for step in steps[:-1]:
        covariances.append(propagate(step, covariances[-1]))
    return covariances


def propagate(step: AffineMap, covariance: np.ndarray) -> np.ndarray:
    """The covariance after a step."""
    return step.transition @ covariance @ step.transition.T + step.noise @ step.noise.T


def _solve_lyapunov(step: AffineMap) -> np.ndarray:
    """S = F S Fᵀ + L Lᵀ by doubling, S_{2k} = S_k + F^k S_k (F^k)ᵀ: accurate up to instability."""
    transition, covariance = step.transition, step.noise @ step.noise.T
    increment = covariance
    while np.max(np.abs(increment)) > _NEGLIGIBLE_TERM * np.max(np.abs(covariance)):
        increment = transition @ covariance @ transition.T
        covariance = covariance + increment
        transition = transition @ transition
    return covariance


def mean_lag_sum(steps: Sequence[AffineMap], covariances: Sequence[np.ndarray]) -> np.ndarray:
    """Σ_{s≥1} Cov(z_{t+s}, z_t), averaged over the steps t of the cycle.

    With R_t the sum of the transitions from t to all later times, R_t = (I + R_{t+1})F_t.
    """
    identity = np.eye(len(steps[0].transition))
    cycle, within = identity, 0 * identity
    for step in steps:
        cycle = step.transition @ cycle
        within = within + cycle
    later = within @ np.linalg.inv(identity - cycle)
    total = 0 * identity
    for step, covariance in zip(steps[::-1], covariances[::-1], strict=True):
        later = (identity + later) @ step.transition
        total = total + later @ covariance
    return total / len(steps)
