"""Where the noise comes from: torch's generators, which `seed` alone determines.

An accelerator has one generator, a CPU eight: they run side by side, and the numbers are the same
however many threads there are. Small networks on a CPU have `blocks` of numbers for many steps.

Ranks that hold the same parameters draw the same numbers (DDP: equal seeds are enough). Where
parameters are sharded (`fully_shard`, tensor parallel: a `DTensor`), each shard has its own.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from sghmc.torch.blocks import Block

_CPU_STREAMS = 8
_Made = TypeVar("_Made", "Source", Block)


class Normals:
    """The sources of all devices and shards."""

    def __init__(self, seed: int):
        self.seed = seed
        self._sources: dict[str, Source | Block] = {}
        self._saved: dict[str, torch.Tensor] | None = None
        self._devices: list[torch.device] = []

    def source(self, tensor: torch.Tensor) -> "Source":
        """The one for such a tensor."""
        name, key = self._place(tensor)
        return self._named(name, key, functools.partial(Source, tensor.device))

    def block(self, tensor: torch.Tensor) -> Block:
        """The one for small networks of such tensors, on a CPU."""
        name, key = self._place(tensor)
        size = tensor.dtype.itemsize  # what tells single from double precision
        return self._named(f"{name}:{size}", (*key, size), functools.partial(Block, tensor.dtype))

    def generator(self) -> torch.Generator:
        """For numbers that all ranks have in common."""
        source = self._named("all", (0,), functools.partial(Source, torch.device("cpu")))
        return source.generators[0]

    def _place(self, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
        """The name of a device and shard, and what makes seeds of its own."""
        # Not by the device's own number, which differs between ranks of one DDP.
        if tensor.device not in self._devices:
            self._devices.append(tensor.device)
        key = (self._devices.index(tensor.device), *shard(tensor))
        return ":".join([tensor.device.type, *map(str, key)]), (len(key), *key)

    def state_dict(self) -> dict[str, torch.Tensor]:
        loaded = self._saved or {}  # what was not needed since
        return loaded | {name: source.state() for name, source in self._sources.items()}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        self._sources.clear()
        self._saved = dict(saved)

    def _named(
        self, name: str, key: tuple[int, ...], make: Callable[[np.random.SeedSequence], _Made]
    ) -> _Made:
        if name not in self._sources:
            source = make(np.random.SeedSequence(self.seed, spawn_key=key))
            if self._saved is not None:
                source.load_state(self._loaded(name))
            self._sources[name] = source
        return self._sources[name]  # pyright: ignore[reportReturnType]

    def _loaded(self, name: str) -> torch.Tensor:
        assert self._saved is not None
        if name not in self._saved:
            raise ValueError(
                f"The state that was loaded has noise for {sorted(self._saved)}, not for {name}: a "
                f"run goes on, bit for bit, on such devices and shards as it began on."
            )
        return self._saved.pop(name)


class Source:
    """The generators of a device, each with a buffer for the numbers that it makes."""

    def __init__(self, device: torch.device, seeds: np.random.SeedSequence):
        count = _CPU_STREAMS if device.type == "cpu" else 1
        self.generators = [torch.Generator(device) for _ in range(count)]
        for generator, seed in zip(self.generators, seeds.spawn(count), strict=True):
            generator.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def buffer(self, number: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """A vector that a generator may fill, which others it was asked for may overlap."""
        key = (number, dtype)
        if key not in self._buffers or self._buffers[key].numel() < size:
            device = self.generators[number].device
            self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return self._buffers[key][:size]

    def state(self) -> torch.Tensor:
        return torch.stack([generator.get_state() for generator in self.generators])

    def load_state(self, state: torch.Tensor) -> None:
        for generator, row in zip(self.generators, state.cpu(), strict=True):
            generator.set_state(row.clone())  # torch crashes on a view


def shard(tensor: torch.Tensor) -> tuple[int, ...]:
    """Which part of a sharded tensor this rank holds; () where it holds all of it."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return ()
    placements = enumerate(tensor.placements)  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(mesh.get_local_rank(axis) for axis, kind in placements if kind.is_shard())
