"""Diagonal masses from the variance of draws, or from the size of gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.adapt import Adaptation, Moment
from sghmc.core.checks import check_count, check_setting
from sghmc.samplers import AdaptsMass, as_protocol
from sghmc.types import PyTree

# The old mass counts as so many visits, and stays if nothing moved in a window.
_OLD_MASS_VISITS = 5


class AdaptMass(Adaptation):
    """A diagonal mass from the spread of the draws, or of draws and gradients, in windows.

        log M ← (n log m + 5 log M)/(n + 5),  m = 1/Var θ or, with gradients, √(Var ∇Ũ / Var θ)

    with variances over a window of n visits, in which the mass was M.

    | field | meaning |
    | --- | --- |
    | `until` | the step after which nothing changes; the last window ends there |
    | `gradients` | whether gradients are looked at, at the cost of one evaluation a visit |
    | `first_window` | steps of the first window; each is twice as long as the one before |
    | `every` | steps between visits |
    | `start` | the step where the first window begins |

    A posterior without strong correlations has Var ∇U = 1/Var θ, its curvature, so that either mass
    makes all frequencies 1. The first needs windows in which chains cross the posterior; the second
    is right after a short piece of a path, since both variances shrink alike, and too heavy by
    √(1 + V/M) where the gradient has noise V.

    For `SGHMC` (the friction follows the mass, so that the momentum decay stays), `HMC`, and
    `SGLD`, whose preconditioner is the mass's inverse. The mass that a run starts with must be
    stable with the step size of the first window.

    Law: after `until`, that of the sampler with a mass which no longer changes.

    >>> import sghmc
    >>> sghmc.AdaptMass(until=1000).ends
    (100, 300, 1000)
    """

    until: int
    gradients: bool = False
    first_window: int = 100
    every: int = 1
    start: int = 0

    def __check_init__(self):
        check_count(self.first_window, "first_window", 2 * self.every)
        if not self.ends:
            raise ValueError(
                f"A first window of {self.first_window} steps from step {self.start} on does not "
                f"end by step {self.until}: take a smaller first_window or a later until."
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the numbers of steps after which the mass changes."""
        return windows(self.start, self.until, self.first_window)

    def begin(self, kernel, position):
        return begin(as_protocol(kernel, AdaptsMass).diagonal_mass(position), self.gradients)

    def revise(self, moment, memory):
        gradient = moment.gradient() if self.gradients else None
        memory, _ = revise(moment, gradient, memory, self.ends, self.every)
        return *moment.kernel.with_mass(moment.state, memory.mass), memory


class Spread(NamedTuple):
    """Means and sums of squared deviations (Welford) over a window, and the mass in it.

    Of (positions, gradients); the latter are None where they are not looked at.
    """

    mass: PyTree
    num_visits: jax.Array
    mean: tuple[PyTree, PyTree]
    squares: tuple[PyTree, PyTree]

    def with_visit(self, seen: tuple[PyTree, PyTree]) -> "Spread":
        count = self.num_visits + 1
        mean = jax.tree.map(lambda m, x: m + (x.astype(m.dtype) - m) / count, self.mean, seen)
        squares = jax.tree.map(
            lambda s, x, old, new: s + (x.astype(s.dtype) - old) * (x.astype(s.dtype) - new),
            self.squares,
            seen,
            self.mean,
            mean,
        )
        return Spread(self.mass, count, mean, squares)

    def new_mass(self) -> PyTree:
        positions, gradients = self.squares
        if gradients is None:
            ratio = jax.tree.map(lambda x: (self.num_visits - 1) / x, positions)
        else:
            ratio = jax.tree.map(lambda x, g: jnp.sqrt(g / x), positions, gradients)
        weight = self.num_visits / (self.num_visits + _OLD_MASS_VISITS)
        return jax.tree.map(
            # What did not move keeps its mass.
            lambda mass, m: jnp.where((m > 0) & (m < jnp.inf), mass * (m / mass) ** weight, mass),
            self.mass,
            ratio,
        )


def windows(start: int, until: int, first: int) -> tuple[int, ...]:
    """Return the ends of windows that double; the last one is longer and ends at `until`."""
    ends, length = [], first
    while start + length <= until:
        start = start + length if start + 3 * length <= until else until
        ends.append(start)
        length *= 2
    return tuple(ends)


def begin(mass: PyTree, gradients: bool = False) -> Spread:
    """Return an empty window."""
    zeros = jax.tree.map(jnp.zeros_like, mass)
    pair = (zeros, zeros if gradients else None)
    return Spread(mass, jnp.zeros(()), pair, pair)


def revise(moment: Moment, gradient: PyTree, spread: Spread, ends: tuple[int, ...], every: int):
    """Add a visit; at the end of a window a new mass, an empty window, and True."""
    spread = spread.with_visit((moment.state.position, gradient))
    # A window may end between two visits: the last one in it counts.
    stops = np.array(ends)
    is_end = jnp.any((moment.t + 1 <= stops) & (moment.t + 1 + every > stops))
    empty = begin(spread.new_mass(), gradient is not None)
    return jax.tree.map(lambda a, b: jnp.where(is_end, a, b), empty, spread), is_end


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
        zeros = jax.tree.map(
            jnp.zeros_like, as_protocol(kernel, AdaptsMass).diagonal_mass(position)
        )
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
