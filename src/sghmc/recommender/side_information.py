"""Side information: columns about users or items as features, and those of all rows of a model.

| column of a table | its features |
| --- | --- |
| numbers, dates | weights of the two nearest of a few knots: a piecewise linear curve |
| text, booleans | one for each category |
| lists, or text such as "Drama\\|War" | one for each label, 1/√n for one of n |

A missing value is a feature of its own, if any was missing when the model was fitted. A category
or label that only one row has is left out, since the row has factors of its own.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np

from sghmc.core.checks import require
from sghmc.data import columns as readers
from sghmc.data.columns import columns_of, find_ids
from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.factor_gibbs import SIDES, Features
from sghmc.recommender.ratings import Ratings, codes_of

NUM_KNOTS = 8
"""Number of knots, at quantiles of a column of numbers; equal ones count once."""

_SEPARATOR = "|"
_MIN_ROWS_PER_LABEL = 2


class SideTable(NamedTuple):
    """Distinct ids, and columns of Arrow arrays with a value for each."""

    ids: np.ndarray
    columns: dict[str, Any]


class Entries(NamedTuple):
    """Sparse matrix, entry by entry: rows are codes of users or items, columns are features."""

    row: np.ndarray
    column: np.ndarray
    value: np.ndarray

    @classmethod
    def none(cls) -> "Entries":
        return cls(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))

    def replaced(self, new: "Entries", rows: np.ndarray) -> "Entries":
        """Replace all entries of some rows by new ones."""
        stay = ~np.isin(self.row, rows)
        return Entries(*(np.append(old[stay], add) for old, add in zip(self, new, strict=True)))


class _ColumnEncoding(NamedTuple):
    """How a column becomes features, in plain types that JSON can store.

    `marks` are knots of numbers, or categories or labels; `has_missing` adds a last feature.
    """

    name: str
    kind: str  # "number", "category" or "set"
    marks: list[Any]
    has_missing: bool

    @property
    def num_features(self) -> int:
        return len(self.marks) + self.has_missing


class SideEncoding:
    """Encode tables as features, by knots and categories of the first table.

    >>> table = side_table({"item": [1, 2, 3], "genres": ["War|Drama", "War", "Drama"]}, "item")
    >>> encoding = SideEncoding.of(table, np.array([1, 2, 3]))
    >>> encoding.names
    ['genres=Drama', 'genres=War']
    """

    def __init__(self, described: list[_ColumnEncoding]):
        self._columns = described

    @classmethod
    def of(cls, table: SideTable, ids: np.ndarray) -> Self:
        """Choose the features of a table for a model of these ids; it may lack some of them."""
        codes = codes_of(table.ids, ids)
        rows = np.flatnonzero(codes >= 0)
        is_short = len(rows) < len(ids)
        described = [
            _described(name, _values(name, column), rows, is_short)
            for name, column in table.columns.items()
        ]
        kept = [column for column in described if len(column.marks) >= _min_marks(column.kind)]
        if not kept:
            raise ValueError(
                f"The columns {', '.join(table.columns) or '(none)'} carry no information: all "
                f"rows have the same value, or a category each. Give a column of numbers, or of "
                f"categories that several rows share."
            )
        return cls(kept)

    @property
    def names(self) -> list[str]:
        """Names of all features: a column and a knot, category or label."""
        return [
            f"{column.name}={mark}"
            for column in self._columns
            for mark in [*column.marks, *(["?"] if column.has_missing else [])]
        ]

    @property
    def group(self) -> np.ndarray:
        """Number of each feature's column."""
        sizes = [column.num_features for column in self._columns]
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def entries(self, table: SideTable, codes: np.ndarray) -> Entries:
        """Encode the rows of a table, given their codes; columns may be missing."""
        parts, first = [Entries.none()], 0
        for column in self._columns:
            if column.name not in table.columns:
                values = _Values(column.kind, np.zeros(0, np.int64), np.zeros(0), len(codes))
            else:
                values = _values(column.name, table.columns[column.name])
            if (values.kind == "number") != (column.kind == "number"):
                raise ValueError(
                    f"The column {column.name!r} held {column.kind} values when the model was "
                    f"fitted, but now holds {values.kind} values."
                )
            row, place, value = _encoded(column, values)
            parts.append(Entries(codes[row], first + place, value))
            first += column.num_features
        row, column, value = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Entries(row.astype(np.int32), column.astype(np.int32), value.astype(np.float32))

    def plain(self) -> list[list[Any]]:
        """Return the encoding as lists that JSON can hold."""
        return [list(column) for column in self._columns]

    @classmethod
    def restored(cls, plain: Any) -> Self:
        """Restore an encoding from the result of `plain`, which an untrusted file may hold."""
        if not isinstance(plain, list) or not all(_is_encoding(column) for column in plain):
            raise ValueError("The encoding of the model's features was not written by sghmc.")
        return cls([_ColumnEncoding(*column) for column in plain])


def side_table(table: Any, role: str) -> SideTable:
    """Take features of users ("user") or items ("item") from a table or a dict of columns.

    The table is one of pandas, polars or Arrow. Ids are in a column named user, userId, id or the
    like, or in a pandas index.
    """
    if isinstance(table, SideTable):
        return table
    source = f"the table of {role}s"
    columns = dict(columns_of(table, f"Features of {role}s"))
    name = find_ids(columns, role)
    has_index = name is None and hasattr(table, "index") and hasattr(table, "iloc")  # pandas
    if name is None and not has_index:
        raise ValueError(
            f"{source.capitalize()} has the columns {', '.join(map(str, columns))}: no column of "
            f"{role}s. Name the one with their ids {role!r}."
        )
    ids = table.index if name is None else columns.pop(name)
    known, codes = readers.encode(ids, role, source)
    if len(known) < len(codes):
        firsts = np.unique(codes, return_index=True)[1]
        row = int(np.setdiff1d(np.arange(len(codes)), firsts)[0])
        twice = known[codes[row]].item()
        raise ValueError(
            f"{source.capitalize()} has {twice!r} twice, again in row {row + 1}: give each {role} "
            f"one row."
        )
    lengths = {str(each): len(column) for each, column in columns.items()}
    if set(lengths.values()) - {len(codes)}:
        raise ValueError(f"{source.capitalize()} has {len(codes)} ids, but columns of {lengths}.")
    arrays = {str(each): _as_arrow(column, str(each), source) for each, column in columns.items()}
    return SideTable(known[codes], arrays)


class _Values(NamedTuple):
    """Values of a column, and the row of each; other rows have a missing value."""

    kind: str
    row: np.ndarray
    value: np.ndarray
    num_rows: int

    @property
    def missing(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self.num_rows), self.row)


def _as_arrow(column: Any, name: str, source: str) -> Any:
    """Convert a column to Arrow, sets as lists."""
    kind = getattr(getattr(column, "dtype", None), "kind", "O" if isinstance(column, list) else "")
    if kind == "O":
        column = [list(entry) if isinstance(entry, set | frozenset) else entry for entry in column]
    return readers.as_arrow(column, name, source)


def _values(name: str, array: Any) -> _Values:
    pa, compute = require("pyarrow", extra="data"), require("pyarrow.compute", extra="data")
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, row = array.type, np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    present = array.drop_null()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _labels(row, present.to_pylist(), len(array))
    if types.is_boolean(kind):
        return _Values("category", row, np.array(compute.cast(present, pa.string())), len(array))
    if types.is_string(kind) or types.is_large_string(kind):
        texts = np.array(present.to_pylist(), object)
        row, texts = row[texts != ""], texts[texts != ""]
        if any(_SEPARATOR in text for text in texts):
            return _labels(row, [text.split(_SEPARATOR) for text in texts], len(array))
        return _Values("category", row, texts, len(array))
    if types.is_temporal(kind):
        present = compute.cast(compute.cast(present, pa.timestamp("s")), pa.int64())
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        raise ValueError(
            f"Features are numbers, dates, text, booleans or lists, but the column {name!r} holds "
            f"{kind}: leave it out, or convert it."
        )
    number = np.asarray(compute.cast(present, pa.float64()), np.float64)
    is_finite = np.isfinite(number)
    return _Values("number", row[is_finite], number[is_finite], len(array))


def _labels(row: np.ndarray, sets: Iterable[Iterable[Any]], num_rows: int) -> _Values:
    distinct = [sorted({str(label) for label in labels if label is not None}) for labels in sets]
    owners = np.repeat(row, [len(labels) for labels in distinct])
    labels = np.array([label for labels in distinct for label in labels], object)
    return _Values("set", owners, labels, num_rows)


def _described(name: str, values: _Values, rows: np.ndarray, is_short: bool) -> _ColumnEncoding:
    """Choose the features of a column by some of its rows."""
    mine = np.isin(values.row, rows)
    found = values.value[mine]
    if values.kind == "number":
        levels = np.linspace(0, 1, NUM_KNOTS)
        knots = np.quantile(found, levels, method="nearest") if len(found) else found
        marks: list[Any] = np.unique(knots).tolist()
    else:
        labels, counts = np.unique(found.astype(str), return_counts=True)
        marks = labels[counts >= _MIN_ROWS_PER_LABEL].tolist()
    is_missing = is_short or len(np.intersect1d(values.missing, rows)) > 0
    return _ColumnEncoding(name, values.kind, marks, values.kind != "set" and is_missing)


def _encoded(column: _ColumnEncoding, values: _Values) -> tuple[np.ndarray, ...]:
    """Encode values: rows, places among the column's features, and entries."""
    if column.kind == "number":
        # A number has weights on the two knots around it, which add up to 1.
        knots = np.array(column.marks)
        number = np.clip(values.value, knots[0], knots[-1])
        left = np.clip(np.searchsorted(knots, number, side="right") - 1, 0, len(knots) - 2)
        share = (number - knots[left]) / (knots[left + 1] - knots[left])
        row, place = np.tile(values.row, 2), np.append(left, left + 1)
        value = np.append(1 - share, share)
    else:
        texts, known = values.value.astype(str), np.array(column.marks, str)
        place = np.minimum(np.searchsorted(known, texts), len(known) - 1)
        is_known = known[place] == texts if len(texts) else np.zeros(0, bool)
        row, place = values.row[is_known], place[is_known]
        count = np.bincount(row, minlength=values.num_rows)
        value = count[row] ** -0.5
    if column.has_missing:
        missing = values.missing
        row = np.append(row, missing)
        place = np.append(place, np.full(len(missing), len(column.marks)))
        value = np.append(value, np.ones(len(missing)))
    return row, place, value


def _min_marks(kind: str) -> int:
    """Return how many marks a column needs to carry information: one knot is no curve."""
    return 2 if kind == "number" else 1


def _is_encoding(plain: Any) -> bool:
    """Check that this could be a `_ColumnEncoding`."""
    if not isinstance(plain, list) or len(plain) != len(_ColumnEncoding._fields):
        return False
    name, kind, marks, has_missing = plain
    of_kind = {"number": float, "category": str, "set": str}
    return (
        isinstance(name, str)
        and kind in of_kind
        and isinstance(marks, list)
        and len(marks) >= _min_marks(kind)
        and all(isinstance(mark, of_kind[kind]) for mark in marks)
        and isinstance(has_missing, bool)
    )


# Features of all users or items of a fitted recommender.


@dataclasses.dataclass(frozen=True)
class SideFeatures:
    """Features of users or of items: their encoding, and the entries of all codes."""

    encoding: SideEncoding
    entries: Entries

    def features(self) -> Features:
        """Return the features for a model, padded so that a few more reuse its program."""
        group = self.encoding.group
        length = padded_size(len(self.entries.row), 4)
        row, column, value = (jnp.asarray(padded(part, length)) for part in self.entries)
        sizes = np.bincount(group).astype(np.float32)
        return Features(row, column, value, jnp.asarray(group), jnp.asarray(sizes))

    def centers(self, draws: dict[str, np.ndarray], side: str, codes: np.ndarray) -> np.ndarray:
        """Prior means of the rows with some codes under each draw: (draw, code, column)."""
        from scipy import sparse

        weights = draws[f"{side}.weights"]
        place = np.full(int(max(codes.max(initial=0), self.entries.row.max(initial=0))) + 1, -1)
        place[codes] = np.arange(len(codes))
        row = place[self.entries.row]
        mine = row >= 0
        matrix = sparse.csr_array(
            (self.entries.value[mine], (row[mine], self.entries.column[mine])),
            (len(codes), weights.shape[1]),
        )
        means = draws[f"{side}.mean"]
        return np.stack([mean + matrix @ each for mean, each in zip(means, weights, strict=True)])


Sides = dict[str, SideFeatures]
"""Features by "user" and "item", if there are any."""


def given(users: Any, items: Any) -> dict[str, SideTable]:
    """Read the tables of features that are given, by side."""
    tables = dict(zip(SIDES, (users, items), strict=True))
    return {side: side_table(table, side) for side, table in tables.items() if table is not None}


def with_ids(ratings: Ratings, tables: dict[str, SideTable]) -> Ratings:
    """Add the users and items to ratings that only a table of features has."""
    for side, table in tables.items():
        known = getattr(ratings, f"{side}s")
        new = table.ids[codes_of(table.ids, known) < 0]
        ratings = dataclasses.replace(ratings, **{f"{side}s": np.concatenate([known, new])})
    return ratings


def learned(tables: dict[str, SideTable], ratings: Ratings) -> Sides:
    """Choose the features of a first fit, and encode all rows."""
    encodings = {
        side: SideEncoding.of(table, getattr(ratings, f"{side}s")) for side, table in tables.items()
    }
    empty = {side: SideFeatures(each, Entries.none()) for side, each in encodings.items()}
    return extended(empty, tables, ratings, dict.fromkeys(empty, 0))


def extended(
    sides: Sides, tables: dict[str, SideTable], ratings: Ratings, known: dict[str, int]
) -> Sides:
    """Encode the rows of new tables, and of users and items beyond the known without features.

    The encoding is that of the first fit: a new category has no feature.
    """
    if unexpected := set(tables) - set(sides):
        name = f"{unexpected.pop()}s"
        raise ValueError(
            f"The model was fitted without features of {name}: give fit(…, {name}=…) those of all."
        )
    found = {}
    for side, old in sides.items():
        ids, entries = getattr(ratings, f"{side}s"), old.entries
        table = tables.get(side, SideTable(ids[:0], {}))
        codes = codes_of(table.ids, ids)
        absent = np.setdiff1d(np.arange(known[side], len(ids)), codes)
        if len(codes):
            entries = entries.replaced(old.encoding.entries(table, codes), codes)
        missing = old.encoding.entries(SideTable(absent, {}), absent)
        found[side] = SideFeatures(old.encoding, entries.replaced(missing, absent))
    return found
