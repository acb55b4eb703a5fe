"""Call a model with the draws of a run, one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sghmc.torch.draws import Chains, Store

BUFFER, STATISTIC = "buffer/", "statistic/"
"""Prefixes of the names of stored arrays that are no parameters."""


def positions(model: torch.nn.Module, stores: Sequence[Store]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the parameters and buffers of every draw of every chain."""
    device = next(model.parameters()).device
    for store in stores:
        for number in range(store.num_draws):
            arrays = store.draw(number)
            arrays = {n: a for n, a in arrays.items() if not n.startswith(STATISTIC)}
            for chain in range(next(iter(arrays.values())).shape[0]):
                kept = {
                    name.removeprefix(BUFFER): torch.from_numpy(np.array(each[chain])).to(device)
                    for name, each in arrays.items()
                }
                if isinstance(model, Chains):
                    kept = model.with_aliases(model.chain(chain) | kept)
                yield kept


def apply(model: torch.nn.Module, draw: dict[str, torch.Tensor], inputs: Any) -> Any:
    module = model.template if isinstance(model, Chains) else model
    device = next(iter(draw.values())).device
    if isinstance(inputs, Mapping):
        named = {name: _moved(value, device) for name, value in inputs.items()}
        return torch.func.functional_call(module, draw, (), named)
    return torch.func.functional_call(module, draw, (_moved(inputs, device),))


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
