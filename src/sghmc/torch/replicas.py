"""Check that processes which hold the same parameters have the same seed: else they drift apart."""

import gc
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


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
