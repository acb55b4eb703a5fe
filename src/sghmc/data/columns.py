"""Columns of numbers and ids from pandas, polars, Arrow or numpy, and their usual names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sghmc.core.checks import require

if TYPE_CHECKING:
    import pyarrow


def as_arrow(column: Any, role: str, source: str) -> "pyarrow.Array":
    """Convert a column of pandas, polars, pyarrow or numpy, or a list, to one Arrow array."""
    pa = require("pyarrow", extra="data")
    try:
        if hasattr(column, "to_arrow"):  # polars
            column = column.to_arrow()
        if isinstance(column, pa.ChunkedArray):
            column = column.unify_dictionaries().combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # without chunks
                column = pa.array([], column.type)
        if isinstance(column, pa.Array):
            return column
        if getattr(column, "ndim", 1) != 1:
            raise ValueError(
                f"The {role} column of {source} must have one axis, but has {column.ndim}."
            )
        return pa.array(column if hasattr(column, "dtype") else list(column), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"The {role} column of {source} is not of one type: {str(error).splitlines()[0]}."
        ) from error


def numbers(column: Any, source: str) -> np.ndarray:
    """Convert a column to float32, and check that its numbers are finite."""
    pa, compute = require("pyarrow", extra="data"), require("pyarrow.compute", extra="data")
    array = as_arrow(column, "rating", source)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        numbers = compute.cast(array, pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        numbers = pa.array([_number(entry) for entry in array.to_pylist()], pa.float64())
    values = np.asarray(numbers.to_numpy(zero_copy_only=False), np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        entry = array[row].as_py()
        raise ValueError(
            f"Ratings must be finite numbers, but the rating column of {source} has "
            f"{'NaN' if entry is None else repr(entry)} in row {row + 1}; {bad.sum():,} of its "
            f"{len(values):,} rows are like that."
        )
    return values


def _number(entry: Any) -> float | None:
    try:
        return float(entry)
    except (TypeError, ValueError):
        return None


def encode(column: Any, role: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids of a column, sorted, and the position of each row's id."""
    pa = require("pyarrow", extra="data")
    array = as_arrow(column, role, source)
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    missing = array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    _check_none(missing, role, source)
    ids = _plain_ids(encoded.dictionary)
    if ids.dtype.kind == "U":
        _check_none((ids == "")[codes], role, source)
    distinct, which = np.unique(ids, return_inverse=True)  # sorts; a dictionary may have repeats
    used = np.bincount(which[codes], minlength=len(distinct)) > 0
    renumbered = (np.cumsum(used) - 1)[which].astype(np.int32)
    return distinct[used], renumbered[codes]


def _check_none(missing: np.ndarray, role: str, source: str) -> None:
    if missing.any():
        raise ValueError(
            f"The {role} column of {source} has no id in row {int(missing.argmax()) + 1}; "
            f"{missing.sum():,} of its {len(missing):,} rows are like that."
        )


def _plain_ids(ids: "pyarrow.Array") -> np.ndarray:
    """Convert ids to whole numbers if they are, else to numbers or text, without objects."""
    pa = require("pyarrow", extra="data")
    if pa.types.is_integer(ids.type):
        values = ids.to_numpy(zero_copy_only=False)
        return values if values.dtype == np.uint64 else values.astype(np.int64)
    if pa.types.is_floating(ids.type):
        values = ids.to_numpy(zero_copy_only=False)
        is_whole = bool(np.all((values == np.floor(values)) & (np.abs(values) < 2**53)))
        return values.astype(np.int64) if is_whole else values
    texts = [entry if isinstance(entry, str) else str(entry) for entry in ids.to_pylist()]
    return np.array(texts, dtype=str)


def whole_numbers(column: Any) -> Any:
    """Convert dictionary-encoded text to whole numbers if every entry is one."""
    pa = require("pyarrow", extra="data")
    if not isinstance(column, pa.ChunkedArray) or not pa.types.is_dictionary(column.type):
        return column
    encoded: Any = as_arrow(column, "", "")
    texts = encoded.dictionary.to_pylist()
    if not all(isinstance(text, str) and _is_whole(text) for text in texts):
        return encoded
    numbers = pa.array([int(text) for text in texts], pa.int64())
    return pa.DictionaryArray.from_arrays(encoded.indices, numbers)


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19 and str(int(text)) == text


# The columns of users, items and ratings, found by their usual names.

ROLES = {
    "user": ("user", "users", "userid", "uid"),
    "item": ("item", "items", "itemid", "iid", "movie", "movies", "movieid"),
    "rating": ("rating", "ratings"),
}


def columns_of(table: Any, what: str, otherwise: str = "") -> Mapping[str, Any]:
    """Return the columns of a pandas, polars or Arrow table or a dict, by name."""
    if isinstance(table, Mapping):
        return table
    if hasattr(table, "column_names") and hasattr(table, "columns"):  # pyarrow
        return dict(zip(table.column_names, table.columns, strict=True))
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):  # pandas, polars
        return {name: table[name] for name in table.columns}
    ways = ", ".join(way for way in ("a dict of columns", otherwise) if way)
    raise TypeError(
        f"{what} are a pandas, polars or Arrow table, {ways}, not {type(table).__name__}."
    )


def find(table: Mapping[str, Any], role: str, name: str | None, source: str) -> str:
    """Return the name of the column of users, items or ratings (`role`)."""
    there = f"{source} has the columns {', '.join(map(str, table))}"
    if name is not None:
        if name not in table:
            raise ValueError(f"{there}, but no {name!r}.")
        return name
    matches = [each for each in table if plain(each) in ROLES[role]]
    if len(matches) != 1:
        problem = "no column" if not matches else "more than one column"
        raise ValueError(
            f"{there}: {problem} of {role}s. Name it {role!r}, or say which it is with {role}=…."
        )
    return matches[0]


def find_ids(table: Mapping[str, Any], role: str) -> str | None:
    """Return the name of the column with the ids of users or items, or None."""
    for names in (ROLES[role], ("id",)):
        matches = [each for each in table if plain(each) in names]
        if len(matches) == 1:
            return matches[0]
    return None


def plain(name: Any) -> str:
    """Reduce a name to lower-case letters and digits, for comparisons."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())
