"""Columns of Arrow IPC files, in the file or the stream format, as views of the mapped file."""

import pathlib
from collections.abc import Sequence

import numpy as np

from sghmc.core.optional import require
from sghmc.data.sources.mapping import File, MappedArray, check_dtype
from sghmc.posterior.source import DataError

SUFFIXES = (".arrow", ".feather", ".ipc")


def columns(paths: Sequence[pathlib.Path]) -> dict[str, MappedArray]:
    """By name, the rows of all files one after another."""
    files = [File(path) for path in paths]
    pieces: dict[str, list[tuple[File, np.ndarray]]] = {}
    schema = None
    for file in files:
        found, batches = _batches(file)
        if schema is None:
            schema = found
        elif not found.equals(schema):
            raise DataError(
                f"{file.path} has columns {_shown(found)}, but {files[0].path} has "
                f"{_shown(schema)}: all files must have the same."
            )
        for batch in batches:
            for name, array in zip(schema.names, batch.columns, strict=True):
                pieces.setdefault(name, []).append((file, _array(file, name, array)))
    if not pieces:
        raise DataError(f"{files[0].path} has no rows: give at least one.")
    return {name: MappedArray(f"{files[0].path}: {name}", each) for name, each in pieces.items()}


def _batches(file: File):
    """Schema and non-empty record batches of an Arrow file, in its file or its stream format."""
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


def _array(file: File, name: str, array) -> np.ndarray:
    """A column of a record batch as a view of the file."""
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
    check_dtype(where, view.dtype)
    if not 0 <= view.ctypes.data - file.address <= file.size - view.nbytes:
        raise DataError(f"{where} is compressed: write the file without compression.")
    return view


def _shown(schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"
