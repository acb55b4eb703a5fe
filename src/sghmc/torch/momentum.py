"""What samplers with momentum have in common: start, drift, temperature; settings with friction."""

# pyright: reportPrivateImportUsage=false

import abc
import functools
from collections.abc import Iterable
from typing import Any, Unpack

import torch

from sghmc.torch import gradient_noise as noise
from sghmc.torch import priors
from sghmc.torch.base import Common, Sampler
from sghmc.torch.fused import kick_and_drift
from sghmc.torch.pieces import Piece, Plan
from sghmc.torch.settings import check_decay, number

MOMENTUM = "momentum"


class MomentumSampler(Sampler):
    """A momentum r for every parameter, with the mass M of its group."""

    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        return {MOMENTUM: torch.zeros_like(position)}

    def _start(self, group: dict[str, Any], piece: Piece) -> None:
        """Momenta from N(0, τM)."""
        if group["temperature"]:
            piece.add_noise(piece.state[MOMENTUM], (group["temperature"] * group["mass"]) ** 0.5)

    def _drift(self, group: dict[str, Any], piece: Piece, fraction: float = 1.0) -> None:
        """θ ← θ + fraction · εM⁻¹r."""
        share = fraction * group["lr"] / group["mass"]
        torch._foreach_add_(piece.positions, piece.state[MOMENTUM], alpha=share)

    def _middle(self, group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Half a drift back."""
        momenta = [self.state[param][MOMENTUM] for param in params]
        back = -group["lr"] / (2 * group["mass"])
        return list(torch._foreach_add(self._positions(params), momenta, alpha=back))

    def _correction(self, group: dict[str, Any]) -> float:
        """What rᵀM⁻¹r/d is to be multiplied by to be τ when θ is right."""
        return 1.0

    @torch.no_grad()
    def kinetic_temperature(self) -> float | None:
        """rᵀM⁻¹r/d over τ, corrected for what discrete momenta are hotter: 1 where all is right.

        None at temperature 0 or before the first step.
        """
        total, count = 0.0, 0
        for group in self.param_groups:
            momenta = [self.state[p][MOMENTUM] for p in group["params"] if p in self.state]
            if not momenta or group["temperature"] == 0:
                continue
            share = self._correction(group) / (group["mass"] * group["temperature"])
            total += share * priors.sum_of_squares(momenta).item()
            count += sum(momentum.numel() for momentum in momenta)
        return total / count if count else None


class FrictionSampler(MomentumSampler, abc.ABC):
    """The settings ε, C, M, V̂ and τ of dr = −∇U dt − CM⁻¹r dt + N(0, 2τC dt), dθ = M⁻¹r dt."""

    largest_decay = float("inf")
    """Where every chain diverges, whatever the target: a bound on εC/M."""

    def __init__(
        self,
        params: Iterable,
        step_size: float,
        friction: float,
        mass: float = 1.0,
        gradient_noise: float | str = 0.0,
        **common: Unpack[Common],
    ):
        settings = {"friction": friction, "mass": mass, "gradient_noise": gradient_noise}
        super().__init__(params, step_size, settings, **common)

    def _check(self, group: dict[str, Any]) -> None:
        friction = number(group["friction"], "friction")
        mass = number(group["mass"], "mass", positive=True)
        epsilon, tau = group["lr"], group["temperature"]
        check_decay(epsilon * friction / mass, self.largest_decay)
        noise.check(
            group,
            noise.estimates(group, self.state),
            share=epsilon**2,
            room=2 * epsilon * tau * friction,
            remedy="Take a larger friction, a smaller step_size or larger batches.",
        )

    def _move_all(self, group: dict[str, Any], plan: Plan) -> None:
        plan.run(functools.partial(self._move, group))

    def _move(self, group: dict[str, Any], piece: Piece) -> None:
        self._begin_step(group, piece)
        self._heat(group, piece)
        self._finish(group, piece)

    def _kick_and_drift(
        self, group: dict[str, Any], piece: Piece, inertia: float, fraction: float
    ) -> None:
        """r ← inertia · r − ε∇Ũ(θ), θ ← θ + fraction · εM⁻¹r."""
        epsilon, prior = group["lr"], group["prior"]
        if piece.prior_grads is not None:
            torch._foreach_add_(piece.state[MOMENTUM], piece.prior_grads, alpha=epsilon / inertia)
        is_gaussian = isinstance(prior, priors.GaussianPrior)
        kick_and_drift(
            piece.positions,
            piece.state[MOMENTUM],
            piece.grads,
            inertia=inertia,
            force=-epsilon * self.num_data,
            pull=-epsilon * prior.precision if is_gaussian else 0.0,
            drift=fraction * epsilon / group["mass"],
            is_fused=piece.is_fused,
        )

    def _begin_step(self, group: dict[str, Any], piece: Piece) -> None:
        """What a step does to a piece before it draws noise, in place."""

    @abc.abstractmethod
    def _heat(self, group: dict[str, Any], piece: Piece) -> None:
        """Noise, and what is done with it in one go."""

    @abc.abstractmethod
    def _finish(self, group: dict[str, Any], piece: Piece) -> None:
        """The rest of a step."""
