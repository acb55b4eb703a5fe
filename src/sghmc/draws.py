"""Where a run's draws gather: in memory, or in files that grow by what is new."""

import concurrent.futures
import contextlib
import hashlib
import io
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from sghmc.diagnostics import path_name
from sghmc.types import PyTree

_CHUNK = 1 << 22
"""Bytes that a check reads at a time."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read or written, or belongs to another run."""


class DamagedError(Exception):
    """Files that are not what was written."""


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """Says what became of earlier work where a disk is full, or gone."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"Writing to {folder} failed: {error}. What was saved before is intact: make room and "
            f"call sample again with the same arguments, and it goes on from there."
        ) from error


class Store(Protocol):
    """A place for draws; all arrays here have axes (chain, draw, …)."""

    num_kept: int

    def append(self, rows: PyTree) -> None: ...

    def draws(self) -> PyTree: ...


class _Background:
    """A thread that does one thing at a time, while the caller goes on."""

    def __init__(self):
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "sghmc-draws")
        self._pending: concurrent.futures.Future | None = None

    def do(self, work: Callable, *arguments: Any) -> None:
        self.wait()  # so that no more than these arguments are held
        self._pending = self._thread.submit(work, *arguments)

    def wait(self) -> None:
        """Until all is done; raises what went wrong."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self._thread.shutdown()


class Memory:
    """Draws in memory, which is taken with the first; `nothing` is what no draws look like.

    They lie there in the order in which the loop has them: rows are copied, and not turned round,
    by a thread, while the next draws are made.
    """

    def __init__(self, nothing: PyTree, num_draws: int):
        self.num_kept, self.num_draws = 0, num_draws
        self._whole = nothing
        self._background = _Background()

    def append(self, rows: PyTree) -> None:
        if self.num_kept == 0:
            self._whole = jax.tree.map(self._room_for, rows)
        self._background.do(self._copy, rows, self.num_kept)
        self.num_kept += _length(rows)

    def _copy(self, rows: PyTree, first: int) -> None:
        stop = first + _length(rows)
        for whole, leaf in zip(*map(jax.tree.leaves, (self._whole, rows)), strict=True):
            whole[:, first:stop] = leaf

    def draws(self) -> PyTree:
        self._background.wait()
        return jax.tree.map(lambda whole: whole[:, : self.num_kept], self._whole)

    def _room_for(self, leaf: np.ndarray) -> np.ndarray:
        shape = (leaf.shape[0], self.num_draws, *leaf.shape[2:])
        outermost_first = sorted(range(leaf.ndim), key=lambda axis: -leaf.strides[axis])
        room = np.empty([shape[axis] for axis in outermost_first], leaf.dtype)
        return room.transpose(np.argsort(outermost_first))


class Files:
    """Draws in a folder, a `.npy` file for each array, memory-mapped when they are looked at.

    Files have axes (draw, chain, …) and the header of a whole run from the start. They are only
    ever appended to, by a thread, while the next draws are made; `extent` says what they hash to.
    """

    def __init__(self, folder: pathlib.Path, nothing: PyTree, num_draws: int):
        self.folder, self.num_draws = folder, num_draws
        leaves, self._treedef = jax.tree.flatten_with_path(nothing)
        self._columns = [
            _Column(folder / _file_name(i, path), leaf, num_draws)
            for i, (path, leaf) in enumerate(leaves)
        ]
        self._names = [path_name("", path) for path, _ in leaves]
        self.num_kept = 0
        self._background = _Background()

    def begin(self) -> None:
        with writing(self.folder):
            for column in self._columns:
                column.begin()

    def go_on(self, num_kept: int, extent: dict[str, Any]) -> None:
        """Go on after the draws that `extent` speaks of; `DamagedError` if they are not there."""
        if set(extent) != {column.path.name for column in self._columns}:
            raise DamagedError(f"it has draws of {sorted(extent)}, not those of this run")
        if not isinstance(num_kept, int) or not 0 <= num_kept <= self.num_draws:
            raise DamagedError(f"it speaks of {num_kept} draws, where the run has {self.num_draws}")
        for column in self._columns:
            column.check(num_kept, extent[column.path.name])
        for column in self._columns:
            column.cut(num_kept)
        self.num_kept = num_kept

    def append(self, rows: PyTree) -> None:
        self._wait()
        self._background.do(self._write, jax.tree.leaves(rows))
        self.num_kept += _length(rows)

    def _write(self, leaves: list[np.ndarray]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.append(leaf)

    def _wait(self) -> None:
        """Until all that was appended is written; raises what went wrong there."""
        with writing(self.folder):
            self._background.wait()

    def extent(self) -> dict[str, Any]:
        """The hash of each file so far, once all of it has reached the disk."""
        self._wait()
        with writing(self.folder):
            for column in self._columns:
                os.fsync(column.file.fileno())
        return {column.path.name: column.hash.hexdigest() for column in self._columns}

    def content(self) -> dict[str, tuple[str, str]]:
        """What each file holds, and the type of its numbers: for who has no run at hand."""
        pairs = zip(self._columns, self._names, strict=True)
        return {column.path.name: (name, str(column.dtype)) for column, name in pairs}

    def draws(self) -> PyTree:
        self._wait()
        return jax.tree.unflatten(
            self._treedef, [column.draws(self.num_kept) for column in self._columns]
        )

    def close(self) -> None:
        self._background.close()
        for column in self._columns:
            column.close()


class _Column:
    """One file of draws. Its header is never parsed: it must be the one that would be written."""

    def __init__(self, path: pathlib.Path, nothing: np.ndarray, num_draws: int):
        self.path, self.dtype = path, nothing.dtype
        self.row = (nothing.shape[0], *nothing.shape[2:])
        # What numpy itself has no name for, such as bfloat16, is written as its bits.
        is_named = nothing.dtype.kind != "V"
        self.written = nothing.dtype if is_named else np.dtype(f"u{nothing.dtype.itemsize}")
        self.header = _header(self.written, (num_draws, *self.row))
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.row))
        self.hash = hashlib.sha256()
        self.file: Any = None

    def begin(self) -> None:
        self.file = self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._write(self.header)

    def check(self, num_kept: int, digest: str) -> None:
        self.close()
        try:
            self.file = self._open(os.O_RDWR)
        except OSError as error:
            raise DamagedError(f"draws/{self.path.name} cannot be opened ({error})") from error
        left = self._length(num_kept)
        if os.fstat(self.file.fileno()).st_size < left:
            raise DamagedError(f"draws/{self.path.name} is cut short")
        self.hash, is_first = hashlib.sha256(), True
        while left:
            chunk = self.file.read(min(left, _CHUNK))
            if not chunk:
                raise DamagedError(f"draws/{self.path.name} shrinks while it is read")
            if is_first and not chunk.startswith(self.header):
                raise DamagedError(f"draws/{self.path.name} has another header")
            self.hash.update(chunk)
            left, is_first = left - len(chunk), False
        if self.hash.hexdigest() != digest:
            raise DamagedError(f"draws/{self.path.name} has changed")

    def cut(self, num_kept: int) -> None:
        """Leave what comes after the draws that were checked."""
        self.file.truncate(self._length(num_kept))

    def append(self, leaf: np.ndarray) -> None:
        rows = np.ascontiguousarray(np.moveaxis(leaf, 0, 1))
        self._write(rows.reshape(-1).view(np.uint8).data)

    def draws(self, num_kept: int) -> np.ndarray:
        shape = (num_kept, *self.row)
        if 0 in shape:
            rows = np.empty(shape, self.dtype)
        else:
            offset = len(self.header)
            rows = np.memmap(self.path, self.written, "r", offset, shape).view(self.dtype)
        return np.moveaxis(rows, 0, 1)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _length(self, num_kept: int) -> int:
        return len(self.header) + num_kept * self.row_bytes

    def _open(self, flags: int) -> Any:
        # No link is followed: it might lead out of the folder.
        handle = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
        return os.fdopen(handle, "r+b", buffering=0)

    def _write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        self.hash.update(left)
        while left:
            left = left[self.file.write(left) :]


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def _file_name(number: int, path: tuple[Any, ...]) -> str:
    """A name made here, whatever the keys of a dictionary are."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", jax.tree_util.keystr(path)).strip("-")
    return f"{number:03d}-{name[:80]}.npy"


def _length(rows: PyTree) -> int:
    return jax.tree.leaves(rows)[0].shape[1]
