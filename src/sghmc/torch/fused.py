"""Kick and drift in one pass over the memory.

A step costs what it reads and writes. Torch's fused kernel of SGD with momentum reads gradients,
momenta and positions once, where operations one by one read momenta and positions three times.
"""

# pyright: reportPrivateImportUsage=false

import itertools

import torch

Tensors = list[torch.Tensor]


def kick_and_drift(
    positions: Tensors,
    momenta: Tensors,
    grads: Tensors,
    *,
    inertia: float,
    force: float,
    pull: float,
    drift: float,
    is_fused: bool,
) -> None:
    """r ← inertia · r + force · g + pull · θ, then θ ← θ + drift · r, in place.

    `is_fused` asks for one pass, where that can be.
    """
    if is_fused and _can_be_fused(force, positions, momenta, grads):
        # SGD's words: b ← momentum · b + (1 − dampening)(g + weight_decay · p), p ← p − lr · b.
        torch._fused_sgd_(
            positions,
            grads,
            momenta,
            weight_decay=pull / force,
            momentum=inertia,
            lr=-drift,
            dampening=1 - force,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return
    torch._foreach_mul_(momenta, inertia)
    if pull:
        torch._foreach_add_(momenta, positions, alpha=pull)
    torch._foreach_add_(momenta, grads, alpha=force)
    torch._foreach_add_(positions, momenta, alpha=drift)


def _can_be_fused(force: float, positions: Tensors, momenta: Tensors, grads: Tensors) -> bool:
    if torch.compiler.is_compiling():  # which knows no such kernel, and fuses by itself
        return False
    return _is_exact(force, positions[0].dtype) and _are_alike(positions, momenta, grads)


def _is_exact(force: float, dtype: torch.dtype) -> bool:
    """Whether 1 − dampening gives the force back, up to a few of the last digits."""
    return abs(1 - (1 - force) - force) <= 16 * torch.finfo(dtype).eps * abs(force) > 0


def _are_alike(*lists: Tensors) -> bool:
    """Whether numbers that belong together lie at the same places: the kernel does not ask."""
    dtype = lists[0][0].dtype
    return all(each.dtype == dtype and each.is_contiguous() for each in itertools.chain(*lists))
