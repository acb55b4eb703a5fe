"""Algorithms step by step as their papers print them, without the library's repairs.

Each is a subclass of the library's sampler, with the same settings, for figures and comparisons.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from sghmc.core import random, tree
from sghmc.core.checks import value_at
from sghmc.samplers import Traits
from sghmc.samplers.nose_hoover import SGNHT, SGNHTKernel, SGNHTState
from sghmc.samplers.sghmc import SGHMC, SGHMCKernel, SGHMCState
from sghmc.types import PyTree, StepInfo


class LiteralSGHMC(SGHMC):
    """SGHMC in the order of Algorithm 2 as printed: θ moves first, and momenta are resampled there.

        every m steps: r ~ N(0, τM)
        θ ← θ + ε M⁻¹ r                                    (the old r)
        r ← r − ε ∇Ũ(θ) − ε C M⁻¹ r + N(0, 2ε(τC − B̂)),  B̂ = ½ε V̂

    Law: without `resample_every` that of `sghmc.SGHMC`. With it the variance is off by m/(m − 1),
    however small ε is: position and momentum are not independent where momenta are replaced.

    Chen, Fox & Guestrin, ICML 2014, Algorithm 2.

    >>> LiteralSGHMC(0.1, friction=3.0, resample_every=50).name
    'LiteralSGHMC'
    """

    def prepare(self, like: PyTree, num_steps: int = 1) -> "LiteralSGHMCKernel":
        return LiteralSGHMCKernel(**vars(super().prepare(like, num_steps)))


class LiteralSGHMCKernel(SGHMCKernel):
    """The step of Algorithm 2: positions move by the momentum from before the gradient."""

    def step(self, t, noise, state, oracle):
        if self.resample_every is not None:
            state = self._resample(t, noise, state)
        position = self._drift(t, state.position, state.velocity)
        velocity, potential = self._kick(t, noise, position, state.velocity, oracle)
        return SGHMCState(position, velocity), StepInfo(potential)

    def _resample(self, t, noise, state):
        fresh = self._fresh(t, random.copy_of(noise, 1, state.position), 0)
        is_due = t % (self.resample_every or 1) == 0
        velocity = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), fresh, state.velocity)
        return SGHMCState(state.position, velocity)


class LiteralSGNHT(SGNHT):
    """SGNHT as printed: one Euler step of each equation in place of the symmetric splitting.

        r ← r − ε ∇Ũ(θ) − εξ r + N(0, 2ετAM)
        θ ← θ + ε M⁻¹ r
        ξ ← ξ + ε (rᵀM⁻¹r/d − τ)/μ

    Law: that of `sghmc.SGNHT` for ε → 0, with a bias of order ε (proven by test).

    Ding, Fang, Babbush, Chen, Skeel & Neven, NeurIPS 2014.

    >>> LiteralSGNHT(0.1, friction=1.0).thermostat
    'scalar'
    """

    traits: ClassVar[Traits] = Traits("ε", "ε, A", "comparison with the published algorithm")

    def prepare(self, like: PyTree, num_steps: int = 1) -> "LiteralSGNHTKernel":
        return LiteralSGNHTKernel(**vars(super().prepare(like, num_steps)))


class LiteralSGNHTKernel(SGNHTKernel):
    """The step of the published algorithm: explicit Euler for the friction."""

    def step(self, t, noise, state, oracle):
        epsilon = value_at(self.step_size, t)
        position, velocity, thermostat = state
        potential, grad = oracle(0, position)
        velocity = self._slowed(
            t, noise, velocity, thermostat, lambda xi: 1 - epsilon * xi, lambda xi: 1
        )
        velocity = tree.add_scaled(velocity, -epsilon, self.inverse_mass @ grad)
        position = tree.add_scaled(position, epsilon, velocity)
        thermostat = self._moved(t, thermostat, velocity)
        return SGNHTState(position, velocity, thermostat), StepInfo(potential)
