"""Stochastic gradient Nosé–Hoover thermostats: friction that finds the gradient noise by itself."""

# pyright: reportPrivateImportUsage=false

from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack

import torch

from sghmc.torch import priors
from sghmc.torch.base import Common
from sghmc.torch.draws import are_chains
from sghmc.torch.pieces import Piece, StepPlan
from sghmc.torch.settings import moving, number
from sghmc.torch.sghmc import MOMENTUM, MomentumOptimizer

_THERMOSTAT, _VALUE = "thermostat", "thermostat_value"


class SGNHT(MomentumOptimizer):
    """Dynamics whose friction ξ rises while momenta are too hot and falls while they are too cold.

    Updates: those of `sghmc.SGNHT`, with a number for M.

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | what torch's schedulers move |
    | `friction` | A | what the injected noise would need, a rate, C/M in SGHMC's terms; ξ starts \
here |
    | `mass` | M | |
    | `temperature` | τ | samples exp(−U/τ) |
    | `thermostat` | ξ | "scalar": one for each parameter group; "diagonal": one for each \
parameter, by r_i²/M in place of rᵀM⁻¹r/d |
    | `thermostat_mass` | μ | how slowly ξ follows |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    Numbers may differ by parameter group.

    Law: that of `sghmc.SGNHT`; gradient noise need not be known.

    Ding, Fang, Babbush, Chen, Skeel & Neven, NeurIPS 2014; the splitting is that of Leimkuhler &
    Shang, SIAM Journal on Scientific Computing 2016.

    >>> import torch
    >>> from sghmc.torch import SGNHT
    >>> theta = torch.zeros(3, requires_grad=True)
    >>> sampler = SGNHT([theta], 0.1, friction=2.0, num_data=1, prior=None, seed=0)
    >>> for _ in range(2):
    ...     sampler.zero_grad()
    ...     (theta**2).sum().backward()
    ...     sampler.step()
    """

    _OPTIONS = ("thermostat",)

    def __init__(
        self, params: Iterable, step_size: float, friction: float = 1.0, mass: float = 1.0,
        thermostat: Literal["scalar", "diagonal"] = "scalar", thermostat_mass: float = 1.0,
        **common: Unpack[Common],
    ):  # fmt: skip
        if thermostat not in ("scalar", "diagonal"):
            raise ValueError(f'thermostat must be "scalar" or "diagonal", but is {thermostat!r}.')
        self.thermostat = thermostat
        settings = {"friction": friction, "mass": mass, "thermostat_mass": thermostat_mass}
        super().__init__(params, step_size, settings, **common)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self.thermostat == "scalar" and are_chains(self.param_groups[-1]["params"]):
            raise ValueError(
                'One thermostat would tie all chains together: give Chains thermostat="diagonal".'
            )

    def _check(self, group: dict[str, Any]) -> None:
        number(group["friction"], "friction")
        number(group["mass"], "mass", positive=True)
        number(group["thermostat_mass"], "thermostat_mass", positive=True)

    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        state = super()._fresh(group, position)
        if self.thermostat == "diagonal":
            state[_THERMOSTAT] = torch.full_like(position, group["friction"])
        elif _VALUE not in group:
            group[_VALUE] = torch.tensor(
                group["friction"], device=position.device, dtype=position.dtype
            )
        return state

    def _move_all(self, group: dict[str, Any], plan: StepPlan) -> None:
        """Make a step part by part: a thermostat sums over all pieces."""

        def each(part: Callable, *arguments: Any) -> None:
            plan.run(lambda piece: part(group, piece, *arguments))

        each(self._kick)
        each(self._drift, 0.5)
        self._follow(group, plan, 0.5)
        each(self._damp)
        self._follow(group, plan, 0.5)
        each(self._drift, 0.5)

    def _kick(self, group: dict[str, Any], piece: Piece) -> None:
        momenta, prior = piece.state[MOMENTUM], group["prior"]
        priors.add_gradient(momenta, piece, prior, -group["lr"], self.num_data)

    def _damp(self, group: dict[str, Any], piece: Piece) -> None:
        """Apply the exact solution of the friction, also where ξ is negative."""
        kept, share = [], []
        for xi in self._thermostats(group, piece):
            x = 2 * group["lr"] * xi
            kept.append(torch.exp(-x / 2))
            share.append(torch.where(x == 0, 1, -torch.expm1(-x) / torch.where(x == 0, 1, x)))
        self._slow(group, piece, kept, share)

    def _slow(self, group, piece: Piece, kept, share) -> None:
        """Multiply momenta by kept(ξ) and add N(0, 2ετA share(ξ) M)."""
        heat = 2 * group["lr"] * group["temperature"] * group["friction"] * group["mass"]
        scale = [(heat * each).sqrt() for each in share]
        momenta = piece.state[MOMENTUM]
        if self.thermostat == "diagonal":
            torch._foreach_mul_(momenta, kept)
            piece.add_noise(momenta, scale)
        else:
            torch._foreach_mul_(momenta, kept[0])
            piece.add_noise(momenta, scale[0])

    def _thermostats(self, group: dict[str, Any], piece: Piece) -> list[torch.Tensor]:
        """Return ξ of every parameter, or the one of all."""
        return piece.state[_THERMOSTAT] if self.thermostat == "diagonal" else [group[_VALUE]]

    def _follow(self, group: dict[str, Any], plan: StepPlan, fraction: float = 1.0) -> None:
        """Add fraction · ε (rᵀM⁻¹r/d − τ)/μ to ξ."""
        rate = fraction * group["lr"] / group["thermostat_mass"]
        cooling = -rate * group["temperature"]
        if self.thermostat == "diagonal":

            def warm(piece: Piece) -> None:
                momenta, thermostats = piece.state[MOMENTUM], piece.state[_THERMOSTAT]
                torch._foreach_addcmul_(thermostats, momenta, momenta, rate / group["mass"])
                torch._foreach_add_(thermostats, cooling)

            plan.run(warm)
            return
        momenta = [self.state[param][MOMENTUM] for param in moving(group)]
        count = sum(momentum.numel() for momentum in momenta)
        heat = priors.sum_of_squares(momenta) / (count * group["mass"])
        group[_VALUE].add_(heat, alpha=rate).add_(cooling)
