"""The state of a sampler as tensors and numbers: a run resumes from it bit for bit."""

from typing import Any

import torch

from sghmc.torch.priors import GaussianPrior, Prior


def pack(packed: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """What torch packs of an optimizer, and what a `run` needs besides.

    Of a prior there is the precision: functions are those of the sampler that is loaded into.
    """
    groups = [{**group, "prior": _precision(group["prior"])} for group in packed["param_groups"]]
    return {**packed, "param_groups": groups, "run": run}


def check(saved: dict[str, Any], priors: list[Prior | None]) -> None:
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
