"""Tables of mixed columns on disk: numbers and text, csv or parquet."""

import pathlib

import numpy as np
import pyarrow as pa

Columns = dict[str, np.ndarray]
"""By name: numbers as float64, whole numbers as int64, booleans, or text as str objects."""


def read_table(path: pathlib.Path) -> Columns:
    """The columns of a csv or parquet file; a missing value anywhere is an error."""
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if table.num_rows == 0:
        raise ValueError(f"{path} has column names, but no rows.")
    names = table.column_names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has columns of the same name: {', '.join(repeated)}.")
    return {name: _column(table.column(name), name, path) for name in names}


def _read_csv(path: pathlib.Path) -> pa.Table:
    from pyarrow import csv

    with path.open("rb") as file:
        first = file.readline().decode("utf-8-sig", "replace")
    delimiter = next((each for each in ("\t", ";") if each in first), ",")
    try:
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error


def _read_parquet(path: pathlib.Path) -> pa.Table:
    from pyarrow import parquet

    try:
        return parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a complete parquet file: {error}") from error


def _column(column: pa.ChunkedArray, name: str, path: pathlib.Path) -> np.ndarray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    missing = column.null_count
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = column.cast(pa.float64()).to_numpy()
        missing = int(np.isnan(values).sum())
    if missing:
        raise ValueError(
            f"The column {name!r} of {path} has {missing:,} missing values in {len(column):,} "
            f"rows: fill them or leave these rows out."
        )
    if pa.types.is_boolean(kind):
        return column.to_numpy()
    if pa.types.is_integer(kind):
        return column.to_numpy().astype(np.int64)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64()).to_numpy()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=object)
    raise ValueError(
        f"The column {name!r} of {path} holds {kind}: columns of numbers, text and booleans can be "
        f"learned from. Leave it out, or convert it."
    )
