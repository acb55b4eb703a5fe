"""Stochastic gradient Langevin dynamics."""

import functools
from collections.abc import Iterable
from typing import Any, Unpack

import torch

from sghmc.torch import gradient_noise as noise
from sghmc.torch.base import Common, Sampler
from sghmc.torch.pieces import Piece, Plan
from sghmc.torch.settings import number


class SGLD(Sampler):
    """Langevin dynamics with a stochastic gradient, corrected for the gradient's own noise.

        θ ← θ − ε P ∇Ũ(θ) + N(0, 2ετP − ε² P V̂ P)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | the factor before the gradient of U, not of the mean loss |
    | `preconditioner` | P | positive |
    | `gradient_noise` | V̂ | variance of ∇Ũ's error, taken off the injected noise; "estimate": \
from microbatches |
    | `temperature` | τ | samples exp(−U/τ) |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    All are numbers, and may differ by parameter group.

    Law: that of `sghmc.SGLD`, covariance τ(A − ½εAPA)⁻¹ on U = ½θᵀAθ with V̂ right.

    Welling & Teh, ICML 2011. Their ε is twice ours.

    >>> import torch
    >>> from sghmc.torch import SGLD
    >>> theta = torch.zeros(3, requires_grad=True)
    >>> sampler = SGLD([theta], 0.01, num_data=1, prior=None, seed=0)
    >>> (theta**2).sum().backward()
    >>> sampler.step()
    """

    def __init__(
        self,
        params: Iterable,
        step_size: float,
        preconditioner: float = 1.0,
        gradient_noise: float | str = 0.0,
        **common: Unpack[Common],
    ):
        settings = {"preconditioner": preconditioner, "gradient_noise": gradient_noise}
        super().__init__(params, step_size, settings, **common)

    def _check(self, group: dict[str, Any]) -> None:
        step = group["lr"] * number(group["preconditioner"], "preconditioner", positive=True)
        noise.check(
            group,
            noise.estimates(group, self.state),
            share=step**2,
            room=2 * step * group["temperature"],
            remedy="Take a smaller step_size, or larger batches.",
        )

    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def _move_all(self, group: dict[str, Any], plan: Plan) -> None:
        plan.run(functools.partial(self._move, group))

    def _move(self, group: dict[str, Any], piece: Piece) -> None:
        step = group["lr"] * group["preconditioner"]
        self._add_gradient(piece.positions, group, piece, -step)
        heat = 2 * step * group["temperature"]
        noise.inject(group, piece, piece.positions, heat, step**2)
