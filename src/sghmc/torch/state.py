"""State of a sampler, in a form that every saver of torch keeps.

Savers may drop all but `state` and `param_groups` (`torch.distributed.checkpoint` does), so what a
run needs besides is in the first group, under "run".
"""

from typing import Any

import torch

from sghmc.torch.normals import Normals
from sghmc.torch.priors import GaussianPrior, Prior
from sghmc.torch.settings import NOT_HERE

_RUN, _GIVEN = "run", "given"


class StatefulOptimizer(torch.optim.Optimizer):
    """An optimizer whose state has all that a run resumes from, bit for bit, its noise included."""

    num_data: int
    normals: Normals
    num_steps = 0
    _given: list[dict[str, Any]]
    """Settings of every group as they were given: schedulers and `gibbs` change the groups'."""

    _OPTIONS: tuple[str, ...] = ()
    """Attributes that must be equal where a state is loaded, besides the settings of groups."""
    _KEYS: tuple[str, ...] = ()
    """Keys that a parameter group may have, besides those with a default."""

    def __new__(cls, *args: Any, **given: Any):
        for name in sorted(NOT_HERE.keys() & given.keys()):
            raise TypeError(f"{cls.__name__} has no argument {name}: {NOT_HERE[name]}")
        return super().__new__(cls)

    def _is_asked_for_states(self) -> bool:
        """Return whether `torch.distributed.checkpoint` asks for states, by a step of size 0."""
        return not self.state and all(group["lr"] == 0 for group in self.param_groups)

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a group's settings with the step size ε as "lr"."""
        return group

    def _remember(self, group: dict[str, Any]) -> None:
        names = {*self.defaults, *self._KEYS} & group.keys() - {"prior"}
        found = {name: _plain(group[name]) for name in sorted(names)}
        self._given.append({**found, "prior's precision": _precision(group["prior"])})

    def _forget(self) -> None:
        """Forget what belongs to the state that was there before a load."""

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must agree with a state that is loaded."""
        return {
            "sampler": type(self).__name__,
            "options": {name: getattr(self, name) for name in self._OPTIONS},
            "num_data": self.num_data,
            "seed": self.normals.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers from which a run resumes bit for bit, the noise included.

        Of a prior there is the precision: functions are those of the sampler that is loaded into.
        """
        run = {"num_steps": self.num_steps, "noise": self.normals.state_dict()}
        packed = super().state_dict()
        groups = [
            {**group, "prior": _precision(group["prior"])} for group in packed["param_groups"]
        ]
        groups[0][_RUN] = self._identity() | run | {_GIVEN: self._given}
        return {**packed, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = [group["prior"] for group in self.param_groups]
        _check_state(state_dict, self._identity(), own)
        _check_given(state_dict["param_groups"][0][_RUN].get(_GIVEN, self._given), self._given)
        super().load_state_dict(state_dict)
        run = self.param_groups[0].pop(_RUN)
        for group, prior in zip(self.param_groups, own, strict=True):
            if isinstance(prior, GaussianPrior):
                prior.precision = group["prior"]
            group["prior"] = prior
        self._restore_precision(state_dict)
        self._forget()
        self.num_steps = run["num_steps"]
        self.normals.load_state_dict(run["noise"], self.num_steps)

    def _restore_precision(self, saved: dict[str, Any]) -> None:
        """Restore states in the precision that they had: torch gives them the parameters'."""
        for group, of_group in zip(self.param_groups, saved["param_groups"], strict=True):
            for param, name in zip(group["params"], of_group["params"], strict=True):
                for key, value in saved["state"].get(name, {}).items():
                    if isinstance(value, torch.Tensor):
                        self.state[param][key] = value.detach().to(param.device, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("A sampler is not copied or pickled: save its state_dict().")


def _check_state(saved: dict[str, Any], own: dict[str, Any], priors: list[Prior | None]) -> None:
    """Refuse a state that another sampler, or the same one with other arguments, has saved.

    `own` is the identity of the sampler that loads it.
    """
    run = saved["param_groups"][0].get(_RUN) if saved.get("param_groups") else None
    if run is None:
        raise ValueError(
            "This is no state of a sampler of sghmc.torch: its noise and num_data are missing. "
            "Load what such a sampler's state_dict() returned."
        )
    for name, remedy in _MUST_AGREE.items():
        if run[name] != own[name]:
            raise ValueError(
                f"The state was saved with {name}={run[name]!r}, but this sampler has "
                f"{name}={own[name]!r}: {remedy}"
            )
    for group, prior in zip(saved["param_groups"], priors, strict=False):
        if isinstance(prior, GaussianPrior) != (group["prior"] is not None):
            raise ValueError(f"The state that is loaded had another prior than {prior!r}.")


_MUST_AGREE = {
    "sampler": "load it into a sampler of the same class.",
    "options": "give the same ones.",
    "num_data": "another number of rows is another posterior. Give the same; to go on with more "
    "data, load the model's weights alone.",
    "seed": "the noise goes on where the state was saved. Give the same; for another chain from "
    "these weights, load the model's weights alone.",
}


def _check_given(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
    """Refuse settings that a load would silently replace by those of the state."""
    for number, (before, now) in enumerate(zip(saved, own, strict=False)):
        for name in now:
            if before.get(name) != now[name]:
                raise ValueError(
                    f"The state was saved by a sampler that was given {name}={before.get(name)!r} "
                    f"for parameter group {number}, but this one was given {now[name]!r}: give the "
                    f"same, and change param_groups after the load, if you mean to."
                )


def _plain(value: Any) -> Any:
    """Return a setting that may be a tensor or NumPy's as a number."""
    return value if value is None or isinstance(value, str) else float(value)


def _precision(prior: Prior | None) -> float | None:
    return prior.precision if isinstance(prior, GaussianPrior) else None
