"""Which parameters a step moves, and what is wrong with those that it cannot move."""

from typing import Any

import torch

_FEW_DIGITS = (torch.bfloat16, torch.float16)


def check(param: torch.Tensor) -> None:
    """Refuse a parameter that no sampler can move."""
    shape = tuple(param.shape)
    if not param.is_floating_point():
        raise TypeError(f"A parameter of shape {shape} is {param.dtype}: samplers move real ones.")
    if getattr(param, "_fsdp_flattened", False):
        raise TypeError(
            f"A parameter of shape {shape} is a shard of FullyShardedDataParallel, which does not "
            f"say which one: use torch.distributed.fsdp.fully_shard, whose shards have their own "
            f"noise."
        )


def moving(group: dict[str, Any]) -> list[torch.Tensor]:
    """The parameters of a group that are not frozen."""
    return [param for param in group["params"] if param.requires_grad]


def of_few_digits(params: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those whose last digits are larger than steps: a copy with more of them moves."""
    return [param for param in params if param.dtype in _FEW_DIGITS]


def gradients(group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of parameters that move; all must have one."""
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
    """How a user knows a parameter: by name where the sampler was given named_parameters()."""
    place = next(i for i, other in enumerate(group["params"]) if other is param)
    name = group["param_names"][place] if "param_names" in group else f"number {place} of its group"
    return f"The parameter {name}, of shape {tuple(param.shape)},"
