"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

# pyright: reportPrivateImportUsage=false

from collections.abc import Iterable
from typing import Any, Unpack

import torch

from sghmc.torch.base import Common
from sghmc.torch.gradient_noise import inject
from sghmc.torch.momentum import MOMENTUM, FrictionSampler
from sghmc.torch.pieces import Piece
from sghmc.torch.settings import number


class SGHMC(FrictionSampler):
    """Hamiltonian dynamics with friction, which balances the noise of a stochastic gradient.

        r ← r − ε ∇Ũ(θ) − ε C M⁻¹ r + N(0, 2ε(τC − B̂)),  B̂ = ½ε V̂
        θ ← θ + ε M⁻¹ r                                    (the new r)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | what torch's schedulers move |
    | `friction` | C | |
    | `mass` | M | |
    | `gradient_noise` | V̂ | variance of ∇Ũ's error, taken off the injected noise; "estimate": \
from microbatches |
    | `temperature` | τ | samples exp(−U/τ); 0 is SGD with momentum |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    All are numbers, and may differ by parameter group.

    Law: that of `sghmc.SGHMC`, covariance τ[A⁻¹ + ¼ε²(M − ½εC − ¼ε²A)⁻¹] on U = ½θᵀAθ with V̂
    right. Needs τC ≥ ½εV̂. V̂ belongs to rows drawn independently: leave it 0 in shuffled epochs.

    Chen, Fox & Guestrin, ICML 2014, Eq. 13 and 15.

    >>> import torch
    >>> from sghmc.torch import SGHMC, GaussianPrior
    >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
    >>> x, y = torch.ones(100, 2), torch.zeros(100, 1)
    >>> sampler = SGHMC(
    ...     model.parameters(), 0.01, friction=5.0, num_data=100, prior=GaussianPrior(1.0), seed=0
    ... )
    >>> for _ in range(10):
    ...     sampler.zero_grad()
    ...     loss(model(x), y).backward()
    ...     sampler.step()
    """

    largest_decay = 2.0

    @classmethod
    def from_learning_rate(
        cls,
        params: Iterable,
        learning_rate: float,
        momentum_decay: float,
        gradient_noise: float | str = 0.0,
        **common: Unpack[Common],
    ) -> "SGHMC":
        """The same sampler in the terms of SGD with momentum (Eq. 15).

            v ← v − η ∇Ũ(θ) − α v + N(0, 2η(τα − β̂)),  β̂ = ½η V̂
            θ ← θ + v

        Here η = ε²M⁻¹ and α = εM⁻¹C; the mass is 1. `torch.optim.SGD(lr, momentum=μ)` on a mean
        loss has η = lr/N and α = 1 − μ. Schedulers move ε = √η.
        """
        epsilon = number(learning_rate, "learning_rate", positive=True) ** 0.5
        friction = number(momentum_decay, "momentum_decay") / epsilon
        return cls(params, epsilon, friction, 1.0, gradient_noise, **common)

    def _inertia(self, group: dict[str, Any]) -> float:
        """The share of its momentum that a step keeps."""
        return 1 - group["lr"] * group["friction"] / group["mass"]

    def _heat(self, group: dict[str, Any], piece: Piece) -> None:
        """Before the kick, which is then one pass with the drift."""
        epsilon, momenta = group["lr"], piece.state[MOMENTUM]
        inertia = self._inertia(group)
        if inertia == 0:  # SGLD
            torch._foreach_zero_(momenta)
        heat = 2 * epsilon * group["temperature"] * group["friction"]
        inject(group, piece, momenta, heat, epsilon**2, 1 / (inertia or 1.0))

    def _finish(self, group: dict[str, Any], piece: Piece) -> None:
        self._kick_and_drift(group, piece, self._inertia(group) or 1.0, 1.0)

    def _correction(self, group: dict[str, Any]) -> float:
        return 1 - group["lr"] * group["friction"] / (2 * group["mass"])
