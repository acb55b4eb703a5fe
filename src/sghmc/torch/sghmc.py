"""Stochastic gradient Hamiltonian Monte Carlo with friction, and its splitting BAOAB."""

import abc
import functools
import math
from collections.abc import Iterable
from typing import Any, Unpack

import torch

from sghmc.torch import gradients as noise
from sghmc.torch import priors
from sghmc.torch.base import Common, Sampler
from sghmc.torch.gradients import inject
from sghmc.torch.pieces import Piece, StepPlan, kick_and_drift
from sghmc.torch.settings import check_decay, number

# pyright: reportPrivateImportUsage=false


MOMENTUM = "momentum"
_RATE, _DECAY = "learning_rate", "momentum_decay"


class MomentumOptimizer(Sampler):
    """Base of samplers with a momentum r for every parameter, and the mass M of its group."""

    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        return {MOMENTUM: torch.zeros_like(position)}

    def _start(self, group: dict[str, Any], piece: Piece) -> None:
        """Draw momenta from N(0, τM)."""
        if group["temperature"]:
            piece.add_noise(piece.state[MOMENTUM], (group["temperature"] * group["mass"]) ** 0.5)

    def _drift(self, group: dict[str, Any], piece: Piece, fraction: float = 1.0) -> None:
        """Add fraction · εM⁻¹r to θ."""
        share = fraction * group["lr"] / group["mass"]
        torch._foreach_add_(piece.positions, piece.state[MOMENTUM], alpha=share)

    def _middle(self, group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the positions half a drift back."""
        momenta = [self.state[param][MOMENTUM] for param in params]
        back = -group["lr"] / (2 * group["mass"])
        return list(torch._foreach_add(self._positions(params), momenta, alpha=back))

    def _correction(self, group: dict[str, Any]) -> float:
        """Return the factor of rᵀM⁻¹r/d that makes it τ when θ is right."""
        return 1.0

    @torch.no_grad()
    def kinetic_temperature(self) -> float | None:
        """Return rᵀM⁻¹r/d over τ, corrected for the step size: 1 where the chain is right.

        None at temperature 0 or before the first step.
        """
        total, count = 0.0, 0
        for group in self.param_groups:
            momenta = [self.state[p][MOMENTUM] for p in group["params"] if p in self.state]
            if not momenta or group["temperature"] == 0:
                continue
            share = self._correction(self._settings(group))
            share /= group["mass"] * group["temperature"]
            total += share * priors.sum_of_squares(momenta).item()
            count += sum(momentum.numel() for momentum in momenta)
        return total / count if count else None


class DampedOptimizer(MomentumOptimizer, abc.ABC):
    """Base of samplers with friction: settings ε, C, M, V̂ and τ.

    dr = −∇U dt − CM⁻¹r dt + N(0, 2τC dt),  dθ = M⁻¹r dt.
    """

    largest_decay = float("inf")
    """Smallest εC/M at which every chain diverges, whatever the target."""

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
        noise.check_gradient_noise(
            group,
            noise.estimates(group, self.state),
            share=epsilon**2,
            room=2 * epsilon * tau * friction,
            remedy="Take a larger friction, a smaller step_size or larger batches.",
        )

    def _move_all(self, group: dict[str, Any], plan: StepPlan) -> None:
        plan.run(functools.partial(self._move, group))

    def _move(self, group: dict[str, Any], piece: Piece) -> None:
        self._begin_step(group, piece)
        self._heat(group, piece)
        self._finish(group, piece)

    def _kick_and_drift(
        self, group: dict[str, Any], piece: Piece, inertia: float, fraction: float
    ) -> None:
        """Set r ← inertia · r − ε∇Ũ(θ), then θ ← θ + fraction · εM⁻¹r."""
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
        """Do the part of a step that comes before noise is drawn, in place."""

    @abc.abstractmethod
    def _heat(self, group: dict[str, Any], piece: Piece) -> None:
        """Apply friction and noise to the momenta."""

    @abc.abstractmethod
    def _finish(self, group: dict[str, Any], piece: Piece) -> None:
        """Do the part of a step that comes after noise was added."""


# Stochastic gradient Hamiltonian Monte Carlo with friction.


class SGHMC(DampedOptimizer):
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
    _KEYS = (_RATE, _DECAY)

    @classmethod
    def from_learning_rate(
        cls,
        params: Iterable,
        learning_rate: float,
        momentum_decay: float,
        gradient_noise: float | str = 0.0,
        **common: Unpack[Common],
    ) -> "SGHMC":
        """Return a sampler in the terms of SGD with momentum (Eq. 15).

            v ← v − η ∇Ũ(θ) − α v + N(0, 2η(τα − β̂)),  β̂ = ½η V̂
            θ ← θ + v

        Here η = ε²M⁻¹ and α = εM⁻¹C; the mass is 1. `torch.optim.SGD(lr, momentum=μ)` on a mean
        loss has η = lr/N and α = 1 − μ. Schedulers move η, and leave α as it is.
        """
        sampler = cls.__new__(cls)
        decay = number(momentum_decay, "momentum_decay")
        settings = {"friction": None, _DECAY: decay, "mass": 1.0, "gradient_noise": gradient_noise}
        rate = number(learning_rate, "learning_rate", positive=True)
        Sampler.__init__(sampler, params, rate, settings, **common)
        return sampler

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with ε and C or, in the terms of SGD, with η and α."""
        group = dict(param_group)
        own = self.defaults
        is_physical = "step_size" in group or group.get("friction") is not None
        of_sgd = {_RATE, _DECAY} & group.keys()
        if is_physical and of_sgd:
            raise TypeError(
                f"A parameter group has step_size or friction, and {' and '.join(sorted(of_sgd))}: "
                f"give one pair, ε and C or η and α."
            )
        mass = number(group.get("mass", own["mass"]), "mass", positive=True)
        if of_sgd and own.get(_DECAY) is None:
            epsilon = own["lr"]
            group.setdefault(_RATE, epsilon**2 / mass)
            group.setdefault(_DECAY, epsilon * own["friction"] / mass)
        elif is_physical and own.get(_DECAY) is not None:
            epsilon = (own["lr"] * mass) ** 0.5
            group.setdefault("step_size", group.pop("lr", epsilon))
            group.setdefault("friction", own[_DECAY] * mass / epsilon)
            group[_DECAY] = None
        if of_sgd:
            group["friction"] = None
        if _RATE in group:
            group["lr"] = number(group.pop(_RATE), _RATE, positive=True)
        super().add_param_group(group)

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        if group.get(_DECAY) is None:
            return group
        if group["friction"] is not None:
            raise ValueError(
                "A parameter group has friction and momentum_decay: set that to None which the "
                "sampler was not made of."
            )
        epsilon = (group["lr"] * group["mass"]) ** 0.5
        decay = number(group[_DECAY], _DECAY)
        # Where η is 0 nothing moves, momenta included.
        friction = decay * group["mass"] / epsilon if epsilon else 0.0
        return {**group, "lr": epsilon, "friction": friction}

    def _inertia(self, group: dict[str, Any]) -> float:
        """Return the share of its momentum that a step keeps."""
        return 1 - group["lr"] * group["friction"] / group["mass"]

    def _heat(self, group: dict[str, Any], piece: Piece) -> None:
        """Add noise to the momenta before the kick, which is then one pass with the drift."""
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


# SGHMC by a splitting: the friction solved exactly, between two halves of the drift.


class BAOAB(DampedOptimizer):
    """SGHMC by the splitting kick, half drift, friction, half drift: unbiased on a Gaussian.

        r ← r − ε ∇Ũ(θ)                                       (B, a half and a half)
        θ ← θ + ½ε M⁻¹ r                                      (A)
        r ← e^{−x} r + N(0, τM(1 − e^{−2x}) − ε² e^{−x} V̂)    (O, exact),  x = εC/M
        θ ← θ + ½ε M⁻¹ r                                      (A, the new r)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size`, `friction`, `mass` | ε, C, M | as in `SGHMC` |
    | `gradient_noise`, `temperature` | V̂, τ | as in `SGHMC` |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    Law: that of `sghmc.BAOAB`, covariance τA⁻¹ on U = ½θᵀAθ with an exact gradient, for every step
    size; stable for M > ¼ε²A at every friction. Gradient noise that V̂ describes adds a bias of
    order ε³. Needs τC ≥ ½εV̂.

    Leimkuhler & Matthews, Applied Mathematics Research eXpress 2013. The correction is ours.

    >>> import torch
    >>> from sghmc.torch import BAOAB
    >>> theta = torch.zeros(3, requires_grad=True)
    >>> sampler = BAOAB([theta], 0.5, friction=1.0, num_data=1, prior=None, seed=0)
    >>> (theta**2).sum().backward()
    >>> sampler.step()
    """

    def _begin_step(self, group: dict[str, Any], piece: Piece) -> None:
        self._kick_and_drift(group, piece, 1.0, 0.5)

    def _heat(self, group: dict[str, Any], piece: Piece) -> None:
        momenta = piece.state[MOMENTUM]
        damping = group["lr"] * group["friction"] / group["mass"]
        torch._foreach_mul_(momenta, math.exp(-damping))
        heat = -group["temperature"] * group["mass"] * math.expm1(-2 * damping)
        inject(group, piece, momenta, heat, group["lr"] ** 2 * math.exp(-damping))

    def _finish(self, group: dict[str, Any], piece: Piece) -> None:
        self._drift(group, piece, 0.5)
