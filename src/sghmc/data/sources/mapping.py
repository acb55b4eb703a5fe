"""Arrays in mapped files: rows by their numbers, whichever way is the quickest."""

import contextlib
import math
import mmap
import os
import pathlib
import weakref
from collections.abc import Callable, Sequence

import jax
import numpy as np

from sghmc.data.sources import scattered
from sghmc.posterior.source import DataError

_FADING = 0.995


class File:
    """A file mapped for reading, and its size and time of change when it was opened."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        try:
            self.file = open(path, "rb")  # noqa: SIM115 - open as long as it may be read
            weakref.finalize(self, self.file.close)
            self.seen = _stamp(os.fstat(self.file.fileno()))
            self.size = self.seen[0]
            if self.size == 0:
                raise DataError(f"{path} is empty.")
            self.map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from error

    @property
    def address(self) -> int:
        """Where in memory the file is mapped."""
        return np.frombuffer(self.map, np.uint8).ctypes.data

    def check(self) -> None:
        """A file that shrank would end the process, one that changed its rows spoil the run."""
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


class Column:
    """An array cut into pieces along its rows, each a view of a mapped file."""

    def __init__(self, name: str, pieces: Sequence[tuple[File, np.ndarray]]):
        self.name = name
        self.files, self.pieces = zip(*pieces, strict=True)
        self.ends = np.cumsum([len(piece) for piece in self.pieces])
        self.num_rows = int(self.ends[-1])
        self.shape = self.pieces[0].shape[1:]
        self.dtype, self.gives_back = self.pieces[0].dtype, False
        canonical = jax.dtypes.canonicalize_dtype(self.dtype.newbyteorder("="))
        self.example = jax.ShapeDtypeStruct(self.shape, canonical)

    def read(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Rows by their numbers, to an array; their pages are given back where asked for.

        Of an array in several pieces the numbers must increase.
        """
        for i, inside, into in self._cut(numbers, rows):
            if into.dtype == self.dtype:
                # Numbers are in bounds; with this mode numpy writes to `into` directly.
                self.pieces[i].take(inside, 0, out=into, mode="clip")
            else:
                into[...] = self.pieces[i].take(inside, 0)
            if self.gives_back:
                start, size = self._place(i)
                first, last = inside.min(), inside.max()
                self.files[i].release(start + size * first, start + size * (last + 1))

    def read_scattered(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """The same past the mapped pages."""
        reads = scattered.available()
        assert reads is not None
        raw = rows if rows.dtype == self.dtype else np.empty(rows.shape, self.dtype)
        for i, inside, into in self._cut(numbers, raw):
            file, (start, size) = self.files[i], self._place(i)
            places = into.ctypes.data + size * np.arange(len(into))
            try:
                reads.read(file.file.fileno(), start + size * inside, places, size)
            except OSError as error:
                raise DataError(f"{file.path} cannot be read: {error}.") from error
        if raw is not rows:
            rows[...] = raw

    def _place(self, i: int) -> tuple[int, int]:
        """Where in its file a piece begins, and the bytes of a row."""
        size = self.dtype.itemsize * math.prod(self.shape)
        return self.pieces[i].ctypes.data - self.files[i].address, size

    def _cut(self, numbers: np.ndarray, rows: np.ndarray):
        """Which pieces these rows lie in: which, their numbers in it, and where they go."""
        first = 0
        for i, stop in enumerate(np.searchsorted(numbers, self.ends)):
            if stop > first:
                start = self.ends[i] - len(self.pieces[i])
                yield i, numbers[first:stop].astype(np.int64) - start, rows[first:stop]
            first = stop


Way = Callable[[Column, np.ndarray, np.ndarray], None]


class Ways:
    """Ways to read rows that lie far apart, and what a row took when each was last taken.

    To map a row's page costs little where the system's cache has large pages, and elsewhere more
    than to read past the mapping. What was noted fades, so that all are tried anew in the end.
    """

    def __init__(self, *ways: Way):
        self.seconds = dict.fromkeys(ways, 0.0)

    @property
    def quickest(self) -> Way:
        return min(self.seconds, key=self.seconds.__getitem__)

    def note(self, way: Way, seconds: float) -> None:
        self.seconds = {each: _FADING * before for each, before in self.seconds.items()}
        self.seconds[way] = seconds


def available_memory() -> int:
    """Bytes that the system's cache could hold; 0 where it does not say."""
    with contextlib.suppress(OSError, StopIteration):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    return 0


def check_dtype(name: object, dtype: np.dtype) -> None:
    if dtype.kind not in "fiubc":
        raise DataError(f"{name} must hold numbers, but holds {dtype}.")
