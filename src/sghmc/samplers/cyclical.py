"""Any sampler in cycles: large steps find modes, small ones sample them."""

from typing import ClassVar

import jax.numpy as jnp

from sghmc.core.checking import check_count
from sghmc.samplers.base import Dynamics, Kernel, Sampler, Traits
from sghmc.samplers.settings import value_at
from sghmc.samplers.wrapper import SamplerWrapper
from sghmc.types import PyTree


class Cyclical(SamplerWrapper):
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

    sampler: Sampler
    cycle_length: int
    exploration: float = 0.5

    def __check_init__(self):
        is_sampler = isinstance(self.sampler, Sampler)
        if not is_sampler or not {"step_size", "temperature"} <= self.sampler.settings.keys():
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
        check_count(length, "cycle_length", 2)
        if not 0 <= self.exploration <= 1 - 1 / length:
            raise ValueError(
                f"exploration must be from 0 to {1 - 1 / length:g}, which leaves one step of "
                f"{length} to sample, but is {self.exploration!r}."
            )

    @property
    def is_affine(self) -> bool:
        return False

    @property
    def dynamics(self) -> Dynamics:
        own = self.sampler.dynamics
        return own._replace(step_size=self.step_size, temperature=self.temperature)

    def step_size(self, t):
        """ε_t."""
        turn = jnp.cos(jnp.pi * (t % self.cycle_length) / self.cycle_length)
        return value_at(self.sampler.settings["step_size"], t) * (turn + 1) / 2

    def temperature(self, t):
        """τ_t."""
        return jnp.where(self._is_sampling(t), value_at(self.sampler.dynamics.temperature, t), 0)

    def is_kept(self, steps):
        return self._is_sampling(steps) & self.sampler.is_kept(steps)

    def _is_sampling(self, t):
        return t % self.cycle_length >= self.exploration * self.cycle_length

    def prepare(self, like: PyTree, num_steps: int = 1) -> Kernel:
        turning = self.sampler.with_settings(step_size=self.step_size, temperature=self.temperature)
        return turning.prepare(like, num_steps)
