"""Isokinetic trajectories: a direction of length 1 turned by the gradient, at a constant speed.

    u ← B(b ε) u;  θ ← θ + ½ ε u;  u ← B((1 − 2b) ε) u;  θ ← θ + ½ ε u;  u ← B(b ε) u

where B(δ) turns u towards −∇U exactly, as if the gradient were constant for a time δ. With
b = 0.1932 the energy error is as small as two gradients a step allow. Energy is U + (d − 1) log of
what the turns stretch; e^{−ΔE} is the accept probability, since a fresh direction makes the
trajectory's map and its reverse equally likely. Rejections make the law exact, whatever the step.

Without the accept step such chains find the typical set much faster than Hamiltonian ones: speed
does not depend on the depth of the potential. The step then comes from the energy error, as its
variance a dimension (of order ε⁶).

Ver Steeg & Galstyan 2021 (isokinetic dynamics), Robnik et al. 2023 (MCLMC), Robnik et al. 2025
(the accept step, MAMS).

`sghmc.MicrocanonicalHMC` replaces this file. The regressor needs from it, so that one compiled
program serves its burn-in and its draws:
- `MicrocanonicalHMC(step_size, num_steps, metropolis=True, jitter=0.0)`; `num_steps` compiled in;
- a kernel whose `step_size` and `metropolis` are arrays that an `Adaptation` may change, each chain
  its own (`with_step_size`, `with_metropolis`): no accept step in exploration;
- a direction that is kept between trajectories and turned a little where nothing is accepted or
  rejected, and drawn anew where it is;
- the mean squared energy error of the last trajectory's steps in the state (`energy_error`), from
  which `sghmc.AdaptMicrocanonical` (adapt/microcanonical.py, which area `estimators` writes) sets
  the step; NaN or infinite errors count as 1e8 there, and such a trajectory is not taken.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_OUTER = 0.1931833275037836
_LARGEST_CHANGE = 0.5
"""Of the step's logarithm, in a trajectory."""
_MEMORY = 0.8
_GAIN, _GAIN_FALL = 2.0, 0.6
_LARGEST_ERROR = 1e8
_TINY = 1e-30

Gradient = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
"""Positions (chain, parameter) to potentials (chain) and their gradients."""


class Walkers(NamedTuple):
    """All chains: where they are, where they go, and how they choose their steps."""

    position: Any
    direction: Any
    potential: Any
    grad: Any
    log_step: Any
    log_step_mean: Any
    error: Any
    """Energy variance a dimension over ε⁶, summed with a fading memory; then its weight."""
    error_weight: Any


class Phase(NamedTuple):
    """What a trajectory is for; each a number.

    | field | meaning |
    | --- | --- |
    | `is_exact` | accept or reject |
    | `is_adapting` | the accept rate sets the step; else it is the mean of those tried |
    | `number` | of this trajectory in its phase |
    | `error` | wanted energy variance a dimension and step, while not exact |
    | `num_steps` | of the trajectory |
    | `accept_rate` | wanted, while adapting |
    | `jitter` | share by which exact trajectories vary their step |
    """

    is_exact: Any
    is_adapting: Any
    number: Any
    error: Any
    num_steps: Any
    accept_rate: Any
    jitter: Any


class Noise(NamedTuple):
    """What a trajectory draws: normal (chain, parameter), uniform (2, chain)."""

    normal: Any
    uniform: Any

    @classmethod
    def draw(cls, generator: np.random.Generator, count: int, shape: tuple[int, ...]) -> "Noise":
        """For so many trajectories, on the host: compiled it would take longer to compile."""
        return cls(
            generator.standard_normal((count, *shape), np.float32),
            generator.random((count, 2, shape[0]), np.float32),
        )

    def of_chains(self, group: slice) -> "Noise":
        """Of some chains, for several trajectories."""
        return Noise(self.normal[:, group], self.uniform[:, :, group])


class Passed(NamedTuple):
    """Of each chain after a trajectory."""

    position: Any
    potential: Any
    acceptance: Any


def turn(direction: jax.Array, grad: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The direction after `time` under a constant gradient, and the energy that it takes up."""
    rest = direction.shape[1] - 1
    size = jnp.linalg.norm(grad, axis=1, keepdims=True)
    down = -grad / (size + _TINY)
    along = jnp.sum(direction * down, axis=1, keepdims=True)
    delta = time[:, None] * size / rest
    zeta = jnp.exp(-delta)
    turned = down * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * direction
    turned = turned / jnp.linalg.norm(turned, axis=1, keepdims=True)
    energy = delta - jnp.log(2.0) + jnp.log(1 + along + (1 - along) * zeta**2)
    return turned, rest * energy[:, 0]


def start(noise: np.ndarray, position: jax.Array | np.ndarray, step: float) -> Walkers:
    """Chains that know nothing of the potential yet: their first trajectory must not move.

    They go where `noise` points, normal like their positions.
    """
    zeros = np.zeros(len(position), np.float32)
    log_step = np.full(len(position), math.log(step), np.float32)
    direction = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    grad = np.zeros(position.shape, np.float32)
    return Walkers(position, direction, zeros, grad, log_step, log_step, zeros, zeros)


def trajectory(
    noise: Noise, walkers: Walkers, gradient: Gradient, phase: Phase
) -> tuple[Walkers, Passed]:
    """One trajectory of every chain.

    Exact ones start in a fresh direction. The others turn a little: over a path of length √d the
    direction is forgotten.
    """
    num_chains, size = walkers.position.shape
    normal, uniform = noise
    log_step = jnp.where(
        phase.is_exact & ~phase.is_adapting, walkers.log_step_mean, walkers.log_step
    )
    path = phase.num_steps * jnp.exp(log_step)
    kick = jnp.sqrt(jnp.expm1(2 * path / size**0.5) / size)[:, None]
    fresh = _sphere(jnp.where(phase.is_exact, normal, walkers.direction + kick * normal))
    jitter = jnp.where(phase.is_exact, phase.jitter, 0.0)
    step = jnp.exp(log_step) * (1 + jitter * (2 * uniform[0] - 1))

    num_halves = 2 * phase.num_steps

    def half(i, carry):
        """Half a drift and the turns until the next: one gradient, so that it compiles once."""
        x, u, _, _, before, taken, total, squares = carry
        is_end = i % 2 == 1
        x = x + 0.5 * step[:, None] * u
        potential, grad = gradient(x)
        u, last = turn(u, grad, jnp.where(is_end, _OUTER, 1 - 2 * _OUTER) * step)
        taken = taken + last
        error = jnp.where(is_end, potential - before + taken, 0.0)
        goes_on = is_end & (i + 1 < num_halves)
        u, first = turn(u, grad, jnp.where(goes_on, _OUTER, 0.0) * step)
        taken = jnp.where(is_end, first, taken)
        before = jnp.where(is_end, potential, before)
        return x, u, potential, grad, before, taken, total + error, squares + error**2

    zeros = jnp.zeros(num_chains, step.dtype)
    u, first = turn(fresh, walkers.grad, _OUTER * step)
    begin = (walkers.position, u, walkers.potential, walkers.grad, walkers.potential, first)
    *end, _, _, total, squares = jax.lax.fori_loop(0, num_halves, half, (*begin, zeros, zeros))
    is_finite = jnp.isfinite(total) & jnp.isfinite(squares)
    acceptance = jnp.where(is_finite, jnp.exp(jnp.minimum(0.0, -total)), 0.0)
    is_taken = jnp.where(phase.is_exact, uniform[1] < acceptance, is_finite)
    x, u, potential, grad = (
        jnp.where(is_taken[:, None] if new.ndim == 2 else is_taken, new, old)
        for new, old in zip(end, (walkers.position, -fresh, *walkers[2:4]), strict=True)
    )
    error = jnp.where(is_finite, jnp.minimum(squares / phase.num_steps, _LARGEST_ERROR), jnp.inf)
    error = jnp.minimum(error, _LARGEST_ERROR) / (size * step**6)
    walkers = Walkers(x, u, potential, grad, *_steps(walkers, phase, error, acceptance))
    return walkers, Passed(x, potential, acceptance)


def _steps(walkers: Walkers, phase: Phase, error: jax.Array, acceptance: jax.Array):
    """The logarithm of the step, its mean, and the memory of energy errors, after a trajectory."""
    errors = _MEMORY * walkers.error + error
    weight = _MEMORY * walkers.error_weight + 1
    free = jnp.log(phase.error * weight / (errors + _TINY)) / 6
    old = walkers.log_step
    free = jnp.clip(free, old - _LARGEST_CHANGE, old + _LARGEST_CHANGE)
    gain = _GAIN / (phase.number + 2.0) ** _GAIN_FALL
    exact = old + jnp.where(phase.is_adapting, (acceptance - phase.accept_rate) * gain, 0.0)
    share = jnp.where(phase.is_adapting, jnp.minimum(1.0, 4 / (phase.number + 1.0)), 0.0)
    mean = walkers.log_step_mean + share * (exact - walkers.log_step_mean)
    return (
        jnp.where(phase.is_exact, exact, free),
        jnp.where(phase.is_exact, mean, free),
        errors,
        weight,
    )


def _sphere(vectors: jax.Array) -> jax.Array:
    return vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
