"""Tables of mixed columns on disk: numbers and text, to fit and to predict."""

import pathlib
from collections.abc import Collection
from typing import Any

import numpy as np

from sghmc.core.optional import require
from sghmc.data.tables.columns import as_arrow
from sghmc.data.tables.table_files import read_columns
from sghmc.data.tables.text import Style

Columns = dict[str, np.ndarray]
"""By name: numbers as float64, whole numbers as int64 (uint64 where they are that), booleans, or
text as str objects."""


def read_table(
    path: pathlib.Path, only: Collection[str] | None = None, ignored: Collection[str] = ()
) -> Columns:
    """The columns of a file; a missing value in one of them is an error.

    `ignored` ones, and where `only` some are wanted all others, may hold anything: dates, gaps.
    """
    table = read_columns(path, Style())
    for name in ignored:
        if name not in table:
            raise ValueError(f"There is no column {name!r} in {path}: it has {', '.join(table)}.")
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of {path} have different lengths: {lengths}.")
    if set(lengths.values()) <= {0}:
        raise ValueError(f"{path} has column names, but no rows.")
    return {
        name: _column(column, name, path)
        for name, column in table.items()
        if name not in ignored and (only is None or name in only)
    }


def _column(column: Any, name: str, path: pathlib.Path) -> np.ndarray:
    pa = require("pyarrow", extra="data")
    array = as_arrow(column, name, str(path))
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        reals = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        missing = int(np.isnan(reals).sum())
    else:
        reals, missing = None, array.null_count
    if missing:
        raise ValueError(
            f"The column {name!r} of {path} has {missing:,} missing values in {len(array):,} "
            f"rows: fill them, leave these rows out, or --ignore {name}."
        )
    if reals is not None:
        return reals
    if pa.types.is_boolean(kind):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        values = array.to_numpy(zero_copy_only=False)
        return values if values.dtype == np.uint64 else values.astype(np.int64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(array.to_pylist(), dtype=object)
    raise ValueError(
        f"The column {name!r} of {path} holds {kind}: columns of numbers, text and booleans can be "
        f"learned from. Convert it, or --ignore {name}."
    )
