"""Files of rows that need not fit into memory: `.npy` and Arrow IPC, mapped and read at random."""

import concurrent.futures
import os
import pathlib

import jax
import numpy as np

from sghmc.data.sources import arrow
from sghmc.data.sources.mapping import File, MappedArray, available_memory, check_dtype
from sghmc.data.tables.npy import read_header
from sghmc.posterior.source import DataError, NotFinite, Source, check_finite, check_num_rows
from sghmc.types import PyTree

_SPAN_BYTES = 1 << 27
"""Of the files, how much a thread may have resident: a page that was read counts until released."""
_NUM_THREADS = min(4, os.cpu_count() or 1)
"""Rows are copied at the speed of memory, which a few cores use up."""
_NUM_HIGH_BITS = 16
"""Of a row's number, those that rows are ordered by: so many numpy sorts by counting."""


class MappedSource(Source):
    """Rows of mapped files, whatever wrote these: `columns` is a pytree of mapped arrays."""

    def __init__(self, columns: PyTree, allow_nan: bool):
        self._columns, self._treedef = jax.tree.flatten(columns)
        if not self._columns:
            raise DataError("MemoryMapped needs a path, or a pytree of paths, but was given none.")
        self._files = list({id(f): f for c in self._columns for f in c.files}.values())
        self._name = ", ".join(str(file.path) for file in self._files[:3])
        self._allow_nan = allow_nan
        lengths = {column.name: column.num_rows for column in self._columns}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The files have different numbers of rows, {lengths}: they must agree."
            )
        self._num_rows = next(iter(lengths.values()))
        check_num_rows(self._num_rows, self._name)
        size = sum(file.size for file in self._files)
        # What is read around a row stays where all of it fits, and is mapped by large pages.
        advice = "MADV_RANDOM" if size > available_memory() else "MADV_HUGEPAGE"
        for file in self._files:
            file.advise(advice)
        self.example = jax.tree.unflatten(self._treedef, [c.example for c in self._columns])
        for column in self._columns:
            column.gives_back = size > _SPAN_BYTES
        self._threads = concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, "sghmc-spans")
        self._process = os.getpid()
        self._num_low_bits = max(0, (self._num_rows - 1).bit_length() - _NUM_HIGH_BITS)
        block = 1 << self._num_low_bits  # rows that `order` does not tell apart
        rows_per_span = max(1, int(_SPAN_BYTES * self._num_rows / size / block)) * block
        self._edges = np.arange(rows_per_span, self._num_rows, rows_per_span)

    @property
    def num_rows(self):
        return self._num_rows

    def identity(self):
        """Where not all rows are looked at, also the files' sizes and times of change."""
        files = [] if self.is_all_hashed else self._files
        return super().identity() | {file.path.name: file.seen[:2] for file in files}

    def order(self, numbers):
        """By the highest bits: what they do not tell apart lies on the same pages, or almost."""
        if any(len(column.pieces) > 1 for column in self._columns):
            return super().order(numbers)
        return np.argsort((numbers >> self._num_low_bits).astype(np.uint16), kind="stable")

    def read(self, numbers, rows):
        if os.getpid() != self._process:
            raise DataError(
                f"{self._name} was opened in another process, whose threads a fork does not have: "
                f"open it anew in this one. Processes that use jax are started by spawn, not fork."
            )
        for file in self._files:
            file.check()
        leaves = jax.tree.leaves(rows)
        cuts = [0, *np.searchsorted(numbers, self._edges), len(numbers)]

        def read_span(start: int, stop: int) -> None:
            if start < stop:
                self._read_span(numbers[start:stop], [leaf[start:stop] for leaf in leaves])

        for _ in self._threads.map(read_span, cuts, cuts[1:]):
            pass

    def _read_span(self, numbers: np.ndarray, leaves: list[np.ndarray]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.read(numbers, leaf)
        if not self._allow_nan:  # here, where they are still in the processor's cache
            self._check_finite(leaves, numbers)

    def _check_finite(self, leaves: list[np.ndarray], numbers: np.ndarray) -> None:
        try:
            check_finite(jax.tree.unflatten(self._treedef, leaves), "")
        except NotFinite as bad:
            raise DataError(
                f"{self._name}: {bad.field or 'the array'} is {bad.number} in row "
                f"{numbers[bad.row]}. Repair or leave out such rows, or take allow_nan=True if the "
                f"likelihood knows what to do with them."
            ) from None


class MemoryMapped(MappedSource):
    """Rows of `.npy` or Arrow IPC files, read where they lie: files may be larger than memory.

    | `files` | `data` of the posterior |
    | --- | --- |
    | a pytree of paths of `.npy` files | the same pytree of their arrays; a single path: an array |
    | a directory of `.npy` files | a dict, each array under its file's name without `.npy` |
    | an Arrow file or a directory of them | a dict of columns, the files in order of name |

    Arrays share their leading axis, one row an example. Arrow columns hold numbers, or lists of
    numbers of a fixed size, uncompressed and without nulls.

    Every row is as likely as any other, and a run takes the same rows as with the arrays in memory.
    What is resident stays at about a gigabyte, whatever the files' size. Reading is
    quickest where the system's cache has the files in large pages, as after a pass over them. Files
    must not change while they are in use: that is seen before the next read, but a file cut short
    during a read ends the process. Rows with NaN or infinity are refused unless `allow_nan`.

    >>> import numpy as np, pathlib, sghmc, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.zeros((5, 2)))
    >>> np.save(folder / "y.npy", np.arange(5))
    >>> source = sghmc.data.MemoryMapped(folder)
    >>> source.num_rows, source.take(np.array([3, 1]))["y"].tolist()
    (5, [3, 1])
    """

    def __init__(self, files: PyTree, *, allow_nan: bool = False):
        super().__init__(open_columns(files), allow_nan)


def open_columns(files: PyTree) -> PyTree:
    if isinstance(files, str | os.PathLike):
        path = pathlib.Path(files)
        if path.is_dir():
            return _open_directory(path)
        if path.suffix in arrow.SUFFIXES:
            return arrow.columns([path])
    return jax.tree.map(_npy_column, files)


def _open_directory(folder: pathlib.Path) -> dict[str, MappedArray]:
    entries = sorted(folder.iterdir())
    arrays = [path for path in entries if path.suffix == ".npy"]
    tables = [path for path in entries if path.suffix in arrow.SUFFIXES]
    if bool(arrays) == bool(tables):
        found = "both" if arrays else "neither"
        raise DataError(f"{folder} must hold .npy files or Arrow files, but holds {found}.")
    return arrow.columns(tables) if tables else {path.stem: _npy_column(path) for path in arrays}


def _npy_column(path: str | os.PathLike) -> MappedArray:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"MemoryMapped needs paths of files, not {path!r}.")
    file = File(path)
    try:
        shape, is_fortran, dtype, start = read_header(file.map, file.size, str(path))
    except ValueError as error:
        raise DataError(str(error)) from error
    check_dtype(path, dtype)
    if len(shape) == 0 or (is_fortran and len(shape) > 1):
        raise DataError(
            f"{path} holds an array of shape {shape}{' in Fortran order' * is_fortran}: save it "
            f"with a leading axis, one row an example, and in C order (np.ascontiguousarray)."
        )
    array = np.frombuffer(file.map, dtype, offset=start).reshape(shape)
    return MappedArray(str(path), [(file, array)])
