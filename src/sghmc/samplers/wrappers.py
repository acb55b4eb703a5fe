"""Samplers around other samplers: their base classes, `Cyclical` and `Whitened`.

A wrapper forwards every member of `Sampler` and `Kernel` that it does not implement to the inner
one, and those of optional protocols. A new member belongs into the base classes here, too: a test
compares their lists.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import matrices, random, tree
from sghmc.core.checks import check_count, parse_factor, value_at
from sghmc.gradients import Oracle
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.samplers import (
    Adaptable,
    AdaptsMass,
    AdaptsStepSize,
    CachesEvaluation,
    Dynamics,
    EstimatesNoise,
    Kernel,
    NoiseRoom,
    RescalesMomenta,
    Revisable,
    Sampler,
    Traits,
    as_protocol,
    fisher_of,
)
from sghmc.types import Normals, PyTree, Step, StepInfo


class SamplerWrapper(Sampler):
    """A sampler around another; a subclass has it in the field `sampler`, and prepares a kernel."""

    sampler: eqx.AbstractVar[Sampler]

    def _around(self, sampler: Sampler) -> Self:
        """Return this wrapper around another sampler."""
        return dataclasses.replace(self, sampler=sampler)

    @property
    def name(self):
        return f"{type(self).__name__}({self.sampler.name})"

    @property
    def settings(self):
        """The settings of the sampler inside."""
        return self.sampler.settings

    def with_settings(self, **settings: Any) -> Self:
        return self._around(self.sampler.with_settings(**settings))

    @property
    def dynamics(self) -> Dynamics:
        return self.sampler.dynamics

    @property
    def schedules(self):
        return self.sampler.schedules

    @property
    def subtracts_gradient_noise(self):
        return self.sampler.subtracts_gradient_noise

    @property
    def is_affine(self):
        return self.sampler.is_affine

    def is_kept(self, steps):
        return self.sampler.is_kept(steps)

    def rescaled(self, factor):
        return self._around(self.sampler.rescaled(factor))

    def for_growth(self, factor):
        return self._around(self.sampler.for_growth(factor))

    @property
    def eager(self) -> Sampler:
        return self._around(self.sampler.eager)

    def with_center(self, center):
        return self._around(self.sampler.with_center(center))

    def pull_back_covariance(self, covariance, like):
        return self.sampler.pull_back_covariance(covariance, like)


class KernelWrapper(AdaptsMass, AdaptsStepSize, CachesEvaluation, EstimatesNoise, RescalesMomenta):
    """A kernel around another, whose state is that of the inner one.

    It forwards the optional protocols that make sense for any inner kernel; what the inner one does
    not implement is left out or, where it is needed, an error.
    """

    inner: eqx.AbstractVar[Kernel]

    def _around(self, inner: Kernel) -> Self:
        """Return this wrapper around another kernel."""
        return dataclasses.replace(self, inner=inner)

    def init(self, normals: Normals, position: PyTree) -> Any:
        return self.inner.init(normals, position)

    def step(self, t: Step, noise: Any, state: Any, oracle: Oracle) -> tuple[Any, StepInfo]:
        return self.inner.step(t, noise, state, oracle)

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Any:
        return self.inner.draw(key, first_step, num_steps, like)

    @property
    def num_gradients(self) -> int:
        return self.inner.num_gradients

    @property
    def gradient_use(self) -> Literal["start", "slope", "inside"]:
        return self.inner.gradient_use

    def position(self, state: Any) -> PyTree:
        return self.inner.position(state)

    def momentum(self, state: Any) -> PyTree | None:
        return self.inner.momentum(state)

    def draw_from(self, t: Step, state: Any) -> PyTree:
        return self.inner.draw_from(t, state)

    def mid_drift(self, t: Step, state: Any) -> PyTree:
        return self.inner.mid_drift(t, state)

    def kinetic_temperature(self, t: Step, state: Any) -> jax.Array | None:
        return self.inner.kinetic_temperature(t, state)

    def with_cached_evaluation(self, state: Any, oracle: Oracle) -> Any:
        if not isinstance(self.inner, CachesEvaluation):
            return state
        return self.inner.with_cached_evaluation(state, oracle)

    def rescale_momenta(self, t: Step, state: Any, ratio: jax.Array) -> Any:
        return as_protocol(self.inner, RescalesMomenta).rescale_momenta(t, state, ratio)

    def map_parameters(self, state: Any, shape: Callable[[PyTree], PyTree]) -> Any:
        return as_protocol(self.inner, Adaptable).map_parameters(state, shape)

    def adaptable(self, state: Any) -> Self:
        return self._around(as_protocol(self.inner, Adaptable).adaptable(state))

    def diagonal_mass(self, position: PyTree) -> PyTree:
        return as_protocol(self.inner, AdaptsMass).diagonal_mass(position)

    def with_mass(self, state: Any, mass: PyTree) -> tuple[Self, Any]:
        inner, state = as_protocol(self.inner, AdaptsMass).with_mass(state, mass)
        return self._around(inner), state

    def constant_step_size(self) -> jax.Array:
        return as_protocol(self.inner, AdaptsStepSize).constant_step_size()

    def with_step_size(self, step_size: jax.Array) -> Self:
        return self._around(as_protocol(self.inner, AdaptsStepSize).with_step_size(step_size))

    @property
    def fisher(self) -> EmpiricalFisher | None:
        return fisher_of(self.inner)

    def with_gradient_noise(
        self, t: Step, gradient_noise: jax.Array, like: PyTree
    ) -> tuple[Self, NoiseRoom]:
        inner = as_protocol(self.inner, EstimatesNoise)
        revised, room = inner.with_gradient_noise(t, gradient_noise, like)
        return self._around(revised), room

    def pull_back(self, grad: PyTree) -> PyTree:
        return self.inner.pull_back(grad) if isinstance(self.inner, Revisable) else grad


class Cyclical(SamplerWrapper):
    """A sampler whose step size falls and starts again, without noise while it is large.

        r_t = (t mod L) / L
        ε_t = ½ε (cos(π r_t) + 1),  τ_t = 0 for r_t < exploration, else τ

    | field | symbol | meaning |
    | --- | --- | --- |
    | `sampler` | | what moves, with its ε and τ: `SGHMC`, `SGLD`, `PSGLD` |
    | `cycle_length` | L | steps of a cycle |
    | `exploration` | | the share of a cycle that descends; the rest samples |

    Draws are kept in the sampling part of a cycle only, so that `num_samples` counts these; with
    `thinning=cycle_length` there is one draw a cycle, at its end.

    Law: none. Within a mode, draws approach those of `sampler` as the step size falls. Which mode
    a cycle ends in follows the basins of descent from where the last one ended, not the modes'
    weights: it finds modes, and says nothing of how much they weigh. While it explores there is no
    injected noise to subtract gradient noise from: `gradient_noise` must be 0.

    Zhang, Li, Zhang, Chen & Wilson, ICLR 2020; their exploration, too, is without noise.

    >>> import sghmc
    >>> cyclical = sghmc.Cyclical(sghmc.SGHMC(0.1, friction=1.0), cycle_length=100)
    >>> [round(float(cyclical.step_size(t)), 3) for t in (0, 50, 99, 100)]
    [0.1, 0.05, 0.0, 0.1]
    """

    traits: ClassVar[Traits] = Traits(
        "no law",
        "that of its sampler, L",
        "finding modes, not their weights",
    )

    sampler: Sampler
    cycle_length: int
    exploration: float = 0.5

    def __check_init__(self):
        is_sampler = isinstance(self.sampler, Sampler)
        if not is_sampler or not {"step_size", "temperature"} <= self.sampler.settings.keys():
            raise TypeError(
                f"Cyclical needs a sampler with a step size and a temperature, such as SGHMC(…) or "
                f"SGLD(…), not {self.sampler!r}."
            )
        if self.sampler.subtracts_gradient_noise:
            raise ValueError(
                "Cyclical explores at temperature 0, where there is no injected noise to take "
                "gradient_noise from: give its sampler gradient_noise=0."
            )
        length = self.cycle_length
        check_count(length, "cycle_length", 2)
        if not 0 <= self.exploration <= 1 - 1 / length:
            raise ValueError(
                f"exploration must be from 0 to {1 - 1 / length:g}, which leaves one step of "
                f"{length} to sample, but is {self.exploration!r}."
            )

    @property
    def is_affine(self) -> bool:
        return False

    @property
    def dynamics(self) -> Dynamics:
        own = self.sampler.dynamics
        return own._replace(step_size=self.step_size, temperature=self.temperature)

    def step_size(self, t):
        """Return ε_t, the step size at step t."""
        turn = jnp.cos(jnp.pi * (t % self.cycle_length) / self.cycle_length)
        return value_at(self.sampler.settings["step_size"], t) * (turn + 1) / 2

    def temperature(self, t):
        """Return τ_t, the temperature at step t."""
        return jnp.where(self._is_sampling(t), value_at(self.sampler.dynamics.temperature, t), 0)

    def is_kept(self, steps):
        return self._is_sampling(steps) & self.sampler.is_kept(steps)

    def _is_sampling(self, t):
        return t % self.cycle_length >= self.exploration * self.cycle_length

    def prepare(self, like: PyTree, num_steps: int = 1) -> Kernel:
        turning = self.sampler.with_settings(step_size=self.step_size, temperature=self.temperature)
        return turning.prepare(like, num_steps)


class Whitened(SamplerWrapper):
    """A sampler that moves z in place of θ = θ̂ + L z.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `sampler` | | what moves z; its mass, friction and gradient noise are those of z |
    | `center` | θ̂ | a pytree like the parameters: the mode, or the mean of a pilot run |
    | `factor` | L | a number, a diagonal pytree, any invertible (d, d) matrix or, from `tune`, a |
    | | | diagonal with a low rank, whose products take O(dk) operations |

    With L Lᵀ the posterior's covariance, every direction of z has standard deviation 1, whatever
    the scales and correlations of θ: one step size fits all. In single precision the state keeps
    its digits where θ̂ is many standard deviations away from 0.

    Law: that of `sampler` on U(θ̂ + L z), whose gradient is Lᵀ∇U and whose gradient noise is LᵀVL.

    >>> import numpy as np, sghmc
    >>> sampler = sghmc.Whitened(sghmc.SGHMC(0.25, friction=1.5), center=0.0, factor=0.01)
    >>> sampler.rescaled(0.5).sampler.step_size
    0.125
    """

    traits: ClassVar[Traits] = Traits(
        "that of its sampler",
        "θ̂, L (`tune` finds them)",
        "correlated parameters",
    )

    sampler: Sampler
    center: PyTree
    factor: PyTree

    def __check_init__(self):
        if not isinstance(self.sampler, Sampler):
            raise TypeError(f"Whitened needs a sampler such as SGHMC(…), not {self.sampler!r}.")
        for name in ("center", "factor"):
            for leaf in jax.tree.leaves(getattr(self, name)):
                if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
                    raise ValueError(f"{name} must be finite.")

    def prepare(self, like: PyTree, num_steps: int = 1) -> "WhitenedKernel":
        if jax.tree.structure(self.center) != jax.tree.structure(like) or any(
            np.shape(mine) != theirs.shape
            for mine, theirs in zip(*map(jax.tree.leaves, (self.center, like)), strict=True)
        ):
            raise ValueError(
                f"center must be a pytree like the parameters, {jax.tree.map(np.shape, like)}, but "
                f"is {jax.tree.map(np.shape, self.center)}."
            )
        factor, dtype = self.matrix(like), tree.float_type(like)
        flat = jax.tree.map(jnp.ravel, self.center)
        return WhitenedKernel(
            inner=self.sampler.prepare(like, num_steps),
            center=jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), flat, like),
            factor=matrices.finish(factor, dtype),
            transposed=matrices.finish(matrices.transpose(factor), dtype),
            inverse=matrices.finish(factor.inverse(), dtype),
        )

    def matrix(self, like: PyTree) -> matrices.Matrix:
        """Return L in double precision."""
        return parse_factor(self.factor, like, "factor")

    def with_center(self, center: PyTree) -> "Whitened":
        return dataclasses.replace(super().with_center(center), center=center)

    def pull_back_covariance(self, covariance: matrices.Matrix, like: PyTree) -> matrices.Matrix:
        """Return LᵀVL, pulled back further by the sampler inside."""
        own = matrices.congruent(self.matrix(like), covariance, tree.sizes(like))
        return self.sampler.pull_back_covariance(own, like)


class WhitenedKernel(KernelWrapper):
    """Step z with the inner kernel, whose state it has; show θ̂ + L z as the position."""

    inner: Kernel
    center: PyTree
    factor: matrices.Matrix
    transposed: matrices.Matrix
    inverse: matrices.Matrix

    def init(self, normals: Normals, position: PyTree) -> Any:
        return self.inner.init(normals, self._to_z(position))

    def step(self, t: Step, noise: Any, state: Any, oracle: Oracle) -> tuple[Any, StepInfo]:
        return self.inner.step(t, noise, state, self._in_z(oracle))

    def with_cached_evaluation(self, state: Any, oracle: Oracle) -> Any:
        return super().with_cached_evaluation(state, self._in_z(oracle))

    def _in_z(self, oracle: Oracle) -> Oracle:
        return oracle.through(self._to_position, lambda grad: self.transposed @ grad)

    def position(self, state: Any) -> PyTree:
        return self._to_position(self.inner.position(state))

    def momentum(self, state: Any) -> PyTree | None:
        """Return the momentum of θ, L⁻ᵀ times that of z."""
        of_z = self.inner.momentum(state)
        return None if of_z is None else matrices.transpose(self.inverse) @ of_z

    def draw_from(self, t: Step, state: Any) -> PyTree:
        return self._to_position(self.inner.draw_from(t, state))

    def mid_drift(self, t: Step, state: Any) -> PyTree:
        return self._to_position(self.inner.mid_drift(t, state))

    def pull_back(self, grad: PyTree) -> PyTree:
        return super().pull_back(self.transposed @ grad)

    def _to_position(self, z: PyTree) -> PyTree:
        return jax.tree.map(
            lambda mean, leaf: mean.reshape(leaf.shape) + leaf.astype(mean.dtype),
            self.center,
            self.factor @ z,
        )

    def _to_z(self, position: PyTree) -> PyTree:
        away = jax.tree.map(lambda x, center: x.ravel() - center, position, self.center)
        z = self.inverse @ away
        return jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), z, position)
