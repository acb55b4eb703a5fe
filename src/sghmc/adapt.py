"""Changing a sampler while it burns in."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from sghmc.types import PyTree


class Adapt(eqx.Module):
    """Change the sampler after every `every`-th step of burn-in, from `start` up to `until`.

    `update(sampler, state, hyper)` returns a new sampler and state; it runs inside the compiled
    loop, once a chain. The sampler it sees is the kernel that steps: `SGHMC`'s has
    `with_mass(state, mass)`. A mass that follows the parameters changes the law that is sampled, so
    nothing adapts after burn-in: `until` must not go beyond it.

    >>> import sghmc
    >>> sghmc.Adapt(lambda sampler, state, hyper: (sampler, state), every=500, until=5000).until
    5000
    """

    update: Callable[[Any, Any, PyTree], tuple[Any, Any]]
    every: int
    until: int
    start: int = 0

    def __check_init__(self):
        if not callable(self.update):
            raise TypeError(
                f"Adapt needs a function update(sampler, state, hyper), not {self.update!r}."
            )
        for name in ("every", "until"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, but is {value!r}.")
        if not isinstance(self.start, int | np.integer) or self.start < 0:
            raise ValueError(f"start must be a whole number from 0, but is {self.start!r}.")
