"""Stochastic gradient Langevin dynamics, plain (`SGLD`) and preconditioned as RMSprop (`PSGLD`)."""

import dataclasses
import operator
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from sghmc.core import checks, matrices, random, tree
from sghmc.core.checks import array_setting, check_setting, scaled, value_at, values_over
from sghmc.gradients import Oracle
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.samplers import (
    AdaptsMass,
    EstimatesNoise,
    Kernel,
    NoiseRoom,
    RescalesMomenta,
    Sampler,
    Traits,
)
from sghmc.samplers.friction import NoiseEstimate, parse_gradient_noise, worst_excess
from sghmc.types import Normals, PyTree, Schedule, Step, StepInfo


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
        checks.check_matrix(self.preconditioner, "preconditioner")
        if not isinstance(self.gradient_noise, EmpiricalFisher):
            checks.check_matrix(self.gradient_noise, "gradient_noise")
        elif self.gradient_noise.raise_friction:
            raise ValueError(
                "SGLD has no friction to raise: take raise_friction=False and a smaller step_size "
                "where the gradient noise is too large, or SGHMC."
            )

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGLDKernel":
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        preconditioner = checks.parse_matrix(
            self.preconditioner, like, "preconditioner", definite=True
        )
        noise = parse_gradient_noise(self.gradient_noise, like)
        is_estimated = isinstance(self.gradient_noise, EmpiricalFisher)
        if is_estimated and isinstance(noise, matrices.Dense):
            preconditioner = preconditioner.dense(sizes)
        noise = matrices.product(
            matrices.product(preconditioner, noise, sizes), preconditioner, sizes
        )
        pencil = matrices.pencil(preconditioner, noise, sizes, "preconditioner")
        # In the pencil's basis 2τP ⪰ εPV̂P reads 2τ ≥ ελ.
        needed = pencil.largest * values_over(self.step_size, num_steps, "step_size")
        allowed = 2 * values_over(self.temperature, num_steps, "temperature")
        excess = worst_excess(needed, allowed)
        if excess is not None:
            largest, limit = excess
            raise ValueError(
                f"gradient_noise is too large: the largest eigenvalue of εV̂P is {largest:g}, but "
                f"must be at most 2τ = {limit:g}. Take a step_size at most {limit / largest:.3g} "
                f"times as large, or larger batches."
            )
        pencil = matrices.finish(pencil, dtype)
        return SGLDKernel(
            array_setting(self.step_size, dtype),
            matrices.finish(preconditioner, dtype),
            pencil,
            array_setting(self.temperature, dtype),
            NoiseEstimate(self.gradient_noise, pencil) if is_estimated else None,
        )

    def for_growth(self, factor: float) -> "SGLD":
        """Scale the step size with 1/N and V̂ of a batch with N²."""
        noise = self.gradient_noise
        return dataclasses.replace(
            self.rescaled(1 / factor),
            gradient_noise=(
                noise if isinstance(noise, EmpiricalFisher) else scaled(noise, factor**2)
            ),
        )


class SGLDState(NamedTuple):
    position: PyTree


class SGLDKernel(
    AdaptsMass[SGLDState, Normals],
    EstimatesNoise[SGLDState, Normals],
    RescalesMomenta[SGLDState, Normals],
):
    step_size: jax.Array | Schedule
    preconditioner: matrices.Matrix
    noise: matrices.Pencil
    temperature: jax.Array | Schedule
    estimate: NoiseEstimate | None = None

    @property
    def fisher(self) -> EmpiricalFisher | None:
        return None if self.estimate is None else self.estimate.fisher

    def init(self, normals: Normals, position: PyTree) -> SGLDState:
        return SGLDState(position)

    def step(
        self, t: Step, noise: Normals, state: SGLDState, oracle: Oracle
    ) -> tuple[SGLDState, StepInfo]:
        epsilon, tau = value_at(self.step_size, t), value_at(self.temperature, t)
        potential, grad = oracle(0, state.position)
        injected = self.noise.sqrt(
            2 * epsilon * tau, epsilon**2, random.copy_of(noise, 0, state.position)
        )
        position = tree.add_scaled(state.position, -epsilon, self.preconditioner @ grad)
        return SGLDState(tree.add_scaled(position, 1, injected)), StepInfo(potential)

    def diagonal_mass(self, position: PyTree) -> PyTree:
        """Return the preconditioner's inverse, which acts as a mass."""
        if not isinstance(self.preconditioner, matrices.Diagonal):
            raise TypeError("A preconditioner that adapts is diagonal: give it as a number.")
        return matrices.entries(self.preconditioner.inverse(), position)

    def with_mass(self, state: SGLDState, mass: PyTree) -> tuple[Self, SGLDState]:
        new = matrices.raveled(mass).inverse()
        assert isinstance(self.preconditioner, matrices.Diagonal)
        ratio = matrices.by_entries(operator.mul, new, self.preconditioner.inverse())

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

    def rescale_momenta(self, t: Step, state: SGLDState, ratio: jax.Array) -> SGLDState:
        return state

    def with_gradient_noise(
        self, t: Step, gradient_noise: jax.Array, like: PyTree
    ) -> tuple[Self, NoiseRoom]:
        assert self.estimate is not None
        noise = matrices.from_entries(gradient_noise, tree.sizes(like))
        pencil = self.estimate.noise.with_second(matrices.between(self.preconditioner, noise))
        room = self._noise_limit(t, self.estimate.fisher.every)
        return dataclasses.replace(self, noise=pencil), NoiseRoom(pencil.largest_now(), room)

    def _noise_limit(self, t: Step, num_steps: int) -> jax.Array:
        """Return the least 2τ/ε of the next steps, the limit of V̂ (2τP ⪰ εPV̂P) in its basis."""

        def at(step):
            epsilon = value_at(self.step_size, step)
            return jnp.where(epsilon > 0, 2 * value_at(self.temperature, step) / epsilon, jnp.inf)

        return jnp.min(jax.vmap(at)(t + jnp.arange(num_steps)))


class PSGLD(Sampler):
    """SGLD preconditioned by running squares of the gradient, all products entry by entry.

        θ ← θ − ε G ∇Ũ(θ) + ετ Γ + N(0, 2ετG),  G = (λ² + s)^−½,  Γ = −½ G³ d
        s ← βs + (1 − β) ∇Ũ²,  d ← βd + (1 − β) 2∇Ũ z (∇²Ũ z),  z = ±1 at random

    G comes from earlier steps, so that it is independent of this step's batch. (The first step has
    to use its own.) Γ = ∂G/∂θ follows s through d, an unbiased estimate of ∂s/∂θ from one product
    with the Hessian.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | a number or a schedule; θ moves by about ε a step |
    | `decay` | β | how much of the old squares stays in a step; below 1 |
    | `damping` | λ | in units of the gradient of the whole potential: G is at most 1/λ |
    | `correction` | | False leaves Γ out, as the field does |
    | `temperature` | τ | samples exp(−U/τ): a number or a schedule |

    Law: for small ε at a fixed β the squares follow θ at once, G is a function of θ, and Γ makes
    exp(−U/τ) stationary, with a bias of order ε for the step and for the lag, ε/(1 − β). Without
    the correction the law is another one for every ε: where gradients are large, and G small, it
    has too much mass. A preconditioner that does not change has no such trouble: `SGLD` with
    `AdaptScale` freezes it after burn-in.

    Li, Chen, Carlson & Carin, AAAI 2016. Their ε is twice ours, λ is outside their root, their G
    sees the batch of the step, and their correction is (1 − β)Γ, which is not enough: s follows θ
    over all steps that it remembers.

    >>> import sghmc
    >>> sghmc.PSGLD(0.01).decay
    0.99
    """

    traits: ClassVar[Traits] = Traits(
        "ε, and the lag of its squares",
        "ε, λ, β",
        "scales of parameters that differ and change; one more Hessian product a step",
    )

    step_size: float | Schedule
    decay: float = 0.99
    damping: float = 1.0
    correction: bool = True
    temperature: float | Schedule = 1.0

    def __check_init__(self):
        check_setting(self.step_size, "step_size", positive=True)
        check_setting(self.temperature, "temperature")
        check_setting(self.damping, "damping", positive=True)
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be from 0 and below 1, but is {self.decay!r}.")

    @property
    def is_affine(self) -> bool:
        return False

    def prepare(self, like: PyTree, num_steps: int = 1) -> "PSGLDKernel":
        values_over(self.step_size, num_steps, "step_size")
        values_over(self.temperature, num_steps, "temperature")
        dtype = tree.float_type(like)
        return PSGLDKernel(
            array_setting(self.step_size, dtype),
            jnp.asarray(self.decay, dtype),
            jnp.asarray(self.damping, dtype),
            self.correction,
            array_setting(self.temperature, dtype),
        )


class PSGLDState(NamedTuple):
    """`squares` is s, `slopes` is d, or None without correction; in single precision at least."""

    position: PyTree
    squares: PyTree
    slopes: PyTree


class PSGLDKernel(Kernel[PSGLDState, Normals]):
    step_size: jax.Array | Schedule
    decay: jax.Array
    damping: jax.Array
    correction: bool
    temperature: jax.Array | Schedule

    @property
    def gradient_use(self) -> Literal["start", "slope", "inside"]:
        return "slope" if self.correction else "start"

    def init(self, normals: Normals, position: PyTree) -> PSGLDState:
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), position)
        return PSGLDState(position, zeros, zeros if self.correction else None)

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Normals:
        return random.normals_like(key, first_step, num_steps, like, copies=1 + self.correction)

    def step(
        self, t: Step, noise: Normals, state: PSGLDState, oracle: Oracle
    ) -> tuple[PSGLDState, StepInfo]:
        epsilon, tau = value_at(self.step_size, t), value_at(self.temperature, t)
        potential, grad, new_terms = self._evaluate(noise, state.position, oracle)
        # The first step has no earlier squares and uses its own.
        squares, slopes = jax.tree.map(
            lambda old, new: jnp.where(t == 0, new, old), (state.squares, state.slopes), new_terms
        )
        root = jax.tree.map(lambda s: (self.damping**2 + s) ** -0.5, squares)
        drift = jax.tree.map(jnp.multiply, root, grad)
        if self.correction:
            drift = jax.tree.map(lambda f, g, d: f + tau / 2 * g**3 * d, drift, root, slopes)
        normals = random.copy_of(noise, 0, state.position)
        injected = jax.tree.map(lambda g, n: jnp.sqrt(2 * epsilon * tau * g) * n, root, normals)
        position = tree.add_scaled(state.position, -epsilon, drift)
        averages = jax.tree.map(
            lambda old, new: self.decay * old + (1 - self.decay) * new, (squares, slopes), new_terms
        )
        return PSGLDState(tree.add_scaled(position, 1, injected), *averages), StepInfo(potential)

    def _evaluate(
        self, noise: Normals, position: PyTree, oracle: Oracle
    ) -> tuple[jax.Array, PyTree, tuple[PyTree, PyTree]]:
        """Return the potential, its gradient, and (∇Ũ², an estimate of ∂s/∂θ) for the averages."""

        def evaluate(position):
            return tuple(oracle(0, position))

        if not self.correction:
            potential, grad = evaluate(position)
            return potential, grad, (jax.tree.map(lambda g: _wide(g) ** 2, grad), None)
        signs = jax.tree.map(jnp.sign, random.copy_of(noise, 1, position))
        (potential, grad), (_, turned) = jax.jvp(evaluate, (position,), (signs,))
        slopes = jax.tree.map(lambda g, z, h: 2 * _wide(g) * z * h, grad, signs, turned)
        return potential, grad, (jax.tree.map(lambda g: _wide(g) ** 2, grad), slopes)


def _wide(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.result_type(leaf, jnp.float32))
