"""Arrays in mapped files: rows by their numbers."""

import contextlib
import math
import mmap
import os
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from sghmc.core.integers import check_fit, held_type
from sghmc.posterior.source import DataError

_MEMORY = pathlib.Path("/proc/meminfo")
"""Where Linux says how much there is."""


class File:
    """A file mapped for reading, and its size and time of change when it was opened."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        try:
            with open(path, "rb") as file:
                self.seen = _stamp(os.fstat(file.fileno()))
                self.size = self.seen[0]
                if self.size == 0:
                    raise DataError(f"{path} is empty.")
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from error

    @property
    def address(self) -> int:
        """Where in memory the file is mapped."""
        return np.frombuffer(self.map, np.uint8).ctypes.data

    def check(self) -> None:
        """Refuse a file that shrank, which would end the process, or whose rows may differ."""
        try:
            now = _stamp(os.stat(self.path))
        except OSError as error:
            raise DataError(f"{self.path} is gone: {error.strerror}.") from error
        if now != self.seen:
            raise DataError(
                f"{self.path} has changed since it was opened ({self.seen[0]} bytes then, {now[0]} "
                f"now): keep files as they are while they are in use."
            )

    def release(self, start: int, stop: int) -> None:
        """Give the pages of these bytes back to the system's cache."""
        first = start - start % mmap.PAGESIZE
        self.advise("MADV_DONTNEED", first, stop - first)

    def advise(self, advice: str, *part: int) -> None:
        # Not on all systems; nothing depends on it but memory and speed.
        with contextlib.suppress(AttributeError, OSError):
            self.map.madvise(getattr(mmap, advice), *part)


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


class MappedArray:
    """An array cut into pieces along its rows, each a view of a mapped file.

    With `gives_back`, pages that were read are given back to the system.
    """

    gives_back = False

    def __init__(self, name: str, pieces: Sequence[tuple[File, np.ndarray]]):
        self.name = name
        self.files, self.pieces = zip(*pieces, strict=True)
        self.ends = np.cumsum([len(piece) for piece in self.pieces])
        self.num_rows = int(self.ends[-1])
        self.shape, self.dtype = self.pieces[0].shape[1:], self.pieces[0].dtype
        self.example = jax.ShapeDtypeStruct(self.shape, held_type(self.dtype))

    def read(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Put rows, by their numbers, into an array of rows.

        Of an array in several pieces the numbers must increase.
        """
        for i, inside, into in self._cut(numbers, rows):
            if into.dtype == self.dtype:
                # Numbers are in bounds; with this mode numpy writes to `into` directly.
                self.pieces[i].take(inside, 0, out=into, mode="clip")
            else:
                taken = self.pieces[i].take(inside, 0)
                check_fit(taken, into.dtype, f"{self.name}: rows", DataError)
                into[...] = taken
            if self.gives_back:
                start, size = self._place(i)
                first, last = inside.min(), inside.max()
                self.files[i].release(start + size * first, start + size * (last + 1))

    def _place(self, i: int) -> tuple[int, int]:
        """Where in its file a piece begins, and the bytes of a row."""
        size = self.dtype.itemsize * math.prod(self.shape)
        return self.pieces[i].ctypes.data - self.files[i].address, size

    def _cut(
        self, numbers: np.ndarray, rows: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Which pieces these rows lie in: which, their numbers in it, and where they go."""
        first = 0
        for i, stop in enumerate(np.searchsorted(numbers, self.ends)):
            if stop > first:
                start = self.ends[i] - len(self.pieces[i])
                yield i, numbers[first:stop].astype(np.int64) - start, rows[first:stop]
            first = stop


def available_memory() -> int:
    """Bytes that the system's cache could hold; 0 where it does not say."""
    with contextlib.suppress(OSError, StopIteration):
        lines = _MEMORY.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    return 0


def check_dtype(name: object, dtype: np.dtype) -> None:
    if dtype.kind not in "fiubc":
        raise DataError(f"{name} must hold numbers, but holds {dtype}.")
