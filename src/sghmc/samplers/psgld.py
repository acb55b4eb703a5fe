"""Langevin dynamics with the preconditioner of RMSprop."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sghmc.core import random, tree
from sghmc.samplers.base import Kernel, Sampler, Traits
from sghmc.samplers.settings import array_setting, check_setting, value_at, values_over
from sghmc.types import PyTree, Schedule, StepInfo


class PSGLD(Sampler):
    """SGLD preconditioned by running squares of the gradient, all products entry by entry.

        θ ← θ − ε G ∇Ũ(θ) + ετ Γ + N(0, 2ετG),  G = (λ² + s)^−½,  Γ = −½ G³ d
        s ← βs + (1 − β) ∇Ũ²,  d ← βd + (1 − β) 2∇Ũ z (∇²Ũ z),  z = ±1 at random

    G is that of earlier steps: one that saw this step's batch would not be independent of its
    gradient. (The first step has no other.) Γ = ∂G/∂θ follows s through d, an unbiased estimate of
    ∂s/∂θ from one product with the Hessian.

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
        "scales of parameters that differ and change; a Hessian product more a step",
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


class PSGLDKernel(Kernel):
    step_size: jax.Array | Schedule
    decay: jax.Array
    damping: jax.Array
    correction: bool
    temperature: jax.Array | Schedule

    @property
    def differentiates_gradients(self) -> bool:
        return self.correction

    def init(self, normals, position):
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), position)
        return PSGLDState(position, zeros, zeros if self.correction else None)

    def draw(self, key, first_step, num_steps, like):
        return random.normals_like(key, first_step, num_steps, like, copies=1 + self.correction)

    def step(self, t, noise, state, oracle):
        epsilon, tau = value_at(self.step_size, t), value_at(self.temperature, t)
        potential, grad, seen = self._look(noise, state.position, oracle)
        # The first step has nothing but what it sees itself.
        squares, slopes = jax.tree.map(
            lambda old, new: jnp.where(t == 0, new, old), (state.squares, state.slopes), seen
        )
        root = jax.tree.map(lambda s: (self.damping**2 + s) ** -0.5, squares)
        drift = jax.tree.map(jnp.multiply, root, grad)
        if self.correction:
            drift = jax.tree.map(lambda f, g, d: f + tau / 2 * g**3 * d, drift, root, slopes)
        normals = random.copy_of(noise, 0, state.position)
        injected = jax.tree.map(lambda g, n: jnp.sqrt(2 * epsilon * tau * g) * n, root, normals)
        position = tree.add_scaled(state.position, -epsilon, drift)
        averages = jax.tree.map(
            lambda old, new: self.decay * old + (1 - self.decay) * new, (squares, slopes), seen
        )
        return PSGLDState(tree.add_scaled(position, 1, injected), *averages), StepInfo(potential)

    def _look(self, noise, position, oracle):
        """The potential, its gradient, and (∇Ũ², an estimate of its slope) for the averages."""

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
