"""Cyclical step sizes for any sampler: large steps find modes, small ones sample them."""

import math

import torch

from sghmc.torch.base import Sampler
from sghmc.torch.settings import whole_number

_TEMPERATURE = "initial_temperature"


class Cyclical(torch.optim.lr_scheduler.LRScheduler):
    """A scheduler that lets the step size fall and start again, without noise while it is large.

        r_t = (t mod L) / L
        ε_t = ½ε (cos(π r_t) + 1),  τ_t = 0 for r_t < exploration, else τ

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `sampler` | | whose ε and τ these are, by parameter group |
    | `cycle_length` | L | steps of a cycle |
    | `exploration` | | the share of a cycle that descends; the rest samples |

    Call `step()` after each step of the sampler, and take draws where `is_sampling` says so. That
    is of the step that was just made: ask before `step()`.

    Law: none. It finds modes, and says nothing of how much they weigh; see `sghmc.Cyclical`.

    Zhang, Li, Zhang, Chen & Wilson, ICLR 2020.

    >>> import torch
    >>> from sghmc.torch import SGHMC, Cyclical
    >>> theta = torch.zeros(3, requires_grad=True)
    >>> sampler = SGHMC([theta], 0.1, friction=1.0, num_data=1, prior=None, seed=0)
    >>> schedule = Cyclical(sampler, cycle_length=4)
    >>> for _ in range(5):
    ...     print(round(schedule.get_last_lr()[0], 3), schedule.is_sampling)
    ...     (theta**2).sum().backward()
    ...     sampler.step()
    ...     schedule.step()
    0.1 False
    0.085 False
    0.05 True
    0.015 True
    0.1 False
    """

    def __init__(self, sampler: Sampler, cycle_length: int, exploration: float = 0.5):
        if not isinstance(sampler, Sampler):
            raise TypeError(f"Cyclical needs a sampler of sghmc.torch, not {sampler!r}.")
        self.cycle_length = whole_number(cycle_length, "cycle_length", least=2)
        if not 0 <= exploration <= 1 - 1 / cycle_length:
            raise ValueError(
                f"exploration must be from 0 to {1 - 1 / cycle_length:g}, which leaves one step of "
                f"{cycle_length} to sample, but is {exploration!r}."
            )
        self.exploration = exploration
        for group in sampler.param_groups:
            if group.get("gradient_noise"):
                raise ValueError(
                    "Cyclical explores at temperature 0, where there is no injected noise to take "
                    "gradient_noise from: give its sampler gradient_noise=0."
                )
            group.setdefault(_TEMPERATURE, group["temperature"])
        super().__init__(sampler)

    @property
    def is_sampling(self) -> bool:
        """Whether the present step of the cycle samples."""
        return self.last_epoch % self.cycle_length >= self.exploration * self.cycle_length

    def get_lr(self) -> list[float | torch.Tensor]:
        turn = math.cos(math.pi * (self.last_epoch % self.cycle_length) / self.cycle_length)
        for group in self.optimizer.param_groups:
            group["temperature"] = group[_TEMPERATURE] if self.is_sampling else 0.0
        return [float(base) * (turn + 1) / 2 for base in self.base_lrs]
