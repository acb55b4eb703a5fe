"""Checks of settings and parameters that a user gives; errors name the value and the remedy."""

import gc
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def number(value, name: str, *, positive: bool = False) -> float:
    """Return a setting as a float, or refuse it."""
    try:
        given = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}.") from None
    wanted = "positive" if positive else "zero or more"
    if not math.isfinite(given) or given < 0 or (positive and given == 0):
        raise ValueError(f"{name} must be {wanted} and finite, but is {given:g}.")
    return given


def given(value, name: str, remedy: str):
    """Return a value that must be given: nothing is assumed of it."""
    if value is REQUIRED:
        raise TypeError(f"{name} is missing: {remedy}")
    return value


class _Required:
    def __repr__(self) -> str:
        return "…"


REQUIRED = _Required()
"""Default of arguments that must be given."""


def whole_number(value, name: str, *, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, but is {value!r}.")
    return int(value)


def check_decay(decay: float, limit: float) -> None:
    if decay >= limit:
        raise ValueError(
            f"The momentum decay εC/M reaches {decay:g}, but every chain diverges from {limit:g} "
            f"on, whatever the target: take a smaller step_size or friction (1 is SGLD), or BAOAB."
        )


_MEAN_LOSS = "SGHMC.from_learning_rate(params, η, momentum_decay=α) takes SGD's settings: η = lr/N"
NOT_HERE = {
    "lr": f"give step_size=ε, or {_MEAN_LOSS}, where N is num_data.",
    "learning_rate": f"give step_size=ε, or {_MEAN_LOSS}, where N is num_data.",
    "momentum": f"{_MEAN_LOSS}, α = 1 − momentum.",
    "momentum_decay": f"give friction=C, or {_MEAN_LOSS}, α = 1 − momentum.",
    "weight_decay": "it is a prior. A weight decay of w beside a mean loss over N rows is "
    "prior=GaussianPrior(w * N).",
    **dict.fromkeys(
        ("betas", "eps", "dampening", "nesterov", "maximize", "foreach", "fused"),
        "it belongs to an optimizer, and has no meaning in a sampler. Leave it out.",
    ),
}
"""Arguments of torch's optimizers that no sampler has, and what to give in their place."""
_OF_SAMPLER = "it is the sampler's, for all groups alike: give it as an argument."
_TORCH_KEYS = ("params", "param_names", "lr", "name", "initial_lr")
_NEVER_KEYS = NOT_HERE.keys() - {"lr", "momentum_decay"} | {"step_size", "seed", "num_data"}
"""Keys that no group has once its sampler is made, so that whoever sets one would be ignored."""


def check_no_new_keys(group: dict[str, Any]) -> None:
    """Refuse settings that a group was given in a run under a name that no step reads."""
    for key in _NEVER_KEYS & group.keys():
        raise TypeError(
            f"A parameter group was given {key!r} in a run, which no step reads: its step size is "
            f'group["lr"] (by from_learning_rate the learning rate), and its prior group["prior"].'
        )


def check_keys(sampler: str, group: dict[str, Any], keys: set[str]) -> None:
    """Refuse keys of a parameter group that would be ignored."""
    for key in group:
        if key in keys or key in _TORCH_KEYS:
            continue
        known = sorted((keys | {"step_size"}) - {"lr"})
        remedy = NOT_HERE.get(key, f"it takes {', '.join(known)}.")
        remedy = _OF_SAMPLER if key in ("seed", "num_data") else remedy
        raise TypeError(f"A parameter group has {key!r}, which {sampler} does not know: {remedy}")


# Which parameters a step moves, and what is wrong with those that it cannot move.

_HALF_TYPES = (torch.bfloat16, torch.float16)
POSITION = "position"
"""Key of the single-precision copy in the state of a half-precision parameter."""


def check_parameters(param: torch.Tensor) -> None:
    """Refuse a parameter that no sampler can move."""
    shape = tuple(param.shape)
    if not param.is_floating_point():
        raise TypeError(f"A parameter of shape {shape} is {param.dtype}: samplers move real ones.")
    if param.is_meta:
        raise TypeError(
            f"A parameter of shape {shape} is on the device meta: build the sampler once the model "
            f"has its weights."
        )
    if getattr(param, "_fsdp_flattened", False):
        raise TypeError(
            f"A parameter of shape {shape} is a shard of FullyShardedDataParallel, which does not "
            f"say which one: use torch.distributed.fsdp.fully_shard, whose shards have their own "
            f"noise."
        )


def moving(group: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of a group that are not frozen."""
    return [param for param in group["params"] if param.requires_grad]


def half_precision(params: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters in half precision, of which a copy in single precision moves."""
    return [param for param in params if param.dtype in _HALF_TYPES]


def check_state_of(param: torch.Tensor, state: dict[str, Any]) -> None:
    """Refuse a parameter whose type or device has changed since its state was made."""
    is_low = param.dtype in _HALF_TYPES
    wanted = torch.float32 if is_low else param.dtype
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    for other in tensors:
        if other.shape != param.shape:
            raise ValueError(
                f"A parameter has shape {tuple(param.shape)}, but its state {tuple(other.shape)}: "
                f"load states into the model, and the order of groups, that they were saved from."
            )
    others = [each for each in tensors if (each.dtype, each.device) != (wanted, param.device)]
    if others or is_low != (POSITION in state):
        had = f"{others[0].dtype} on {others[0].device}" if others else "another type"
        raise TypeError(
            f"A parameter of shape {tuple(param.shape)} is {param.dtype} on {param.device}, but "
            f"its state is of {had}: call model.to() before the sampler's first step, and load "
            f"states into a model of the type that they were saved from."
        )


def follow_format(param: torch.Tensor, state: dict[str, Any]) -> bool:
    """Give a state the memory format of its parameter; return whether it had another one."""
    others = {
        name: torch.empty_like(param, dtype=value.dtype).copy_(value)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.stride() != param.stride()
    }
    state |= others
    return bool(others)


def follow_changes(param: torch.Tensor, position: torch.Tensor) -> None:
    """Let the precise copy of a parameter follow what was loaded into it, or zeroed, since."""
    is_kept = position.to(param.dtype) == param
    position.copy_(torch.where(is_kept, position, param.to(position.dtype)))


def gradients(group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of parameters that move; all must have one."""
    found = [param.grad for param in params]
    for param, grad in zip(params, found, strict=True):
        if grad is None:
            others = sum(each is None for each in found) - 1
            raise ValueError(
                f"{_name(group, param)} has no gradient, nor have {others} others of its group: "
                f"call loss.backward() before step(), and leave out what the loss does not depend "
                f"on, or freeze it by requires_grad_(False)."
            )
        if grad.layout != torch.strided:
            raise TypeError(
                f"{_name(group, param)} has a sparse gradient, but noise and prior move every "
                f"entry: take sparse=False."
            )
    return found  # pyright: ignore[reportReturnType]


def _name(group: dict[str, Any], param: torch.Tensor) -> str:
    """Return words for a parameter: its name where the sampler was given named_parameters()."""
    place = next(i for i, other in enumerate(group["params"]) if other is param)
    name = group["param_names"][place] if "param_names" in group else f"number {place} of its group"
    return f"The parameter {name}, of shape {tuple(param.shape)},"


# Processes that hold the same parameters must have the same seed: else they drift apart.


def check_seeds(params: Iterable[torch.Tensor], seed: int) -> None:
    """Refuse seeds that differ between the ranks of one DDP, or of one device mesh."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    params = list(params)
    for group in _process_groups(params):
        # Largest and smallest of all ranks, in one collective; 62 bits, so that −seed is a number.
        own = seed % (1 << 62)
        extremes = torch.tensor([own, -own], device=params[0].device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
        if extremes[0] != -extremes[1]:
            raise ValueError(
                f"Ranks that hold the same parameters have different seeds, {seed} here: their "
                f"noise would differ, and the replicas drift apart. Give all the same seed."
            )


def _process_groups(params: list[torch.Tensor]) -> list[Any]:
    """Return the process groups whose ranks move these parameters together."""
    meshes = {id(mesh): mesh for p in params if (mesh := getattr(p, "device_mesh", None))}
    found = [mesh.get_group(axis) for mesh in meshes.values() for axis in range(mesh.ndim)]
    if not found:
        # DDP leaves no mark on parameters. Its modules are found once a run, among all objects.
        known = {id(param) for param in params}
        ddp = torch.nn.parallel.DistributedDataParallel
        for each in gc.get_objects():
            if issubclass(type(each), ddp) and any(id(p) in known for p in each.parameters()):
                return [each.process_group]
    return found
