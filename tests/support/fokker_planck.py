"""Which density a sampler leaves alone as its step size falls, read off the step that runs.

For steps that are not affine. The mean and the covariance of a step, divided by ε and extrapolated
to ε → 0, are the drift b and twice the diffusion D of the stochastic differential equation that the
sampler follows; a density ρ is stationary if its current has no divergence:

    ∇·(ρ f) = 0,  f = b − ∇·D − D ∇log ρ
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import sghmc

_STEP_SIZES = 2e-3 / 2 ** np.arange(3)
_EXTRAPOLATION = np.array([1 / 3, -2, 8 / 3])
"""Weights of ε, ε/2 and ε/4 that leave neither a term in ε nor one in ε²."""


_NUM_POINTS = 6


class _Parts(NamedTuple):
    """Kernels and gradient noise at each of the step sizes: their arrays, stacked, and the rest."""

    arrays: Any
    rest: Any


def judge_stationary(
    make: Callable,
    target: sghmc.Potential,
    size: int,
    log_density: Callable,
    heating: Any = 0.0,
):
    """The step of `make(ε)` leaves exp(log_density(state)) alone, at every one of some states.

    The target has `size` parameters. A state's velocity is M⁻¹r here, in no unit of the step size.
    `heating` is εV, held while ε falls, so that gradient noise has a limit.
    """
    residual = relative_residual(make, target, size, log_density, heating)
    assert np.max(np.abs(residual)) < 1e-6, residual


def relative_residual(make, target, size, log_density, heating: Any = 0.0) -> np.ndarray:
    """∇·(ρf)/ρ in units of |b||∇log ρ|."""
    with jax.enable_x64(True):
        like = jnp.zeros(size)
        pairs = [
            (make(e).prepare(like), sghmc.NoisyGradient(heating / e).prepare(target, like))
            for e in map(float, _STEP_SIZES)
        ]
        arrays, rest = zip(*(eqx.partition(pair, eqx.is_array) for pair in pairs), strict=True)
        parts = _Parts(jax.tree.map(lambda *x: jnp.stack(x), *arrays), rest[0])
        start, unravel = ravel_pytree(pairs[0][0].init([jnp.zeros(size)], like))
        points = np.random.default_rng(0).normal(size=(_NUM_POINTS, start.size))
        run = _residual(parts, target, like, unravel, lambda z: log_density(unravel(z)))
        quickly_compiled = {"xla_backend_optimization_level": 0}
        run = jax.jit(jax.vmap(run), compiler_options=quickly_compiled)
        return np.asarray(run(jnp.asarray(points)))


def _residual(parts: _Parts, target, like, unravel, density) -> Callable:
    key = jnp.zeros(2, jnp.uint32)

    def moments(arrays, epsilon, z):
        """Mean and half the mean square of a step, over ε: exact for what is cubic in normals."""
        kernel, estimator = eqx.combine(arrays, parts.rest)
        unit = getattr(kernel, "unit", 1.0)
        normals, unravel_normals = ravel_pytree(
            (kernel.draw(key, 0, 1, like), estimator.draw(key, 0, 1, kernel.num_gradients, like))
        )

        def move(n):
            own, of_gradient = unravel_normals(n)
            state = _in_unit(unravel(z), unit)
            end, _ = kernel.step(0, own, state, estimator.oracle(target, of_gradient))
            return ravel_pytree(_in_unit(end, 1 / unit))[0] - z

        corners = jnp.sqrt(1.0 * normals.size) * jnp.eye(normals.size)
        moves = jax.vmap(move)(jnp.concatenate([corners, -corners]))
        return jnp.mean(moves, 0) / epsilon, moves.T @ moves / (2 * epsilon * len(moves))

    def limit(z):
        each = jax.vmap(lambda arrays, e: moments(arrays, e, z))
        return jax.tree.map(
            lambda values: jnp.tensordot(jnp.asarray(_EXTRAPOLATION), values, 1),
            each(parts.arrays, jnp.asarray(_STEP_SIZES)),
        )

    def current(z):
        def diffusion(z):
            drift, diffusion = limit(z)
            return diffusion, (drift, diffusion)

        slopes, (drift, matrix) = jax.jacfwd(diffusion, has_aux=True)(z)
        flow = drift - jnp.trace(slopes, axis1=1, axis2=2) - matrix @ jax.grad(density)(z)
        return flow, (flow, drift)

    def residual(z):
        slopes, (flow, drift) = jax.jacfwd(current, has_aux=True)(z)
        gradient = jax.grad(density)(z)
        scale = jnp.linalg.norm(gradient) * jnp.linalg.norm(drift)
        return (jnp.trace(slopes) + flow @ gradient) / scale

    return residual


def _in_unit(state, unit):
    """The state with its velocity in another unit; a position alone has none."""
    if not hasattr(state, "velocity"):
        return state
    return state._replace(velocity=jax.tree.map(lambda v: unit * v, state.velocity))
