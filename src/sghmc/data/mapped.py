"""Files of rows that need not fit into memory: `.npy` and Arrow IPC, mapped and read at random."""

import itertools
import math
import mmap
import os
import pathlib
import weakref
from collections.abc import Sequence

import jax
import numpy as np

from sghmc.data import scattered
from sghmc.data.scattered import Scattered
from sghmc.source import DataError, NotFinite, Source, check_finite, check_num_rows
from sghmc.types import PyTree

_SPAN_BYTES = 1 << 28
"""Of the files, how much may be resident at once: a page that was read counts until given back."""
_FAR_APART = 1 << 13
"""Bytes from row to row beyond which reading each is quicker than mapping what lies around them."""
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
    What is resident stays below some hundred megabytes, whatever the files' size. Files must not
    change while they are in use; rows with NaN or infinity are refused unless `allow_nan`.

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
        self._row_size = sum(file.size for file in self._files) / self._num_rows
        self.example = jax.tree.unflatten(self._treedef, [c.example for c in self._columns])

    @property
    def num_rows(self):
        return self._num_rows

    def take(self, numbers):
        for file in self._files:
            file.check()
        leaves = [np.empty((len(numbers), *c.shape), c.example.dtype) for c in self._columns]
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        if not self._read_scattered(ordered, order, leaves):
            self._read_mapped(ordered, order, leaves)
        taken = jax.tree.unflatten(self._treedef, leaves)
        if not self._allow_nan:
            self._check_finite(taken, numbers)
        return taken

    def _read_scattered(self, rows: np.ndarray, order: np.ndarray, leaves: list) -> bool:
        """Read rows by increasing numbers to their places in `leaves`, where they lie far apart.

        Whether it was done.
        """
        reads = scattered.available()
        apart = (int(rows[-1]) - int(rows[0])) * self._row_size / len(rows)
        if reads is None or apart < _FAR_APART:
            return False
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.read(reads, rows, order, leaf)
        return True

    def _read_mapped(self, rows: np.ndarray, order: np.ndarray, leaves: list) -> None:
        """The same through the mapped pages, giving them back from time to time."""
        rows_per_span = max(1, int(_SPAN_BYTES / self._row_size))
        edges = np.arange(rows_per_span, self._num_rows, rows_per_span)
        cuts = [0, *np.searchsorted(rows, edges), len(rows)]
        for start, stop in itertools.pairwise(cuts):
            if start == stop:
                continue
            for column, leaf in zip(self._columns, leaves, strict=True):
                leaf[order[start:stop]] = column.take(rows[start:stop])
            if rows_per_span < self._num_rows:
                for file in self._files:
                    file.release()

    def _check_finite(self, taken: PyTree, numbers: np.ndarray) -> None:
        try:
            check_finite(taken, "")
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
        self._advise("MADV_RANDOM")

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
        self._advise("MADV_DONTNEED")

    def _advise(self, advice: str) -> None:
        if hasattr(mmap, advice):  # not on all systems; nothing depends on it but memory and speed
            self.map.madvise(getattr(mmap, advice))


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
        dtype = self.pieces[0].dtype.newbyteorder("=")
        self.example = jax.ShapeDtypeStruct(self.shape, jax.dtypes.canonicalize_dtype(dtype))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Rows by increasing numbers."""
        parts = [self.pieces[i].take(inside, axis=0) for i, inside, _ in self._cut(rows)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def read(self, reads: Scattered, rows: np.ndarray, order: np.ndarray, leaf: np.ndarray) -> None:
        """The same to the rows `order` of an array, past the mapped pages."""
        piece = self.pieces[0]
        raw = leaf if leaf.dtype == piece.dtype else np.empty(leaf.shape, piece.dtype)
        size = piece.dtype.itemsize * math.prod(self.shape)
        for i, inside, part in self._cut(rows):
            start = self.pieces[i].ctypes.data - self.files[i].address
            places = raw.ctypes.data + size * order[part]
            try:
                reads.read(self.files[i].file.fileno(), start + size * inside, places, size)
            except OSError as error:
                raise DataError(f"{self.files[i].path} cannot be read: {error}.") from error
        if raw is not leaf:
            leaf[...] = raw

    def _cut(self, rows: np.ndarray):
        """Which pieces these rows lie in: number, rows inside of it, and which of `rows`."""
        cuts = np.searchsorted(rows, self.ends)
        first = 0
        for i in range(len(self.pieces)):
            if cuts[i] > first:
                start = self.ends[i] - len(self.pieces[i])
                yield i, rows[first : cuts[i]].astype(np.int64) - start, slice(first, cuts[i])
            first = cuts[i]


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
    if not 0 <= view.ctypes.data - file.address < file.size:
        raise DataError(f"{where} is compressed: write the file without compression.")
    return view


def _shown(schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"
