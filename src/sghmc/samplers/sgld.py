"""Stochastic gradient Langevin dynamics."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sghmc.core import matrices, pencils, random, tree
from sghmc.gradients.fisher import EmpiricalFisher
from sghmc.samplers.base import Kernel, NoiseRoom, Sampler, Traits
from sghmc.samplers.noise import (
    NoiseEstimate,
    check_gradient_noise,
    given_fisher,
    is_subtracted,
    parse_gradient_noise,
    worst_excess,
)
from sghmc.samplers.settings import array_setting, check_setting, scaled, value_at, values_over
from sghmc.types import PyTree, Schedule, StepInfo


class SGLD(Sampler):
    """Langevin dynamics with a stochastic gradient, corrected for the gradient's own noise.

        θ ← θ − ε P ∇Ũ(θ) + N(0, 2ετP − ε² P V̂ P)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | the factor before the gradient: a number or a schedule |
    | `preconditioner` | P | positive: a number, a diagonal pytree, a dense matrix |
    | `gradient_noise` | V̂ | covariance of the gradient estimate, taken off the injected noise: \
a number, a diagonal pytree, a dense matrix, or `EmpiricalFisher()`, which estimates it |
    | `temperature` | τ | samples exp(−U/τ): a number or a schedule |

    Law: on U = ½θᵀAθ with V̂ right, covariance τ(A − ½εAPA)⁻¹, so a bias of order ε.
    Stable for εPA ≺ 2. Needs 2τP⁻¹ ⪰ εV̂ throughout the schedule.

    Welling & Teh, ICML 2011. Their ε is twice ours.

    >>> import sghmc
    >>> sghmc.SGLD(0.01, gradient_noise=4.0).temperature
    1.0
    """

    traits: ClassVar[Traits] = Traits("ε", "ε", "the simplest; few numbers a chain")

    step_size: float | Schedule
    preconditioner: PyTree = 1.0
    gradient_noise: PyTree | EmpiricalFisher = 0.0
    temperature: float | Schedule = 1.0

    def __check_init__(self):
        check_setting(self.step_size, "step_size", positive=True)
        check_setting(self.temperature, "temperature")
        matrices.check(self.preconditioner, "preconditioner")
        check_gradient_noise(self.gradient_noise)
        fisher = given_fisher(self.gradient_noise)
        if fisher and fisher.raise_friction:
            raise ValueError(
                "SGLD has no friction to raise: take raise_friction=False and a smaller step_size "
                "where the gradient noise is too large, or SGHMC."
            )

    @property
    def subtracts_gradient_noise(self) -> bool:
        return is_subtracted(self.gradient_noise)

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGLDKernel":
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        preconditioner = matrices.parse(self.preconditioner, like, "preconditioner", definite=True)
        noise = parse_gradient_noise(self.gradient_noise, like)
        fisher = given_fisher(self.gradient_noise)
        if fisher and not matrices.are_diagonal(preconditioner, noise):
            preconditioner = preconditioner.dense(sizes)
        noise = matrices.product(
            matrices.product(preconditioner, noise, sizes), preconditioner, sizes
        )
        pencil = pencils.pencil(preconditioner, noise, sizes, "preconditioner")
        # In the pencil's basis 2τP ⪰ εPV̂P reads 2τ ≥ ελ.
        needed = pencil.largest * values_over(self.step_size, num_steps, "step_size")
        allowed = 2 * values_over(self.temperature, num_steps, "temperature")
        excess = worst_excess(needed, allowed)
        if excess is not None:
            brought, room = excess
            raise ValueError(
                f"gradient_noise is too large: the largest eigenvalue of εV̂P is {brought:g}, but "
                f"2τ, all the noise there is room for, is {room:g}. Take a step_size at most "
                f"{room / brought:.3g} times as large, or larger batches."
            )
        pencil = matrices.finish(pencil, dtype)
        return SGLDKernel(
            array_setting(self.step_size, dtype),
            matrices.finish(preconditioner, dtype),
            pencil,
            array_setting(self.temperature, dtype),
            None if fisher is None else NoiseEstimate(fisher, pencil),
        )

    def for_growth(self, factor: float) -> "SGLD":
        """A step size in proportion to 1/N; V̂ of a batch grows with N²."""
        noise = self.gradient_noise
        return dataclasses.replace(
            self.rescaled(1 / factor),
            gradient_noise=noise if given_fisher(noise) else scaled(noise, factor**2),
        )


class SGLDState(NamedTuple):
    position: PyTree


class SGLDKernel(Kernel):
    step_size: jax.Array | Schedule
    preconditioner: matrices.Matrix
    noise: pencils.Pencil
    temperature: jax.Array | Schedule
    estimate: NoiseEstimate | None = None

    @property
    def fisher(self):
        return None if self.estimate is None else self.estimate.fisher

    def init(self, normals, position):
        return SGLDState(position)

    def step(self, t, noise, state, oracle):
        epsilon, tau = value_at(self.step_size, t), value_at(self.temperature, t)
        potential, grad = oracle(0, state.position)
        injected = self.noise.sqrt(
            2 * epsilon * tau, epsilon**2, random.copy_of(noise, 0, state.position)
        )
        position = tree.add_scaled(state.position, -epsilon, self.preconditioner @ grad)
        return SGLDState(tree.add_scaled(position, 1, injected)), StepInfo(potential)

    def diagonal_mass(self, position):
        """The preconditioner's inverse."""
        if not isinstance(self.preconditioner, matrices.Diagonal):
            raise TypeError("A preconditioner that adapts is diagonal: give it as a number.")
        return matrices.entries(self.preconditioner.inverse(), position)

    def with_mass(self, state, mass):
        new = matrices.raveled(mass).inverse()
        assert isinstance(self.preconditioner, matrices.Diagonal)
        ratio = matrices.times(new, self.preconditioner.inverse())

        def rescaled(noise):
            return dataclasses.replace(
                noise, first=new, second=matrices.between(ratio, noise.second)
            )

        kernel = dataclasses.replace(
            self,
            preconditioner=new,
            noise=rescaled(self.noise),
            estimate=self.estimate
            and dataclasses.replace(self.estimate, noise=rescaled(self.estimate.noise)),
        )
        return kernel, state

    def reheated(self, t, state, ratio):
        return state

    def with_gradient_noise(self, t, gradient_noise, like):
        assert self.estimate is not None
        noise = matrices.from_entries(gradient_noise, tree.sizes(like))
        pencil = self.estimate.noise.with_second(matrices.between(self.preconditioner, noise))
        room = self._room(t, self.estimate.fisher.every)
        return dataclasses.replace(self, noise=pencil), NoiseRoom(pencil.largest_now(), room)

    def _room(self, t, num_steps: int) -> jax.Array:
        """The least of 2τ/ε over the next steps: in the pencil's basis, 2τP ⪰ εPV̂P."""

        def at(step):
            epsilon = value_at(self.step_size, step)
            return jnp.where(epsilon > 0, 2 * value_at(self.temperature, step) / epsilon, jnp.inf)

        return jnp.min(jax.vmap(at)(t + jnp.arange(num_steps)))
