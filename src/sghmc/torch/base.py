"""Base of all samplers of `sghmc.torch`: an optimizer whose iterates are a Markov chain."""

# pyright: reportPrivateImportUsage=false

import abc
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NotRequired, TypedDict

import torch

from sghmc.torch import gradients as losses
from sghmc.torch import pieces, priors
from sghmc.torch.gradients import VARIANCE, FiniteCheck, Microbatches, is_estimated
from sghmc.torch.normals import Normals
from sghmc.torch.pieces import Piece, StepPlan
from sghmc.torch.settings import (
    POSITION,
    REQUIRED,
    check_keys,
    check_no_new_keys,
    check_parameters,
    check_seeds,
    check_state_of,
    follow_changes,
    follow_format,
    given,
    gradients,
    half_precision,
    moving,
    number,
    whole_number,
)
from sghmc.torch.state import StatefulOptimizer

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
_MAX_PLANS = 64


class Common(TypedDict):
    """Arguments of every sampler, by name; all but the temperature must be given."""

    temperature: NotRequired[float]
    num_data: Any
    prior: Any
    seed: Any


class Sampler(StatefulOptimizer, abc.ABC):
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
        self._are_seeds_checked = False
        self._finite = FiniteCheck()
        self._microbatches = Microbatches()
        self._priors = priors.Copies()
        self._plans: dict[tuple[int, ...], StepPlan] = {}
        self._given: list[dict[str, Any]] = []
        common = {"temperature": temperature, "prior": given(prior, "prior", _PRIOR)}
        super().__init__(params, {"lr": step_size, **settings, **common})

    @abc.abstractmethod
    def _check(self, group: dict[str, Any]) -> None:
        """Refuse settings that no chain can have."""

    @abc.abstractmethod
    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step, as zeros."""

    def _start(self, group: dict[str, Any], piece: Piece) -> None:
        """Set fresh states to the values at which a chain begins, in place."""

    @abc.abstractmethod
    def _move_all(self, group: dict[str, Any], plan: StepPlan) -> None:
        """Make one step of positions and states, in place."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        param_group = dict(param_group)
        if "step_size" in param_group:
            param_group["lr"] = param_group.pop("step_size")
        check_keys(type(self).__name__, param_group, {*self.defaults, *self._KEYS})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        number(group["lr"], "step_size", positive=True)
        self._check_group(group)
        self._remember(group)
        group["prior"] = self._priors.own(group["prior"])
        for param in group["params"]:
            check_parameters(param)
            if is_estimated(group):
                self._microbatches.watch(param)

    def _check_group(self, group: dict[str, Any]) -> dict[str, Any]:
        """Check the settings of a group, and return them."""
        check_no_new_keys(group)
        number(group["lr"], "step_size")
        number(group["temperature"], "temperature")
        settings = self._settings(group)
        self._check(settings)
        return settings

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """Move by the gradients that the parameters have, or that `closure` gives them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            losses.check_loss(loss, self.num_data)
        elif self._is_asked_for_states():
            for group in self.param_groups:
                self._planned(group, moving(group))
            return None
        self._advance()
        return loss

    def _forget(self) -> None:
        self._plans.clear()
        self._are_seeds_checked = False

    @torch._disable_dynamo  # a step is fused already, and tracing it takes minutes
    def _advance(self) -> None:
        """Make one step of all groups; where something is wrong, of none."""
        groups = [(g, params) for g in self.param_groups if (params := moving(g))]
        if not groups:
            raise ValueError("All parameters are frozen: a step needs one that requires_grad_().")
        grads = [gradients(group, params) for group, params in groups]
        self._finite.check([grad for each in grads for grad in each], self.num_steps)
        if not self._are_seeds_checked:
            check_seeds((p for _, params in groups for p in params), self.normals.seed)
            self._are_seeds_checked = True
        settings = [self._check_group(group) for group, _ in groups]
        for group, params in groups:
            if is_estimated(group):
                self._microbatches.check(params)
        plans = [self._planned(group, params) for group, params in groups]
        for (group, params), plan, of_loss in zip(groups, plans, grads, strict=True):
            plan.hand_out(of_loss, priors.gradient(self._positions, params, group["prior"]))
        for (group, params), its_settings, plan in zip(groups, settings, plans, strict=True):
            self._move_all(its_settings, plan)
            plan.forget()
            if is_estimated(group):
                states = [self.state[param] for param in params]
                self._microbatches.update(group, params, states, self.num_data)
            for param in half_precision(params):
                param.copy_(self.state[param][POSITION])
        self.num_steps += 1

    def _planned(self, group: dict[str, Any], params: list[torch.Tensor]) -> StepPlan:
        """Return the parameters in pieces, the same in every step; new ones are started."""
        # A plan holds on to memory, so that no other parameter can be there.
        key = tuple([pieces.local(param).data_ptr() for param in params])
        if key not in self._plans:
            new = [param for param in params if param not in self.state]
            for param in new:
                self._begin(group, param)
            for param in params:
                check_state_of(param, self.state[param])
                if follow_format(param, self.state[param]):
                    self._plans.clear()
            if new:
                self._cut(new).run(functools.partial(self._start, group))
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = self._cut(params)
        for param in half_precision(params):
            follow_changes(param, self.state[param][POSITION])
        return self._plans[key]

    def _begin(self, group: dict[str, Any], param: torch.Tensor) -> None:
        position, state = param.detach(), self.state[param]
        if half_precision([param]):
            state[POSITION] = position = position.float()
        state |= self._fresh(group, position)
        if is_estimated(group):
            state[VARIANCE] = torch.zeros_like(position)

    def _cut(self, params: list[torch.Tensor]) -> StepPlan:
        positions = [position.detach() for position in self._positions(params)]
        states = [self.state[param] for param in params]
        return pieces.cut(positions, states, self.normals)

    def _positions(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return parameters or, for half precision, their copies in single precision."""
        return [self.state.get(param, {}).get(POSITION, param) for param in params]

    @torch.no_grad()
    def potential(self, loss: Any) -> float:
        """Return Ũ(θ), up to a constant, from the mean loss of a batch."""
        losses.check_loss(loss, self.num_data)
        total = self.num_data * float(loss)
        for group in self.param_groups:
            positions = self._positions(moving(group))
            if group["prior"] is not None and positions:
                total -= float(group["prior"](positions))
        return total

    def kinetic_temperature(self) -> float | None:
        """Return an estimate of the temperature from the momenta, or None without momenta."""
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
            middle = [self._middle(self._settings(group), moving(group)) for group in groups]
            positions = [position for each in middle for position in each]
            groups[0]["prior"].draw(positions, groups[0]["temperature"], self.normals.generator())

    def _middle(self, group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the positions at which position and momentum are independent."""
        return self._positions(params)


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of accelerate, Lightning and the like."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def unwrapped_model(model: Any) -> Any:
    """Return the module inside `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    parallel = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while hasattr(model, "_orig_mod") or isinstance(model, parallel):
        model = model.module if isinstance(model, parallel) else model._orig_mod
    return model


# Cyclical step sizes for any sampler: large steps find modes, small ones sample them.

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
