"""Files of rows that need not fit into memory: `.npy` and Arrow IPC, mapped and read at random."""

import contextlib
import itertools
import math
import mmap
import os
import pathlib
import time
import weakref
from collections.abc import Callable, Sequence

import jax
import numpy as np

from sghmc.data import scattered
from sghmc.source import DataError, NotFinite, Source, check_finite, check_num_rows
from sghmc.types import PyTree

_SPAN_BYTES = 1 << 28
"""Of the files, how much may be resident at once: a page that was read counts until given back."""
_FAR_APART = 1 << 13
"""Bytes from row to row below which most pages are needed anyway, and mapped."""
_FADING = 0.995
_ARROW = (".arrow", ".feather", ".ipc")

Path = str | os.PathLike


class MemoryMapped(Source):
    """Rows of `.npy` or Arrow IPC files, read where they lie: files may be larger than memory.

    | `files` | `data` of the posterior |
    | --- | --- |
    | a pytree of paths of `.npy` files | the same pytree of their arrays; a single path: an array |
    | a directory of `.npy` files | a dict, each array under its file's name without `.npy` |
    | an Arrow file or a directory of them | a dict of columns, the files in order of name |

    Arrays share their leading axis, one row an example. Arrow columns hold numbers, or lists of
    numbers of a fixed size, uncompressed and without nulls.

    Every row is as likely as any other, and a run takes the same rows as with the arrays in memory.
    What is resident stays below some hundred megabytes, whatever the files' size. Reading is
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
        columns = _open(files)
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
        self._row_size = size / self._num_rows
        if size > _available_memory():  # what is read around a row would not stay
            for file in self._files:
                file.advise("MADV_RANDOM")
        self.example = jax.tree.unflatten(self._treedef, [c.example for c in self._columns])
        has_scattered = scattered.available() is not None
        self._ways = _Ways(_Column.read, *[_Column.read_scattered] * has_scattered)

    @property
    def num_rows(self):
        return self._num_rows

    def read(self, numbers, rows):
        for file in self._files:
            file.check()
        leaves = jax.tree.leaves(rows)
        rows_per_span = max(1, int(_SPAN_BYTES / self._row_size))
        edges = np.arange(rows_per_span, self._num_rows, rows_per_span)
        cuts = [0, *np.searchsorted(numbers, edges), len(numbers)]
        for start, stop in itertools.pairwise(cuts):
            if start < stop:
                self._read_span(numbers[start:stop], [leaf[start:stop] for leaf in leaves])
            if len(edges):
                for file in self._files:
                    file.release()
        if not self._allow_nan:
            self._check_finite(rows, numbers)

    def _read_span(self, numbers: np.ndarray, leaves: list[np.ndarray]) -> None:
        extent = (int(numbers[-1]) - int(numbers[0])) * self._row_size
        is_near = extent < _FAR_APART * len(numbers)
        way, began = _Column.read if is_near else self._ways.quickest, time.perf_counter()
        for column, leaf in zip(self._columns, leaves, strict=True):
            way(column, numbers, leaf)
        if not is_near:
            self._ways.note(way, (time.perf_counter() - began) / len(numbers))

    def _check_finite(self, rows: PyTree, numbers: np.ndarray) -> None:
        try:
            check_finite(rows, "")
        except NotFinite as bad:
            raise DataError(
                f"{self._name}: {bad.field or 'the array'} is {bad.number} in row "
                f"{numbers[bad.row]}. Repair or leave out such rows, or take allow_nan=True if the "
                f"likelihood knows what to do with them."
            ) from None


class _File:
    """A file mapped for reading, and its size and time of change when it was opened."""

    def __init__(self, path: Path):
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

    def release(self) -> None:
        """Give the pages that were read back to the system's cache."""
        self.advise("MADV_DONTNEED")

    def advise(self, advice: str) -> None:
        if hasattr(mmap, advice):  # not on all systems; nothing depends on it but memory and speed
            self.map.madvise(getattr(mmap, advice))


def _available_memory() -> int:
    """Bytes that the system's cache could hold; 0 where it does not say."""
    with contextlib.suppress(OSError, StopIteration):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    return 0


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


class _Column:
    """An array cut into pieces along its rows, each a view of a mapped file."""

    def __init__(self, name: str, pieces: Sequence[tuple[_File, np.ndarray]]):
        self.name = name
        self.files, self.pieces = zip(*pieces, strict=True)
        self.ends = np.cumsum([len(piece) for piece in self.pieces])
        self.num_rows = int(self.ends[-1])
        self.shape = self.pieces[0].shape[1:]
        self.dtype = self.pieces[0].dtype
        canonical = jax.dtypes.canonicalize_dtype(self.dtype.newbyteorder("="))
        self.example = jax.ShapeDtypeStruct(self.shape, canonical)

    def read(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Rows by increasing numbers, to an array."""
        for i, inside, into in self._cut(numbers, rows):
            if into.dtype == self.dtype:
                # Numbers are in bounds; with this mode numpy writes to `into` directly.
                self.pieces[i].take(inside, 0, out=into, mode="clip")
            else:
                into[...] = self.pieces[i].take(inside, 0)

    def read_scattered(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """The same past the mapped pages."""
        reads = scattered.available()
        assert reads is not None
        raw = rows if rows.dtype == self.dtype else np.empty(rows.shape, self.dtype)
        size = self.dtype.itemsize * math.prod(self.shape)
        for i, inside, into in self._cut(numbers, raw):
            file, start = self.files[i], self.pieces[i].ctypes.data - self.files[i].address
            places = into.ctypes.data + size * np.arange(len(into))
            try:
                reads.read(file.file.fileno(), start + size * inside, places, size)
            except OSError as error:
                raise DataError(f"{file.path} cannot be read: {error}.") from error
        if raw is not rows:
            rows[...] = raw

    def _cut(self, numbers: np.ndarray, rows: np.ndarray):
        """Which pieces these rows lie in: which, their numbers in it, and where they go."""
        first = 0
        for i, stop in enumerate(np.searchsorted(numbers, self.ends)):
            if stop > first:
                start = self.ends[i] - len(self.pieces[i])
                yield i, numbers[first:stop].astype(np.int64) - start, rows[first:stop]
            first = stop


Way = Callable[[_Column, np.ndarray, np.ndarray], None]


class _Ways:
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


def _open(files: PyTree) -> PyTree:
    if isinstance(files, str | os.PathLike):
        path = pathlib.Path(files)
        if path.is_dir():
            return _open_directory(path)
        if path.suffix in _ARROW:
            return _arrow_columns([path])
    return jax.tree.map(_npy_column, files)


def _open_directory(folder: pathlib.Path) -> dict[str, _Column]:
    entries = sorted(folder.iterdir())
    arrays = [path for path in entries if path.suffix == ".npy"]
    tables = [path for path in entries if path.suffix in _ARROW]
    if bool(arrays) == bool(tables):
        found = "both" if arrays else "neither"
        raise DataError(f"{folder} must hold .npy files or Arrow files, but holds {found}.")
    return _arrow_columns(tables) if tables else {path.stem: _npy_column(path) for path in arrays}


def _npy_column(path: Path) -> _Column:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"MemoryMapped needs paths of files, not {path!r}.")
    file = _File(path)
    try:
        version = np.lib.format.read_magic(file.map)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read_header(file.map)
    except (ValueError, KeyError, EOFError, SyntaxError, TypeError) as error:
        raise DataError(
            f"{path} is not an .npy file, or its header is damaged: {error}."
        ) from error
    _check_dtype(path, dtype)
    if len(shape) == 0 or (is_fortran and len(shape) > 1):
        raise DataError(
            f"{path} holds an array of shape {shape}{' in Fortran order' * is_fortran}: save it "
            f"with a leading axis, one row an example, and in C order (np.ascontiguousarray)."
        )
    start = file.map.tell()
    needed = start + math.prod(shape) * dtype.itemsize
    if file.size != needed:
        raise DataError(
            f"{path} has {file.size} bytes where its header, for an array of shape {shape}, needs "
            f"{needed}: it is truncated or damaged."
        )
    array = np.frombuffer(file.map, dtype, offset=start).reshape(shape)
    return _Column(str(path), [(file, array)])


def _check_dtype(name: object, dtype: np.dtype) -> None:
    if dtype.kind not in "fiubc":
        raise DataError(f"{name} must hold numbers, but holds {dtype}.")


def _arrow_columns(paths: Sequence[pathlib.Path]) -> dict[str, _Column]:
    files = [_File(path) for path in paths]
    pieces: dict[str, list[tuple[_File, np.ndarray]]] = {}
    schema = None
    for file in files:
        found, batches = _arrow_batches(file)
        if schema is None:
            schema = found
        elif not found.equals(schema):
            raise DataError(
                f"{file.path} has columns {_shown(found)}, but {files[0].path} has "
                f"{_shown(schema)}: all files must have the same."
            )
        for batch in batches:
            for name, array in zip(schema.names, batch.columns, strict=True):
                pieces.setdefault(name, []).append((file, _arrow_array(file, name, array)))
    if not pieces:
        raise DataError(f"{files[0].path} has no rows: give at least one.")
    return {name: _Column(f"{files[0].path}: {name}", each) for name, each in pieces.items()}


def _arrow_batches(file: _File):
    """Schema and non-empty record batches of an Arrow file, in its file or its stream format."""
    import pyarrow as pa

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


def _arrow_array(file: _File, name: str, array) -> np.ndarray:
    """A column of a record batch as a view of the file."""
    import pyarrow as pa

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
    _check_dtype(where, view.dtype)
    if not 0 <= view.ctypes.data - file.address <= file.size - view.nbytes:
        raise DataError(f"{where} is compressed: write the file without compression.")
    return view


def _shown(schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"
