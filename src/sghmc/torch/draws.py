"""Stores of draws in memory or in memory-mapped files, and several chains as one module.

A draw is a dict of arrays by name, the same in every draw, whose first axis is that of chains.
"""

import copy
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from sghmc.core import files

_MANIFEST = "draws.json"

Draw = dict[str, np.ndarray]


class Memory:
    """A store that keeps draws in memory."""

    def __init__(self):
        self._draws: list[Draw] = []

    @property
    def num_draws(self) -> int:
        return len(self._draws)

    def append(self, draw: Draw) -> None:
        self._draws.append(draw)

    def arrays(self) -> Draw:
        """Return all draws; axes (draw, chain, …)."""
        names = self._draws[0] if self._draws else ()
        return {name: np.stack([draw[name] for draw in self._draws]) for name in names}

    def draw(self, number: int) -> Draw:
        """Return one draw; axes (chain, …)."""
        return self._draws[number]

    def keep(self, num_draws: int) -> None:
        """Forget the draws after the first `num_draws`."""
        if num_draws > self.num_draws:
            raise ValueError(f"There are {self.num_draws} draws, not {num_draws}.")
        del self._draws[num_draws:]


class Folder:
    """A store in a folder: a file of bytes for each array, draw after draw, and `draws.json`.

    The manifest says names, types and shapes; how many draws there are follows from the files'
    lengths, so that a run that was cut off leaves all draws that were whole.
    """

    def __init__(self, path: str | pathlib.Path):
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._is_whole = False
        self._arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        if (self.path / _MANIFEST).exists():
            saved = json.loads((self.path / _MANIFEST).read_text("utf-8"))
            self._arrays = {name: (dtype, tuple(shape)) for name, dtype, shape in saved}

    @property
    def num_draws(self) -> int:
        counts = [
            self._file(name).stat().st_size // max(1, self._num_bytes(name))
            for name in self._arrays
            if self._num_bytes(name)
        ]
        return min(counts, default=0)

    def append(self, draw: Draw) -> None:
        if not self._arrays:
            self._begin(draw)
        if not self._is_whole:
            # Some files may have a draw, or a part of one, that others have not: a run was cut off.
            self.keep(self.num_draws)
            self._is_whole = True
        for name, array in draw.items():
            if (array.dtype.str, array.shape) != self._arrays[name]:
                raise ValueError(
                    f"{name} is {array.dtype} of {array.shape}, where the draws in {self.path} "
                    f"are {self._arrays[name]}: a folder is for one model."
                )
            with open(self._file(name), "ab") as file:
                file.write(np.ascontiguousarray(array).tobytes())

    def _begin(self, draw: Draw) -> None:
        self._arrays = {name: (array.dtype.str, array.shape) for name, array in draw.items()}
        for name in draw:
            self._file(name).write_bytes(b"")
        saved = [[name, dtype, shape] for name, (dtype, shape) in self._arrays.items()]
        files.write(self.path / _MANIFEST, json.dumps(saved))

    def arrays(self) -> Draw:
        count = self.num_draws
        if not count:
            return {}
        return {
            name: np.memmap(self._file(name), dtype, "r", shape=(count, *shape))
            if self._num_bytes(name)
            else np.empty((count, *shape), dtype)
            for name, (dtype, shape) in self._arrays.items()
        }

    def draw(self, number: int) -> Draw:
        return {name: array[number] for name, array in self.arrays().items()}

    def keep(self, num_draws: int) -> None:
        if num_draws > self.num_draws:
            raise ValueError(f"{self.path} has {self.num_draws} draws, not {num_draws}.")
        for name in self._arrays:
            with open(self._file(name), "ab") as file:
                file.truncate(num_draws * self._num_bytes(name))

    def _file(self, name: str) -> pathlib.Path:
        return self.path / f"{list(self._arrays).index(name)}.bin"

    def _num_bytes(self, name: str) -> int:
        dtype, shape = self._arrays[name]
        return np.dtype(dtype).itemsize * int(np.prod(shape))


Store = Memory | Folder


# Several chains at once: networks of one shape, stacked, and run side by side by `vmap`.

_MARK = "_has_chain_axis"


class Chains(torch.nn.Module):
    """Several networks of one shape as one module: parameters have a leading axis of chains.

    `chains(x)` gives the outputs of all, axes (chain, row, …). The loss of a sampler's step is the
    *sum* over chains of each one's mean over the batch: so every chain has its own gradient. Noise
    differs in every entry, and so between chains.

    >>> import torch
    >>> from sghmc.torch import SGHMC, Chains, GaussianPrior
    >>> chains = Chains([torch.nn.Linear(3, 2) for _ in range(4)])
    >>> x, y = torch.ones(5, 3), torch.zeros(5, dtype=torch.long)
    >>> outputs = chains(x)
    >>> outputs.shape
    torch.Size([4, 5, 2])
    >>> loss = sum(torch.nn.functional.cross_entropy(each, y) for each in outputs)
    """

    def __init__(self, models: Sequence[torch.nn.Module]):
        super().__init__()
        if not models:
            raise ValueError("Chains needs one network or more.")
        self.aliases = _aliases(models[0])
        if any(_aliases(model) != self.aliases for model in models):
            raise ValueError("The networks of Chains differ in which weights they share.")
        params, buffers = torch.func.stack_module_state(list(models))
        self.num_chains = len(models)
        # Names of a module's members have no dots.
        self.names = {name.replace(".", "/"): name for name in (*params, *buffers)}
        for name, param in params.items():
            stacked = torch.nn.Parameter(param.detach(), param.requires_grad)
            self.register_parameter(name.replace(".", "/"), stacked)
        for name, buffer in buffers.items():
            self.register_buffer(name.replace(".", "/"), buffer)
        # Not a member: its own parameters are never used.
        self._template = [copy.deepcopy(models[0]).to("meta")]
        self._mark()

    def _mark(self) -> None:
        for param in self.parameters():
            setattr(param, _MARK, True)

    def __setstate__(self, state: Any) -> None:  # of a copy, whose parameters have no marks
        super().__setstate__(state)
        self._mark()

    @property
    def template(self) -> torch.nn.Module:
        """The network that all chains have in common, on the device "meta"."""
        return self._template[0]

    def train(self, mode: bool = True) -> "Chains":
        self.template.train(mode)
        return super().train(mode)

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        def one(params, buffers):
            return torch.func.functional_call(self.template, (params, buffers), inputs, named)

        params = self.with_aliases(
            {self.names[name]: param for name, param in self.named_parameters()}
        )
        buffers = {self.names[name]: buffer for name, buffer in self.named_buffers()}
        return torch.func.vmap(one, randomness="different")(params, buffers)

    def with_aliases(self, members: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return members of a network, with those that share a weight under all its names."""
        shared = {alias: members[name] for alias, name in self.aliases.items()}
        return members | shared

    def chain(self, number: int) -> dict[str, torch.Tensor]:
        """Return parameters and buffers of one chain, by their names in its network."""
        members = [*self.named_parameters(), *self.named_buffers()]
        return {self.names[name]: member.detach()[number] for name, member in members}


def _aliases(model: torch.nn.Module) -> dict[str, str]:
    """Return the further names of parameters and buffers that a network has under several."""
    first: dict[torch.Tensor, str] = {}
    found = {}
    for members in (model.named_parameters, model.named_buffers):
        for name, member in members(remove_duplicate=False):
            if first.setdefault(member, name) != name:
                found[name] = first[member]
    return found


def are_chains(params: Iterable[torch.Tensor]) -> bool:
    """Return whether parameters have a leading axis of chains."""
    return any(hasattr(param, _MARK) for param in params)
