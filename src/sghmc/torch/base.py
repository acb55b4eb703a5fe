"""The state of a sampler as tensors and numbers: a run resumes from it bit for bit.

What every sampler is here: an optimizer whose iterates are the chain.
"""

import abc
import functools
from collections.abc import Callable, Iterable
from typing import Any, NotRequired, TypedDict

import torch

from sghmc.torch import gradients as losses
from sghmc.torch import pieces, priors
from sghmc.torch.gradients import VARIANCE, FiniteCheck, Microbatches, is_estimated
from sghmc.torch.normals import Normals
from sghmc.torch.pieces import Piece, Plan
from sghmc.torch.priors import GaussianPrior, Prior
from sghmc.torch.settings import (
    REQUIRED,
    check_parameters,
    given,
    gradients,
    moving,
    number,
    of_few_digits,
    whole_number,
)


def pack(packed: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """What torch packs of an optimizer, and what a `run` needs besides.

    Of a prior there is the precision: functions are those of the sampler that is loaded into.
    """
    groups = [{**group, "prior": _precision(group["prior"])} for group in packed["param_groups"]]
    return {**packed, "param_groups": groups, "run": run}


def check_state(saved: dict[str, Any], priors: list[Prior | None]) -> None:
    """Refuse what another sampler saved."""
    if "run" not in saved:
        raise ValueError("This is no state of a sampler: its noise is missing.")
    for group, prior in zip(saved["param_groups"], priors, strict=False):
        if isinstance(prior, GaussianPrior) != (group["prior"] is not None):
            raise ValueError(f"The state that is loaded had another prior than {prior!r}.")


def restore_priors(groups: list[dict[str, Any]], priors: list[Prior | None]) -> None:
    """The priors that groups had before a load, with the precisions that were loaded."""
    for group, prior in zip(groups, priors, strict=True):
        if isinstance(prior, GaussianPrior):
            prior.precision = group["prior"]
        group["prior"] = prior


def restore_states(
    state: dict[torch.Tensor, dict[str, Any]], groups: list[dict[str, Any]], saved: dict[str, Any]
) -> None:
    """The states in the precision that they had: torch gives them that of the parameters."""
    for group, of_group in zip(groups, saved["param_groups"], strict=True):
        for param, name in zip(group["params"], of_group["params"], strict=True):
            for key, value in saved["state"].get(name, {}).items():
                if isinstance(value, torch.Tensor):
                    state[param][key] = value.detach().to(param.device, copy=True)


def _precision(prior: Prior | None) -> float | None:
    return prior.precision if isinstance(prior, GaussianPrior) else None


# What every sampler is here: an optimizer whose iterates are the chain.

# pyright: reportPrivateImportUsage=false


_NUM_DATA = (
    "give num_data=N, the number of rows of the whole training set. The loss is a mean over a "
    "batch, and N times that is what the posterior needs."
)
_PRIOR = (
    "give prior=GaussianPrior(precision), a function of a group's parameters that returns their "
    "log density, or None for a flat prior."
)
_SEED = (
    "give seed=0, or any whole number. Equal seeds make equal noise: chains need different ones, "
    "the ranks of one DDP the same."
)
POSITION = "position"
_MOST_PLANS = 64


class Common(TypedDict):
    """What every sampler takes: by name, and all but the temperature must be given."""

    temperature: NotRequired[float]
    num_data: Any
    prior: Any
    seed: Any


class Sampler(torch.optim.Optimizer, abc.ABC):
    """Moves parameters by the gradients of a mean loss, so that they are draws of the posterior.

        U(θ) = −Σ log p(y_i | x_i, θ) − log p(θ),   ∇Ũ(θ) = N ∇loss(θ) − ∇ log p(θ)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `num_data` | N | rows of the whole training set; the loss is the *mean* over a batch |
    | `prior` | p(θ) | `GaussianPrior(λ)`, a function of a list of parameters that returns their \
log density, or None: flat |
    | `seed` | | of the noise: chains need different ones, the ranks of one DDP the same |
    | `temperature` | τ | samples exp(−U/τ) |

    The first three must be given. `prior` and all settings may be given by parameter group. Torch's
    schedulers move `group["lr"]`, which is the step size ε.

    Weights in half precision have a copy in single precision in the state, which is what moves:
    steps are smaller than their last digits.
    """

    def __init__(
        self, params: Iterable, step_size: float, settings: dict[str, Any], *,
        temperature: float = 1.0, num_data=REQUIRED, prior=REQUIRED, seed=REQUIRED,
    ):  # fmt: skip
        self.num_data = whole_number(given(num_data, "num_data", _NUM_DATA), "num_data", least=1)
        self.normals = Normals(whole_number(given(seed, "seed", _SEED), "seed", least=0))
        self.num_steps = 0
        self._finite = FiniteCheck()
        self._microbatches = Microbatches()
        self._priors = priors.Copies()
        self._plans: dict[tuple[int, ...], Plan] = {}
        common = {"temperature": temperature, "prior": given(prior, "prior", _PRIOR)}
        super().__init__(params, {"lr": step_size, **settings, **common})

    @abc.abstractmethod
    def _check(self, group: dict[str, Any]) -> None:
        """Refuse settings that cannot be."""

    @abc.abstractmethod
    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        """What belongs to a parameter before its first step, as zeros."""

    def _start(self, group: dict[str, Any], piece: Piece) -> None:
        """Bring what is fresh to where a chain begins, in place."""

    @abc.abstractmethod
    def _move_all(self, group: dict[str, Any], plan: Plan) -> None:
        """One step of positions and states, in place: most move each piece by itself."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if "step_size" in param_group:
            param_group = dict(param_group)
            param_group["lr"] = param_group.pop("step_size")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        number(group["lr"], "step_size", positive=True)
        self._check_group(group)
        group["prior"] = self._priors.own(group["prior"])
        for param in group["params"]:
            check_parameters(param)
            if is_estimated(group):
                self._microbatches.watch(param)

    def _check_group(self, group: dict[str, Any]) -> None:
        number(group["lr"], "step_size")
        number(group["temperature"], "temperature")
        self._check(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """Move by the gradients that the parameters have, or that `closure` gives them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            losses.check_loss(loss)
        self._advance()
        return loss

    def _advance(self) -> None:
        """One step of all groups; where something is wrong, of none."""
        groups = [(g, params) for g in self.param_groups if (params := moving(g))]
        grads = [gradients(group, params) for group, params in groups]
        self._finite.check([grad for each in grads for grad in each], self.num_steps)
        for group, params in groups:
            self._check_group(group)
            if is_estimated(group):
                self._microbatches.check(params)
        plans = [self._planned(group, params) for group, params in groups]
        for (group, params), plan, of_loss in zip(groups, plans, grads, strict=True):
            plan.hand_out(of_loss, priors.gradient(self._positions, params, group["prior"]))
        for (group, params), plan in zip(groups, plans, strict=True):
            self._move_all(group, plan)
            plan.forget()
            if is_estimated(group):
                states = [self.state[param] for param in params]
                self._microbatches.update(group, params, states, self.num_data)
            for param in of_few_digits(params):
                param.copy_(self.state[param][POSITION])
        self.num_steps += 1

    def _planned(self, group: dict[str, Any], params: list[torch.Tensor]) -> Plan:
        """Parameters in pieces, the same in every step; new ones are started."""
        # A plan holds on to memory, so that no other parameter can be there.
        key = tuple([pieces.local(param).data_ptr() for param in params])
        if key not in self._plans:
            new = [param for param in params if param not in self.state]
            for param in new:
                self._begin(group, param)
            if new:
                self._cut(new).run(functools.partial(self._start, group))
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = self._cut(params)
        return self._plans[key]

    def _begin(self, group: dict[str, Any], param: torch.Tensor) -> None:
        position, state = param.detach(), self.state[param]
        if of_few_digits([param]):
            state[POSITION] = position = position.float()
        state |= self._fresh(group, position)
        if is_estimated(group):
            state[VARIANCE] = torch.zeros_like(position)

    def _cut(self, params: list[torch.Tensor]) -> Plan:
        positions = [position.detach() for position in self._positions(params)]
        states = [self.state[param] for param in params]
        return pieces.cut(positions, states, self.normals)

    def _positions(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Parameters or, where they have few digits, the copies that have more."""
        return [self.state.get(param, {}).get(POSITION, param) for param in params]

    def _add_gradient(
        self, target: list[torch.Tensor], group: dict[str, Any], piece: Piece, factor: float
    ) -> None:
        """target ← target + factor · ∇Ũ(θ), in place; `target` may be θ itself."""
        prior = group["prior"]
        if piece.prior_grads is not None:
            torch._foreach_add_(target, piece.prior_grads, alpha=-factor)
        elif isinstance(prior, GaussianPrior) and prior.precision:
            torch._foreach_add_(target, piece.positions, alpha=factor * prior.precision)
        torch._foreach_add_(target, piece.grads, alpha=factor * self.num_data)

    @torch.no_grad()
    def potential(self, loss: Any) -> float:
        """Ũ(θ), up to a constant, from the mean loss of a batch."""
        losses.check_loss(loss)
        total = self.num_data * float(loss)
        for group in self.param_groups:
            positions = self._positions(moving(group))
            if group["prior"] is not None and positions:
                total -= float(group["prior"](positions))
        return total

    def kinetic_temperature(self) -> float | None:
        """An estimate of the temperature from the momenta; None where there are none."""
        return None

    def settle(self) -> None:
        """Wait for the checks of the last step, on devices that run ahead of the program."""
        self._finite.settle()

    @torch.no_grad()
    def gibbs(self) -> None:
        """Draw the precision of every `GaussianPrior` from its conditional, given the parameters.

        It looks half a drift back, where position and momentum are independent. Groups that were
        given the same prior share its precision.
        """
        if self.num_steps == 0:
            raise ValueError("gibbs() draws between steps: call it after the first one.")
        for groups in priors.sharing(self.param_groups):
            seen = [self._middle(group, moving(group)) for group in groups]
            positions = [position for each in seen for position in each]
            groups[0]["prior"].draw(positions, groups[0]["temperature"], self.normals.generator())

    def _middle(self, group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Where position and momentum are independent."""
        return self._positions(params)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers alone: what a run resumes from, bit for bit, the noise included."""
        run = {"num_steps": self.num_steps, "noise": self.normals.state_dict()}
        return pack(super().state_dict(), run)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = [group["prior"] for group in self.param_groups]
        check_state(state_dict, own)
        super().load_state_dict(state_dict)
        restore_priors(self.param_groups, own)
        restore_states(self.state, self.param_groups, state_dict)
        self._plans.clear()
        self.num_steps = state_dict["run"]["num_steps"]
        self.normals.load_state_dict(state_dict["run"]["noise"])

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("A sampler is not copied or pickled: save its state_dict().")
