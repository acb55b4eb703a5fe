"""Base classes of samplers with momentum and friction: settings, matrices, drift, V̂, mass."""

import dataclasses
import math
import operator
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import checks, matrices, random, tree
from sghmc.core.checks import array_setting, check_setting, scaled, value_at, values_over
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.samplers import AdaptsMass, EstimatesNoise, NoiseRoom, RescalesMomenta, Sampler
from sghmc.types import Normals, PyTree, Schedule, Step

# The gradient noise V̂, which is subtracted from the injected noise, or its estimator.

_NOISE_TOLERANCE = 1e-6
"""Relative tolerance of the check of V̂, so that rounding does not refuse the largest allowed V̂."""


class NoiseEstimate(eqx.Module):
    """An estimator of V̂ with the kernel's matrices for V̂ = 0, into which estimates are put."""

    fisher: EmpiricalFisher
    noise: matrices.Pencil
    drag: matrices.Pencil | None = None


def parse_gradient_noise(value: PyTree | EmpiricalFisher, like: PyTree) -> matrices.Matrix:
    """Return V̂, or zeros where it will be estimated during the run."""
    is_estimated = isinstance(value, EmpiricalFisher)
    if is_estimated and not value.diagonal:
        return matrices.Dense(np.zeros((tree.size(like), tree.size(like))))
    given = 0.0 if is_estimated else value
    return checks.parse_matrix(given, like, "gradient_noise", definite=False)


def worst_excess(needed: np.ndarray, allowed: np.ndarray) -> tuple[float, float] | None:
    """Return the pair (needed, allowed) of the step with the largest excess; None without any."""
    needed, allowed = np.broadcast_arrays(needed, allowed)
    worst = (needed - allowed).argmax()
    if needed[worst] <= allowed[worst] * (1 + _NOISE_TOLERANCE):
        return None
    return float(needed[worst]), float(allowed[worst])


# Samplers with friction


class FrictionSampler(Sampler):
    """The settings ε, C, M, V̂ and τ of dr = −∇U dt − CM⁻¹r dt + N(0, 2τC dt), dθ = M⁻¹r dt."""

    largest_decay: ClassVar[float] = math.inf
    """Bound on the eigenvalues of εM⁻¹C, from which on every chain diverges on every target."""

    step_size: float | Schedule
    friction: PyTree | Schedule
    mass: PyTree = 1.0
    gradient_noise: PyTree | EmpiricalFisher = 0.0
    temperature: float | Schedule = 1.0

    def __check_init__(self):
        if not callable(self.friction):
            checks.check_matrix(self.friction, "friction")
        checks.check_matrix(self.mass, "mass")
        if not isinstance(self.gradient_noise, EmpiricalFisher):
            checks.check_matrix(self.gradient_noise, "gradient_noise")
        check_setting(self.step_size, "step_size", positive=True)
        check_setting(self.temperature, "temperature")

    def for_growth(self, factor: float) -> Self:
        """Scale mass and friction with N, so that η = ε²M⁻¹ ∝ 1/N at the same decay εCM⁻¹.

        V̂ of a batch grows with N².
        """
        noise = self.gradient_noise
        is_estimated = isinstance(noise, EmpiricalFisher)
        return dataclasses.replace(
            self,
            mass=scaled(self.mass, factor),
            friction=scaled(self.friction, factor),
            gradient_noise=noise if is_estimated else scaled(noise, factor**2),
        )

    def _matrices(self, like: PyTree) -> tuple[matrices.Matrix, matrices.Matrix, matrices.Matrix]:
        """Return C (1 where it follows a schedule), M and V̂."""
        is_estimated = isinstance(self.gradient_noise, EmpiricalFisher)
        given = 1.0 if callable(self.friction) else self.friction
        friction = checks.parse_matrix(given, like, "friction", definite=is_estimated)
        mass = checks.parse_matrix(self.mass, like, "mass", definite=True)
        gradient_noise = parse_gradient_noise(self.gradient_noise, like)
        has_dense = any(isinstance(m, matrices.Dense) for m in (friction, mass, gradient_noise))
        if is_estimated and has_dense:
            # A dense V̂ may raise the friction to a dense matrix; shapes cannot change in a run.
            friction = friction.dense(tree.sizes(like))
        return friction, mass, gradient_noise

    def _prepared(self, like: PyTree, num_steps: int) -> dict[str, Any]:
        """Check the settings and return the fields of a `FrictionKernel`."""
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        friction, mass, gradient_noise = self._matrices(like)
        is_scheduled, given = callable(self.friction), self.gradient_noise
        step_sizes = values_over(self.step_size, num_steps, "step_size")
        decays = step_sizes * (
            values_over(self.friction, num_steps, "friction") if is_scheduled else 1.0
        )
        unit = float(step_sizes.max())
        drag = matrices.pencil(mass, friction, sizes, "mass")
        noise = matrices.pencil(
            friction,
            gradient_noise,
            sizes,
            "friction",
            outer=matrices.scaled(mass.inverse(), unit),
        )
        decay, limit = drag.largest * decays.max(), self.largest_decay
        if decay >= limit:
            raise ValueError(
                f"The momentum decay εC/M reaches {decay:g}, but every chain diverges from "
                f"{limit:g} on, whatever the target: take a smaller step_size or friction (1 is "
                f"SGLD), or BAOAB."
            )
        _check_noise(
            noise.largest * step_sizes**2,
            2 * decays * values_over(self.temperature, num_steps, "temperature"),
        )
        noise, drag = matrices.finish(noise, dtype), matrices.finish(drag, dtype)
        return {
            "step_size": array_setting(self.step_size, dtype),
            "friction_scale": array_setting(self.friction if is_scheduled else 1.0, dtype),
            "temperature": array_setting(self.temperature, dtype),
            "unit": jnp.asarray(unit, dtype),
            "one": jnp.ones((), dtype),
            "learning_rate": matrices.finish(matrices.scaled(mass.inverse(), unit**2), dtype),
            "noise": noise,
            "drag": drag,
            "estimate": (
                NoiseEstimate(given, noise, drag) if isinstance(given, EmpiricalFisher) else None
            ),
        }


def _check_noise(needed: np.ndarray, allowed: np.ndarray) -> None:
    """Check τC ⪰ ½εV̂, times 2ε and in the basis of the pencil of friction and gradient noise."""
    excess = worst_excess(needed, allowed)
    if excess is None:
        return
    noise, limit = excess
    remedy = (
        f"Take {noise / limit:.3g} times the friction, a smaller step_size or larger batches; a "
        f"step_size schedule is judged at its largest step."
        if limit > 0 and math.isfinite(noise)
        else "Without friction or temperature nothing can be subtracted: take gradient_noise=0."
    )
    raise ValueError(
        f"gradient_noise is too large: along its worst direction the gradient's noise is "
        f"ε²V̂ = {noise:g} (relative to the friction), but the injected noise, 2ετC, is only "
        f"{limit:g}. {remedy}"
    )


class SGHMCState(NamedTuple):
    """Position and velocity; `velocity` is M⁻¹r times the largest step size, so θ moves by it."""

    position: PyTree
    velocity: PyTree


class FrictionKernel(
    AdaptsMass[SGHMCState, Normals],
    EstimatesNoise[SGHMCState, Normals],
    RescalesMomenta[SGHMCState, Normals],
):
    """The parts of which samplers with friction make their steps: kick, drift and noise.

    With u the unit (the largest step size), c_t the friction's schedule and a_t = ε_t c_t, a kick
    is v ← v − (ε_t/u) u²M⁻¹∇Ũ(θ), a drift θ ← θ + (ε_t/u) v, and the noise, in units of v,
    uM⁻¹ N(0, 2τa_t C − ε_t² V̂).
    """

    largest_decay: ClassVar[float] = math.inf

    step_size: jax.Array | Schedule
    friction_scale: jax.Array | Schedule
    temperature: jax.Array | Schedule
    unit: jax.Array
    one: jax.Array
    learning_rate: matrices.Matrix
    noise: matrices.Pencil
    drag: matrices.Pencil
    estimate: NoiseEstimate | None

    def init(self, normals: Normals, position: PyTree) -> SGHMCState:
        return SGHMCState(position, self._fresh(0, random.copy_of(normals, 0, position), 0))

    def _kicked(self, t: Step, velocity: PyTree, grad: PyTree, fraction: float = 1.0) -> PyTree:
        return tree.add_scaled(velocity, -fraction * self._share(t), self.learning_rate @ grad)

    def _injected(self, t: Step, normals: PyTree) -> PyTree:
        """Return the injected noise, uM⁻¹ N(0, 2τa_t C − ε_t² V̂)."""
        heat = 2 * value_at(self.temperature, t) * self._decay(t)
        return self.noise.sqrt(heat, value_at(self.step_size, t) ** 2, normals)

    def _drift(
        self, t: Step, position: PyTree, velocity: PyTree, fraction: float | jax.Array = 1.0
    ) -> PyTree:
        return tree.add_scaled(position, fraction * self._share(t), velocity)

    def _share(self, t: Step) -> jax.Array:
        """Return ε_t/u, which is 1 where the step size is constant."""
        # A stored 1: an accelerator would repeat the division in every step, and with a number
        # known at compile time XLA for CPUs fuses less.
        return value_at(self.step_size, t) / self.unit if callable(self.step_size) else self.one

    def _decay(self, t: Step) -> jax.Array:
        return value_at(self.step_size, t) * value_at(self.friction_scale, t)

    def _fresh(self, t: Step, normals: PyTree, half_decay: jax.Array | float) -> PyTree:
        """Draw from N(0, τ(M − ½aC)⁻¹) in the velocity's units; half_decay = 0 leaves C out."""
        scale = self.unit * jnp.sqrt(value_at(self.temperature, t))
        velocity = self.drag.inverse_sqrt(1, half_decay, normals)
        return jax.tree.map(lambda v: (scale * v).astype(v.dtype), velocity)

    def diagonal_mass(self, position: PyTree) -> PyTree:
        return matrices.entries(self._diagonals()[0].first, position)

    def with_mass(self, state: SGHMCState, mass: PyTree) -> tuple[Self, SGHMCState]:
        """Return this kernel with another diagonal mass, a pytree like the parameters.

        The friction follows, so that the momentum decay εC/M stays; the velocities are rescaled by
        √(M_old/M_new), which keeps their law.
        """
        drag, noise, learning_rate = self._diagonals()
        new = matrices.raveled(mass)
        ratio = matrices.by_entries(operator.mul, new, drag.first.inverse())

        def heavier(noise, drag):
            return {
                "noise": dataclasses.replace(
                    noise,
                    first=matrices.by_entries(operator.mul, noise.first, ratio),
                    outer=matrices.by_entries(operator.mul, noise.outer, ratio.inverse()),
                ),
                "drag": dataclasses.replace(
                    drag, first=new, second=matrices.by_entries(operator.mul, drag.second, ratio)
                ),
            }

        kernel = dataclasses.replace(
            self,
            learning_rate=matrices.by_entries(operator.mul, learning_rate, ratio.inverse()),
            estimate=self.estimate
            and dataclasses.replace(
                self.estimate, **heavier(self.estimate.noise, self.estimate.drag)
            ),
            **heavier(noise, drag),
        )
        rescaling = matrices.by_entries(lambda value: value**-0.5, ratio)
        return kernel, SGHMCState(state.position, rescaling @ state.velocity)

    def _diagonals(self):
        drag, noise, learning_rate = self.drag, self.noise, self.learning_rate
        if (
            isinstance(drag, matrices.DiagonalPencil)
            and isinstance(noise, matrices.DiagonalPencil)
            and isinstance(learning_rate, matrices.Diagonal)
        ):
            return drag, noise, learning_rate
        raise TypeError("A mass that adapts is diagonal: give mass and friction as numbers.")

    @property
    def fisher(self) -> EmpiricalFisher | None:
        return None if self.estimate is None else self.estimate.fisher

    def with_gradient_noise(
        self, t: Step, gradient_noise: jax.Array, like: PyTree
    ) -> tuple[Self, NoiseRoom]:
        assert self.estimate is not None
        assert self.estimate.drag is not None
        room, decay = self._limits_ahead(t, self.estimate.fisher.every)
        noise = self.estimate.noise.with_second(
            matrices.from_entries(gradient_noise, tree.sizes(like))
        )
        if not self.estimate.fisher.raise_friction:
            return dataclasses.replace(self, noise=noise), NoiseRoom(noise.largest_now(), room)
        noise = noise.raised(room)
        drag = self.estimate.drag.with_second(noise.first)
        limit = jnp.full_like(decay, self.largest_decay)
        return self._raised(noise, drag), NoiseRoom(drag.largest_now() * decay, limit)

    def _raised(self, noise: matrices.Pencil, drag: matrices.Pencil) -> Self:
        """Return this kernel with another friction."""
        return dataclasses.replace(self, noise=noise, drag=drag)

    def _limits_ahead(self, t: Step, num_steps: int) -> tuple[jax.Array, jax.Array]:
        """Return the smallest 2τa/ε², which bounds V̂/C, and the largest a of the next steps."""

        def at(step):
            epsilon, decay = value_at(self.step_size, step), self._decay(step)
            room = 2 * value_at(self.temperature, step) * decay / epsilon**2
            return jnp.where(epsilon > 0, room, jnp.inf), decay

        rooms, decays = jax.vmap(at)(t + jnp.arange(num_steps))
        return jnp.min(rooms), jnp.max(decays)

    def momentum(self, state: SGHMCState) -> PyTree:
        return jax.tree.map(lambda r: r / self.unit, self.drag.first @ state.velocity)

    def mid_drift(self, t: Step, state: SGHMCState) -> PyTree:
        return self._drift(t, state.position, state.velocity, -0.5)

    def rescale_momenta(self, t: Step, state: SGHMCState, ratio: jax.Array) -> SGHMCState:
        """Rescale half a drift back, where position and momentum are independent, then drift on."""
        factor = jnp.sqrt(ratio)
        position = self._drift(t, state.position, state.velocity, (factor - 1) / 2)
        velocity = jax.tree.map(lambda v: (factor * v).astype(v.dtype), state.velocity)
        return SGHMCState(position, velocity)
