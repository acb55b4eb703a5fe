"""Parquet files, which are unpacked once into memory-mapped arrays."""

import contextlib
import os
import pathlib
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from sghmc.core import runtime
from sghmc.core.checks import require
from sghmc.core.files import check_plain, scratch_folder
from sghmc.data.mapped import MappedSource, open_columns
from sghmc.posterior.sources import DataError, check_num_rows

_SCRATCH = "sghmc-columns-"
_BATCH_ROWS = 65_536
_MAX_BATCH_ENTRIES = 1 << 24
"""Largest number of entries of a column that are unpacked at a time, with those of its lists."""


class Parquet(MappedSource):
    """Rows of one or many Parquet files: `data` is a dict of columns.

    | argument | meaning |
    | --- | --- |
    | `files` | a path, a directory of `.parquet` files, or a list of paths; with a scheme, such |
    | | as `s3://…`, one that fsspec knows |
    | `columns` | which to read; None: all |
    | `folder` | where to unpack; None: a temporary folder, removed with the source or, after a
    | | kill, by the next one |
    | `allow_nan` | as in `MemoryMapped` |

    Parquet decodes whole row groups, so a single random row would cost a group, and a shuffle of
    groups would not be uniform. Therefore the columns are unpacked once, a batch of rows at a time,
    into `.npy` files, and minibatches come from these, uniform over the rows of all files. That
    takes the disk space of the uncompressed numbers.

    Columns hold numbers, or lists of numbers of one length, without nulls; all files have the same.

    >>> import numpy as np, pathlib, pyarrow, pyarrow.parquet, sghmc, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [0.5, 1.5], "y": [0, 1]}), path)
    >>> sghmc.data.Parquet(path).take(np.array([1]))
    {'x': array([1.5], dtype=float32), 'y': array([1], dtype=int32)}
    """

    def __init__(
        self,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        *,
        columns: Sequence[str] | None = None,
        folder: str | os.PathLike | None = None,
        allow_nan: bool = False,
    ):
        if folder is None:
            self.folder, remove = scratch_folder(pathlib.Path(tempfile.gettempdir()), _SCRATCH)
            weakref.finalize(self, remove)
        else:
            self.folder = pathlib.Path(folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise DataError(f"{self.folder} is not empty: give a folder for the unpacked columns.")
        unpacked = _unpack(_listed(files), columns, self.folder)
        super().__init__(open_columns(unpacked), allow_nan)


def _listed(files) -> list[str]:
    """Return the paths of all files, sorted if they come from a directory."""
    if not isinstance(files, str | os.PathLike):
        paths = [os.fspath(path) for path in files]
    elif _is_remote(files):
        paths = _listed_remote(str(files))
    elif pathlib.Path(files).is_dir():
        paths = [str(path) for path in sorted(pathlib.Path(files).glob("*.parquet"))]
    else:
        paths = [os.fspath(files)]
    if not paths:
        raise DataError(f"Parquet needs at least one file, but {files!r} has none.")
    return paths


def _is_remote(path: str | os.PathLike) -> bool:
    return "://" in os.fspath(path)


def _listed_remote(path: str) -> list[str]:
    fsspec = require("fsspec", extra="data")
    try:
        filesystem, place = fsspec.core.url_to_fs(path)
        if not filesystem.isdir(place):
            return [path]
        names = sorted(filesystem.glob(f"{place}/*.parquet"))
        return [filesystem.unstrip_protocol(name) for name in names]
    except (ImportError, OSError, ValueError) as error:  # unknown scheme, or unreachable host
        raise DataError(f"{path} cannot be reached through fsspec: {error}") from error


def _unpack(
    paths: list[str], columns: Sequence[str] | None, folder: pathlib.Path
) -> dict[str, pathlib.Path]:
    """Write every column of all files to an array of its own."""
    schema, num_rows = _checked(paths, columns)
    check_num_rows(num_rows, ", ".join(paths[:3]))
    # Column names come from the files' contents, so they are not used as file names.
    outputs = {name: folder / f"{i}.npy" for i, name in enumerate(schema.names)}
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(path, "wb")) for name, path in outputs.items()}
        shapes: dict[str, tuple] = {}
        for path in paths:
            for batch in _batches(path, schema.names):
                for name, file in files.items():
                    rows = _numbers(f"{path}: column {name!r}", batch.column(name))
                    _check_length(path, name, rows, shapes)
                    if file.tell() == 0:
                        _check_room(f"{path}: column {name!r}", rows, num_rows, folder)
                        _write_header(file, rows, num_rows)
                    file.write(rows.data)
    return outputs


def _check_length(path: str, name: str, rows: np.ndarray, shapes: dict[str, tuple]) -> None:
    before = shapes.setdefault(name, rows.shape[1:])
    if before != rows.shape[1:]:
        raise DataError(
            f"{path}: column {name!r} has lists of {rows.shape[1:]} numbers, but of {before} in "
            f"rows before: all must have one length."
        )


def _check_room(where: str, rows: np.ndarray, num_rows: int, folder: pathlib.Path) -> None:
    """Refuse a column that the disk cannot hold, before it is full."""
    needed, free = rows[:1].nbytes * num_rows, runtime.free_bytes(folder)
    if free is not None and needed > free:
        raise DataError(
            f"{where} unpacks to {needed:,} bytes, but the disk of {folder} has {free:,} left: "
            f"leave columns out, or give a folder on another disk."
        )


def _write_header(file: IO[bytes], rows: np.ndarray, num_rows: int) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(rows.dtype),
        "fortran_order": False,
        "shape": (num_rows, *rows.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, header)


def _checked(paths: list[str], columns: Sequence[str] | None):
    """Return the schema that all files share, and the total number of rows."""
    pa = require("pyarrow", extra="data")
    schema, num_rows = pa.schema([]), 0
    for i, path in enumerate(paths):
        with _opened(path) as file:
            found = file.schema_arrow
            missing = [name for name in columns or () if name not in found.names]
            if missing:
                raise DataError(f"{path} has no column {missing[0]!r}, but {found.names}.")
            if columns is not None:
                found = pa.schema([found.field(name) for name in columns])
            schema = found if i == 0 else schema
            _check_same(schema, found, paths[0], path)
            num_rows += file.metadata.num_rows
    return schema, num_rows


def _check_same(schema, found, first: str, path: str) -> None:
    for name in [*schema.names, *found.names]:
        there, here = (
            str(each.field(name).type) if name in each.names else "missing"
            for each in (schema, found)
        )
        if there != here:
            raise DataError(
                f"{path}: column {name!r} is {here}, but in {first} it is {there}: all files must "
                f"have the same columns."
            )


def _opened(path: Any):
    """Open a Parquet file on the local disk or through fsspec."""
    pa, parquet = require("pyarrow", extra="data"), require("pyarrow.parquet", extra="data")
    if not _is_remote(path):
        check_plain(pathlib.Path(path), DataError)
    try:
        if _is_remote(path):
            fsspec = require("fsspec", extra="data")
            filesystem, place = fsspec.core.url_to_fs(path)
            path = filesystem.open(place, "rb")
        return parquet.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _batches(path: str, columns: list[str]):
    pa = require("pyarrow", extra="data")
    with _opened(path) as file:
        try:
            yield from batches_of(file, path, columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged: {error}") from error
        except ValueError as error:
            raise DataError(str(error)) from error


def batches_of(file: Any, name: str, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the batches of a Parquet file, of so few rows that their lists fit into memory.

    A few bytes of such a file may encode any number of equal entries.
    """
    longest = 1.0
    for i in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(i)
        entries = max((group.column(k).num_values for k in range(group.num_columns)), default=0)
        longest = max(longest, entries / max(1, group.num_rows))
    if longest > _MAX_BATCH_ENTRIES:
        raise ValueError(
            f"{name} has lists of {longest:,.0f} entries, but rows of at most "
            f"{_MAX_BATCH_ENTRIES:,} are read."
        )
    return file.iter_batches(min(_BATCH_ROWS, int(_MAX_BATCH_ENTRIES / longest)), columns=columns)


def _numbers(where: str, column) -> np.ndarray:
    """Convert a column of a batch to an array."""
    pa = require("pyarrow", extra="data")
    if column.null_count:
        raise DataError(f"{where} has {column.null_count} nulls: fill them or leave them out.")
    shape: tuple[int, ...] = (len(column),)
    has_offsets = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if has_offsets or pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        if values.null_count:
            raise DataError(f"{where} has nulls inside its lists: fill them.")
        lengths = np.diff(column.offsets) if has_offsets else ()
        if len(set(np.asarray(lengths))) > 1:
            raise DataError(f"{where} has lists of unequal lengths: all must have one length.")
        shape, column = (len(column), len(values) // len(column)), values
    numbers = column.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind not in "fiub":
        raise DataError(f"{where} is of type {column.type}: columns must hold numbers.")
    return np.ascontiguousarray(numbers).reshape(shape)
