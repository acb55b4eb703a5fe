"""Where draws gather: in memory, or in a folder, from which they are memory-mapped.

A draw is a dict of arrays by name, the same in every draw, whose first axis is that of chains.
"""

import json
import pathlib
from typing import Protocol

import numpy as np

_MANIFEST = "draws.json"

Draw = dict[str, np.ndarray]


class Store(Protocol):
    @property
    def num_draws(self) -> int: ...

    def append(self, draw: Draw) -> None: ...

    def arrays(self) -> Draw:
        """All draws; axes (draw, chain, …)."""
        ...

    def keep(self, num_draws: int) -> None:
        """Forget the draws after the first `num_draws`."""
        ...


class Memory:
    """Draws in memory."""

    def __init__(self):
        self._draws: list[Draw] = []

    @property
    def num_draws(self) -> int:
        return len(self._draws)

    def append(self, draw: Draw) -> None:
        self._draws.append(draw)

    def arrays(self) -> Draw:
        names = self._draws[0] if self._draws else ()
        return {name: np.stack([draw[name] for draw in self._draws]) for name in names}

    def keep(self, num_draws: int) -> None:
        if num_draws > self.num_draws:
            raise ValueError(f"There are {self.num_draws} draws, not {num_draws}.")
        del self._draws[num_draws:]


class Folder:
    """Draws in a folder: a file of bytes for each array, draw after draw, and `draws.json`.

    The manifest says names, types and shapes; how many draws there are follows from the files'
    lengths, so that a run that was cut off leaves all draws that were whole.
    """

    def __init__(self, path: str | pathlib.Path):
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
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
        (self.path / _MANIFEST).write_text(json.dumps(saved), encoding="utf-8")

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
