"""Memory-mapped sources: rows of `.npy` and Arrow IPC files, read at random."""

import concurrent.futures
import contextlib
import math
import mmap
import os
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from sghmc.core.checks import check_fit, check_numbers, held_type, require
from sghmc.core.files import check_plain
from sghmc.data.archives import read_header
from sghmc.posterior.sources import DataError, NotFinite, Source, check_finite, check_num_rows
from sghmc.types import PyTree

_MEMINFO = pathlib.Path("/proc/meminfo")
"""The file in which Linux reports the available memory."""


class MappedFile:
    """A file mapped for reading, with its size and modification time when it was opened."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        check_plain(self.path, DataError)
        try:
            with open(path, "rb") as file:
                self.stamp = _stamp(os.fstat(file.fileno()))
                self.size = self.stamp[0]
                if self.size == 0:
                    raise DataError(f"{path} is empty.")
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from error

    @property
    def address(self) -> int:
        """The memory address of the file's first byte."""
        return np.frombuffer(self.map, np.uint8).ctypes.data

    def check(self) -> None:
        """Check that the file is unchanged: one that shrank would crash the process."""
        try:
            now = _stamp(os.stat(self.path))
        except OSError as error:
            raise DataError(f"{self.path} is gone: {error.strerror}.") from error
        if now != self.stamp:
            raise DataError(
                f"{self.path} has changed since it was opened ({self.stamp[0]} bytes then, "
                f"{now[0]} now): do not change files while they are in use."
            )

    def release(self, start: int | np.integer, stop: int | np.integer) -> None:
        """Give the pages of these bytes back to the system's cache."""
        first = start - start % mmap.PAGESIZE
        self.advise("MADV_DONTNEED", first, stop - first)

    def advise(self, advice: str, *part: int) -> None:
        # Not supported on all systems; only memory and speed depend on it.
        with contextlib.suppress(AttributeError, OSError):
            self.map.madvise(getattr(mmap, advice), *part)


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


class MappedArray:
    """An array cut into pieces along its rows, each a view of a mapped file.

    With `releases_pages`, pages are released to the system after they were read.
    """

    releases_pages = False

    def __init__(self, name: str, pieces: Sequence[tuple[MappedFile, np.ndarray]]):
        self.name = name
        self.files, self.pieces = zip(*pieces, strict=True)
        self.ends = np.cumsum([len(piece) for piece in self.pieces])
        self.num_rows = int(self.ends[-1])
        self.shape, self.dtype = self.pieces[0].shape[1:], self.pieces[0].dtype
        self.example = jax.ShapeDtypeStruct(self.shape, held_type(self.dtype))

    def read(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Copy rows, by their numbers, to an array of rows.

        If the array has several pieces, the numbers must increase.
        """
        for i, inside, into in self._cut(numbers, rows):
            if into.dtype == self.dtype:
                # Numbers are in bounds; mode="clip" makes numpy write to `into` without a buffer.
                self.pieces[i].take(inside, 0, out=into, mode="clip")
            else:
                taken = self.pieces[i].take(inside, 0)
                check_fit(taken, into.dtype, f"{self.name}: rows", DataError)
                into[...] = taken
            if self.releases_pages:
                start, size = self._position(i)
                first, last = inside.min(), inside.max()
                self.files[i].release(start + size * first, start + size * (last + 1))

    def _position(self, i: int) -> tuple[int, int]:
        """Return the position of a piece in its file, and the bytes of a row."""
        size = self.dtype.itemsize * math.prod(self.shape)
        return self.pieces[i].ctypes.data - self.files[i].address, size

    def _cut(
        self, numbers: np.ndarray, rows: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the pieces of these rows: index, row numbers in the piece, and target rows."""
        first = 0
        for i, stop in enumerate(np.searchsorted(numbers, self.ends)):
            if stop > first:
                start = self.ends[i] - len(self.pieces[i])
                yield i, numbers[first:stop].astype(np.int64) - start, rows[first:stop]
            first = stop


def available_memory() -> int:
    """Return the bytes that the page cache could hold; 0 if the system does not report it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    return 0


# Sources of mapped arrays.

_SPAN_BYTES = 1 << 27
"""Bytes of the files that a thread may keep resident, until it releases the pages."""
_NUM_THREADS = min(4, os.cpu_count() or 1)
"""Number of threads that copy rows; a few cores use up the memory bandwidth."""
_NUM_SORTED_BITS = 16
"""Number of high bits of row numbers that are sorted; numpy sorts 16 bits by counting."""


class MappedSource(Source):
    """Rows of mapped files of any format; `columns` is a pytree of mapped arrays."""

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
        # If all files fit into the page cache, read-ahead and large pages pay; else they harm.
        advice = "MADV_RANDOM" if size > available_memory() else "MADV_HUGEPAGE"
        for file in self._files:
            file.advise(advice)
        self.example = jax.tree.unflatten(self._treedef, [c.example for c in self._columns])
        for column in self._columns:
            column.releases_pages = size > _SPAN_BYTES
        self._threads = concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, "sghmc-spans")
        self._process = os.getpid()
        self._num_low_bits = max(0, (self._num_rows - 1).bit_length() - _NUM_SORTED_BITS)
        block = 1 << self._num_low_bits  # rows whose sorted bits are equal
        rows_per_span = max(1, int(_SPAN_BYTES * self._num_rows / size / block)) * block
        self._edges = np.arange(rows_per_span, self._num_rows, rows_per_span)

    @property
    def num_rows(self):
        return self._num_rows

    def identity(self):
        """Add the files' sizes and modification times, if not all rows are hashed."""
        files = [] if self.is_all_hashed else self._files
        return super().identity() | {file.path.name: file.stamp[:2] for file in files}

    def order(self, numbers):
        """Order by the highest bits: rows with equal ones are on the same pages, or nearly."""
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

        def read_span(start: int | np.integer, stop: int | np.integer) -> None:
            if start < stop:
                self._read_span(numbers[start:stop], [leaf[start:stop] for leaf in leaves])

        for _ in self._threads.map(read_span, cuts, cuts[1:]):
            pass

    def _read_span(self, numbers: np.ndarray, leaves: list[np.ndarray]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.read(numbers, leaf)
        if not self._allow_nan:  # checked here, while the rows are in the processor's cache
            self._check_finite(leaves, numbers)

    def _check_finite(self, leaves: list[np.ndarray], numbers: np.ndarray) -> None:
        try:
            check_finite(jax.tree.unflatten(self._treedef, leaves), "")
        except NotFinite as bad:
            raise DataError(
                f"{self._name}: {bad.field or 'the array'} is {bad.number} in row "
                f"{numbers[bad.row]}. Repair or leave out such rows, or take allow_nan=True if the "
                f"likelihood can handle them."
            ) from None


class MemoryMapped(MappedSource):
    """Rows of `.npy` or Arrow IPC files, memory-mapped: files may be larger than memory.

    | `files` | `data` of the posterior |
    | --- | --- |
    | a pytree of paths of `.npy` files | the same pytree of their arrays; a single path: an array |
    | a directory of `.npy` files | a dict, each array under its file's name without `.npy` |
    | an Arrow file or a directory of them | a dict of columns, the files in order of name |

    Arrays share their leading axis, one row an example. Arrow columns hold numbers, or lists of
    numbers of a fixed size, uncompressed and without nulls.

    Every row is as likely as any other, and a run takes the same rows as with the arrays in memory.
    Resident memory stays at about a gigabyte, whatever the files' size. Reading is fastest if the
    page cache has the files in large pages, as after a pass over them. Files must not change while
    they are in use: a change is detected before the next read, but a file that is truncated during
    a read crashes the process. Rows with NaN or infinity are refused unless `allow_nan`.

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
        if path.suffix in SUFFIXES:
            return columns([path])
    return jax.tree.map(_npy_column, files)


def _open_directory(folder: pathlib.Path) -> dict[str, MappedArray]:
    entries = sorted(folder.iterdir())
    arrays = [path for path in entries if path.suffix == ".npy"]
    tables = [path for path in entries if path.suffix in SUFFIXES]
    if bool(arrays) == bool(tables):
        found = "both" if arrays else "neither"
        raise DataError(f"{folder} must hold .npy files or Arrow files, but holds {found}.")
    return columns(tables) if tables else {path.stem: _npy_column(path) for path in arrays}


def _npy_column(path: str | os.PathLike) -> MappedArray:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"MemoryMapped needs paths of files, not {path!r}.")
    file = MappedFile(path)
    try:
        shape, is_fortran, dtype, start = read_header(file.map, file.size, str(path))
    except ValueError as error:
        raise DataError(str(error)) from error
    check_numbers(dtype, str(path), DataError)
    if len(shape) == 0 or (is_fortran and len(shape) > 1):
        raise DataError(
            f"{path} holds an array of shape {shape}{' in Fortran order' * is_fortran}: save it "
            f"with a leading axis, one row an example, and in C order (np.ascontiguousarray)."
        )
    array = np.frombuffer(file.map, dtype, offset=start).reshape(shape)
    return MappedArray(str(path), [(file, array)])


# Arrow IPC files, in the file or the stream format.

SUFFIXES = (".arrow", ".feather", ".ipc")


def columns(paths: Sequence[pathlib.Path]) -> dict[str, MappedArray]:
    """Return the columns of all files by name, with the files' rows one after another."""
    files = [MappedFile(path) for path in paths]
    pieces: dict[str, list[tuple[MappedFile, np.ndarray]]] = {}
    schema = None
    for file in files:
        found, batches = _batches(file)
        if schema is None:
            schema = found
        elif not found.equals(schema):
            raise DataError(
                f"{file.path} has columns {_format_schema(found)}, but {files[0].path} has "
                f"{_format_schema(schema)}: all files must have the same."
            )
        for batch in batches:
            for name, array in zip(schema.names, batch.columns, strict=True):
                pieces.setdefault(name, []).append((file, _array(file, name, array)))
    if not pieces:
        raise DataError(f"{files[0].path} has no rows: give at least one.")
    return {name: MappedArray(f"{files[0].path}: {name}", each) for name, each in pieces.items()}


def _batches(file: MappedFile):
    """Return the schema and the non-empty record batches of an Arrow file."""
    pa = require("pyarrow", extra="data")
    buffer = pa.py_buffer(file.map)
    try:
        if file.map[:6] == b"ARROW1":
            reader = pa.ipc.open_file(pa.BufferReader(buffer))
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        else:
            reader = pa.ipc.open_stream(pa.BufferReader(buffer))
            batches = list(reader)
        for batch in batches:
            batch.validate()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path} is not an Arrow file, or is damaged: {error}.") from error
    return reader.schema, [batch for batch in batches if batch.num_rows]


def _array(file: MappedFile, name: str, array) -> np.ndarray:
    """Return a column of a record batch as a view of the file."""
    pa = require("pyarrow", extra="data")
    where = f"{file.path}: column {name!r}"
    if array.null_count:
        raise DataError(f"{where} has {array.null_count} nulls: fill them or leave such rows out.")
    shape = (len(array),)
    if pa.types.is_fixed_size_list(array.type):
        shape = (len(array), array.type.list_size)
        array = array.flatten()
        if array.null_count:
            raise DataError(f"{where} has nulls inside its lists: fill them.")
    try:
        view = array.to_numpy(zero_copy_only=True).reshape(shape)
    except (pa.ArrowInvalid, ValueError) as error:
        raise DataError(
            f"{where} is of type {array.type}: columns must hold numbers (booleans as uint8), or "
            f"lists of numbers of one fixed size."
        ) from error
    check_numbers(view.dtype, where, DataError)
    if not 0 <= view.ctypes.data - file.address <= file.size - view.nbytes:
        raise DataError(f"{where} is compressed: write the file without compression.")
    return view


def _format_schema(schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"
