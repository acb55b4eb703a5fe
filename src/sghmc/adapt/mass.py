"""Masses from the spread of draws and gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.adapt.base import Adaptation, Moment
from sghmc.core.checking import check_count
from sghmc.types import PyTree

_PRIOR = 5
"""How many visits the old mass counts for: it stands in where a window saw no movement."""


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
        """The numbers of steps after which the mass changes."""
        return windows(self.start, self.until, self.first_window)

    def begin(self, kernel, position):
        return begin(kernel.diagonal_mass(position), self.gradients)

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
        weight = self.num_visits / (self.num_visits + _PRIOR)
        return jax.tree.map(
            # What did not move keeps its mass.
            lambda mass, m: jnp.where((m > 0) & (m < jnp.inf), mass * (m / mass) ** weight, mass),
            self.mass,
            ratio,
        )


def windows(start: int, until: int, first: int) -> tuple[int, ...]:
    """Ends of windows that double; the last one is longer, so that it ends at `until`."""
    ends, length = [], first
    while start + length <= until:
        start = start + length if start + 3 * length <= until else until
        ends.append(start)
        length *= 2
    return tuple(ends)


def begin(mass: PyTree, gradients: bool = False) -> Spread:
    """An empty window."""
    zeros = jax.tree.map(jnp.zeros_like, mass)
    pair = (zeros, zeros if gradients else None)
    return Spread(mass, jnp.zeros(()), pair, pair)


def revise(moment: Moment, gradient: PyTree, spread: Spread, ends: tuple[int, ...], every: int):
    """One more visit; at the end of a window a new mass, an empty window, and True."""
    spread = spread.with_visit((moment.state.position, gradient))
    # A window may end between two visits: the last one in it counts.
    stops = np.array(ends)
    is_end = jnp.any((moment.t + 1 <= stops) & (moment.t + 1 + every > stops))
    empty = begin(spread.new_mass(), gradient is not None)
    return jax.tree.map(lambda a, b: jnp.where(is_end, a, b), empty, spread), is_end
