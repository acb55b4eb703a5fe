"""A step on a Gaussian target as an affine map, by differentiating the step that runs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from sghmc.core import matrices, xla
from sghmc.core.double import double_precision
from sghmc.gradients.base import GradientEstimator, Oracle
from sghmc.gradients.exact import NoisyGradient
from sghmc.gradients.fisher import EmpiricalFisher
from sghmc.posterior.potential import Potential
from sghmc.samplers.base import Kernel, Sampler
from sghmc.types import PyTree

_AFFINE = 1e-8
"""How near a step must end to where its derivatives say; double precision has 1e-16."""


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
        return np.allclose(self.seen, self.foretold, rtol=_AFFINE, atol=_AFFINE)


@functools.cache
def _differentiated() -> Any:
    return eqx.filter_jit(_differentiate, **xla.once_options())


def _differentiate(kernel: Kernel, estimator: GradientEstimator, precision, t) -> Derivatives:
    like = jnp.zeros(len(precision), precision.dtype)
    target = _gaussian(precision)
    key = jnp.zeros(2, jnp.uint32)
    of_gradient = jax.eval_shape(lambda: estimator.draw(key, 0, 1, kernel.num_gradients, like))
    return derivatives(kernel, like, of_gradient, lambda noise: estimator.oracle(target, noise), t)


def derivatives(
    kernel: Kernel, like: PyTree, of_gradient: PyTree, oracle: Callable[[PyTree], Oracle], t
) -> Derivatives:
    """Of step t, with an oracle that normals of the shapes `of_gradient` give."""
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
        return ravel_pytree(kernel.observed(t, state))[0], shown

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
    return matrices.parse(array, like, "precision", definite=True).dense([size]).array


def _not_affine(sampler: Sampler) -> str:
    return (
        f"A step of {sampler.name} is not affine on a Gaussian target: it has no "
        f"Gaussian law to compute."
    )
