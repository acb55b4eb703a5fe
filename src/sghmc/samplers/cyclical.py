"""Any sampler in cycles: large steps find modes, small ones sample them."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from sghmc.samplers.base import Kernel, Sampler, Traits, value_at
from sghmc.types import PyTree


class Cyclical(Sampler):
    """A sampler whose step size falls and starts again, without noise while it is large.

        r_t = (t mod L) / L
        ε_t = ½ε (cos(π r_t) + 1),  τ_t = 0 for r_t < exploration, else τ

    | field | symbol | meaning |
    | --- | --- | --- |
    | `sampler` | | what moves, with its ε and τ: `SGHMC`, `SGLD`, `PSGLD` |
    | `cycle_length` | L | steps of a cycle |
    | `exploration` | | the share of a cycle that descends; the rest samples |

    Draws are kept in the sampling part of a cycle only, so that `num_samples` counts these; with
    `thinning=cycle_length` there is one draw a cycle, at its end.

    Law: none. Within a mode, draws approach those of `sampler` as the step size falls. Which mode
    a cycle ends in follows the basins of descent from where the last one ended, not the modes'
    weights: it finds modes, and says nothing of how much they weigh. In the exploration there is
    no room for a gradient noise to subtract: `gradient_noise` must be 0.

    Zhang, Li, Zhang, Chen & Wilson, ICLR 2020; their exploration, too, is without noise.

    >>> import sghmc
    >>> cyclical = sghmc.Cyclical(sghmc.SGHMC(0.1, friction=1.0), cycle_length=100)
    >>> [round(float(cyclical.step_size(t)), 3) for t in (0, 50, 99, 100)]
    [0.1, 0.05, 0.0, 0.1]
    """

    traits: ClassVar[Traits] = Traits(
        "no law",
        "that of its sampler, L",
        "finding modes, not their weights",
    )

    sampler: Any
    cycle_length: int
    exploration: float = 0.5

    def __check_init__(self):
        if not (hasattr(self.sampler, "step_size") and hasattr(self.sampler, "temperature")):
            raise TypeError(
                f"Cyclical needs a sampler with a step size and a temperature, such as SGHMC(…) or "
                f"SGLD(…), not {self.sampler!r}."
            )
        if self.sampler.subtracts_gradient_noise:
            raise ValueError(
                "Cyclical explores at temperature 0, where there is no injected noise to take "
                "gradient_noise from: give its sampler gradient_noise=0."
            )
        length = self.cycle_length
        if not isinstance(length, int | np.integer) or length < 2:
            raise ValueError(f"cycle_length must be a whole number from 2, but is {length!r}.")
        if not 0 <= self.exploration <= 1 - 1 / length:
            raise ValueError(
                f"exploration must be from 0 to {1 - 1 / length:g}, which leaves one step of "
                f"{length} to sample, but is {self.exploration!r}."
            )

    @property
    def is_affine(self) -> bool:
        return False

    def step_size(self, t):
        """ε_t."""
        turn = jnp.cos(jnp.pi * (t % self.cycle_length) / self.cycle_length)
        return value_at(self.sampler.step_size, t) * (turn + 1) / 2

    def temperature(self, t):
        """τ_t."""
        return jnp.where(self.is_kept(t), value_at(self.sampler.temperature, t), 0)

    def is_kept(self, steps):
        return steps % self.cycle_length >= self.exploration * self.cycle_length

    def prepare(self, like: PyTree, num_steps: int = 1) -> Kernel:
        moving = dataclasses.replace(
            self.sampler, step_size=self.step_size, temperature=self.temperature
        )
        return moving.prepare(like, num_steps)

    def rescaled(self, factor: float) -> "Cyclical":
        return dataclasses.replace(self, sampler=self.sampler.rescaled(factor))
