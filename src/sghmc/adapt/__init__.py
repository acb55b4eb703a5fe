"""Adaptation of a sampler during burn-in; from then on its settings stay fixed."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax

from sghmc.core.checks import check_count
from sghmc.types import PyTree

__all__ = ["Adapt", "Adaptation", "Moment"]


class Moment(NamedTuple):
    """State of one chain after step `t`, as an adaptation sees it.

    `state` and `gradient()`, which costs an evaluation, are in the shapes of the parameters;
    `acceptance` is that of the step, or None.
    """

    t: jax.Array
    kernel: Any
    state: Any
    hyper: PyTree
    acceptance: jax.Array | None
    gradient: Callable[[], PyTree]


class Adaptation(eqx.Module):
    """A change of the sampler after every `every`-th step of burn-in, from `start` up to `until`.

    A sampler that follows its own chain has another law than its target's, so nothing adapts after
    burn-in: `until` must not go beyond it. From then on the sampler is a plain one with the
    settings it has reached, each chain its own.
    """

    every: eqx.AbstractVar[int]
    until: eqx.AbstractVar[int]
    start: eqx.AbstractVar[int]

    def __check_init__(self):
        check_count(self.every, "every")
        check_count(self.until, "until")
        check_count(self.start, "start", 0)

    def is_due(self, t) -> jax.Array | bool:
        return ((t + 1) % self.every == 0) & (t >= self.start) & (t < self.until)

    def begin(self, kernel: Any, position: PyTree) -> PyTree:
        """Return what the adaptation remembers of a chain before its first step."""
        return ()

    @abc.abstractmethod
    def revise(self, moment: Moment, memory: PyTree) -> tuple[Any, Any, PyTree]:
        """Return a new kernel, state and memory; the compiled loop calls this once a chain."""


class Adapt(Adaptation):
    """Change the sampler after every `every`-th step of burn-in, from `start` up to `until`.

    `update(sampler, state, hyper)` returns a new sampler and state; it runs inside the compiled
    loop, once a chain. The sampler it sees is the kernel that steps: those of `SGHMC`, `SGLD` and
    `HMC` have `with_mass(state, mass)`. A mass that follows the parameters changes the law that is
    sampled, so nothing adapts after burn-in: `until` must not go beyond it.

    >>> import sghmc
    >>> sghmc.Adapt(lambda sampler, state, hyper: (sampler, state), every=500, until=5000).until
    5000
    """

    update: Callable[[Any, Any, PyTree], tuple[Any, Any]]
    every: int
    until: int
    start: int

    # Written out for readers of types, who put the fields of the base class first.
    def __init__(self, update: Callable, every: int, until: int, start: int = 0):
        self.update, self.every, self.until, self.start = update, every, until, start

    def __check_init__(self):
        if not callable(self.update):
            raise TypeError(
                f"Adapt needs a function update(sampler, state, hyper), not {self.update!r}."
            )

    def revise(self, moment, memory):
        return *self.update(moment.kernel, moment.state, moment.hyper), memory
