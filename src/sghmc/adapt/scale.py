"""Masses from the size of the gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sghmc.adapt.base import Adaptation
from sghmc.samplers.settings import check_setting
from sghmc.types import PyTree


class AdaptScale(Adaptation):
    """A diagonal mass from running squares of the gradient, in a window that finds its length.

        ḡ ← ḡ + (∇Ũ − ḡ)/(w + 1),  s ← s + (∇Ũ² − s)/(w + 1),  w ← w + 1 − w ḡ²/s
        M = √(λ² + s)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `until` | | the step after which nothing changes |
    | `every`, `start` | | steps between visits, each with a gradient of its own; the first |
    | `damping` | λ | in units of the gradient of the whole potential: no mass is below it |

    With `SGHMC` this is the scale-adapted SGHMC of Springenberg, Klein, Falkner & Hutter (NIPS
    2016), since the friction follows the mass; with `SGLD`, whose preconditioner is the mass's
    inverse, it is a pSGLD whose preconditioner freezes. Parameters then move by about ε² (SGHMC)
    or ε (SGLD) a step, however large their gradients are; frequencies are not made equal, as
    `AdaptMass` makes them, but their spread is halved on a logarithmic scale.

    Law: after `until`, that of the sampler with a mass which no longer changes. Two deviations
    from the paper: it also takes s for the gradient noise V̂, but s counts the curvature as noise
    and would cool the chain at order ε (give `gradient_noise=EmpiricalFisher()` instead); and its
    rate 1/w never leaves a window of length 1, where ḡ² = s.

    >>> import sghmc
    >>> sghmc.AdaptScale(until=2000).damping
    1.0
    """

    until: int
    every: int = 1
    start: int = 0
    damping: float = 1.0

    def __check_init__(self):
        check_setting(self.damping, "damping", positive=True)

    def begin(self, kernel, position):
        zeros = jax.tree.map(jnp.zeros_like, kernel.diagonal_mass(position))
        return Gradients(zeros, zeros, zeros)

    def revise(self, moment, memory):
        memory = memory.with_gradient(moment.gradient())
        mass = jax.tree.map(lambda s: jnp.sqrt(self.damping**2 + s), memory.square)
        return *moment.kernel.with_mass(moment.state, mass), memory


class Gradients(NamedTuple):
    """Running means of the gradient and of its square, and their windows."""

    mean: PyTree
    square: PyTree
    window: PyTree

    def with_gradient(self, gradient: PyTree) -> "Gradients":
        gradient = jax.tree.map(lambda g, s: g.astype(s.dtype), gradient, self.square)
        mean = jax.tree.map(lambda m, g, w: m + (g - m) / (w + 1), self.mean, gradient, self.window)
        square = jax.tree.map(
            lambda s, g, w: s + (g**2 - s) / (w + 1), self.square, gradient, self.window
        )
        window = jax.tree.map(
            # Where no gradient was ever other than 0, none is forgotten.
            lambda w, m, s: w + 1 - w * jnp.where(s > 0, m**2 / jnp.where(s > 0, s, 1), 0),
            self.window,
            mean,
            square,
        )
        return Gradients(mean, square, window)
