"""What is known of users or items besides ratings: numbers, categories and sets as features.

| column of a table | its features |
| --- | --- |
| numbers, dates | the share of each of a few knots: a curve that is straight between them |
| text, booleans | one for each category |
| lists, or text such as "Drama\\|War" | one for each label, 1/√n for one of n |

A missing value is a feature of its own, where any was missing when the model was fitted. A category
or label that only one row has is left out: it says nothing that the row itself does not.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np

from sghmc.core.checks import require
from sghmc.data import columns as readers
from sghmc.data.columns import columns_of, find_ids
from sghmc.recommender.ratings import codes_of

NUM_KNOTS = 8
"""At quantiles of a column of numbers, equal ones counted once."""

_SEPARATOR = "|"
_FEWEST_ROWS = 2


class SideTable(NamedTuple):
    """Ids, one of each, and columns of Arrow arrays."""

    ids: np.ndarray
    columns: dict[str, Any]


class Entries(NamedTuple):
    """A sparse matrix, entry by entry: rows are codes of users or items, columns features."""

    row: np.ndarray
    column: np.ndarray
    value: np.ndarray

    @classmethod
    def none(cls) -> "Entries":
        return cls(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))

    def replaced(self, new: "Entries", rows: np.ndarray) -> "Entries":
        """With all entries of some rows replaced by new ones."""
        stay = ~np.isin(self.row, rows)
        return Entries(*(np.append(old[stay], add) for old, add in zip(self, new, strict=True)))


class _Column(NamedTuple):
    """A column of features' origin; plain, so that it can be stored.

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
    """From tables to features, as a model learned it from its first table.

    >>> table = side_table({"item": [1, 2, 3], "genres": ["War|Drama", "War", "Drama"]}, "item")
    >>> encoding = SideEncoding.of(table, np.array([1, 2, 3]))
    >>> encoding.names
    ['genres=Drama', 'genres=War']
    """

    def __init__(self, described: list[_Column]):
        self._columns = described

    @classmethod
    def of(cls, table: SideTable, ids: np.ndarray) -> Self:
        """The features of a table, for a model of these ids; some may not be in the table."""
        codes = codes_of(table.ids, ids)
        rows = np.flatnonzero(codes >= 0)
        is_short = len(rows) < len(ids)
        described = [
            _described(name, _values(name, column), rows, is_short)
            for name, column in table.columns.items()
        ]
        kept = [column for column in described if len(column.marks) >= _fewest(column.kind)]
        if not kept:
            raise ValueError(
                f"The columns {', '.join(table.columns) or '(none)'} tell nobody from anybody: "
                f"give one with numbers, or with categories that several rows share."
            )
        return cls(kept)

    @property
    def names(self) -> list[str]:
        """Of all features."""
        return [
            f"{column.name}={mark}"
            for column in self._columns
            for mark in [*column.marks, *(["?"] if column.has_missing else [])]
        ]

    @property
    def group(self) -> np.ndarray:
        """The number of each feature's column."""
        sizes = [column.num_features for column in self._columns]
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def entries(self, table: SideTable, codes: np.ndarray) -> Entries:
        """Of a table's rows, whose codes these are."""
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

    def without_row(self, codes: np.ndarray) -> Entries:
        """Of users or items that no table knows: everything is missing."""
        return self.entries(SideTable(codes, {}), codes)

    def plain(self) -> list[list[Any]]:
        """What JSON can hold."""
        return [list(column) for column in self._columns]

    @classmethod
    def restored(cls, plain: Any) -> Self:
        """What `plain` gave, from a file that anybody may have written."""
        if not isinstance(plain, list) or not all(_is_described(column) for column in plain):
            raise ValueError("The model does not know its features: it was not made by sghmc.")
        return cls([_Column(*column) for column in plain])


def side_table(table: Any, role: str) -> SideTable:
    """Users ("user") or items ("item") from a pandas, polars or Arrow table or a dict of columns.

    Ids are in a column named user, userId, id or the like; without one, a pandas index has them.
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
    """A column's values: for each, the row that it belongs to. Rows without one lack it."""

    kind: str
    row: np.ndarray
    value: np.ndarray
    num_rows: int

    @property
    def missing(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self.num_rows), self.row)


def _as_arrow(column: Any, name: str, source: str) -> Any:
    """Sets, which Arrow does not know, as lists."""
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
            f"The column {name!r} holds {kind}: features are numbers, dates, text, booleans or "
            f"lists. Leave it out, or convert it."
        )
    number = np.asarray(compute.cast(present, pa.float64()), np.float64)
    is_finite = np.isfinite(number)
    return _Values("number", row[is_finite], number[is_finite], len(array))


def _labels(row: np.ndarray, sets: Iterable[Iterable[Any]], num_rows: int) -> _Values:
    distinct = [sorted({str(label) for label in labels if label is not None}) for labels in sets]
    owners = np.repeat(row, [len(labels) for labels in distinct])
    labels = np.array([label for labels in distinct for label in labels], object)
    return _Values("set", owners, labels, num_rows)


def _described(name: str, values: _Values, rows: np.ndarray, is_short: bool) -> _Column:
    """What a column's features are, as some of its rows tell."""
    mine = np.isin(values.row, rows)
    found = values.value[mine]
    if values.kind == "number":
        levels = np.linspace(0, 1, NUM_KNOTS)
        knots = np.quantile(found, levels, method="nearest") if len(found) else found
        marks: list[Any] = np.unique(knots).tolist()
    else:
        labels, counts = np.unique(found.astype(str), return_counts=True)
        marks = labels[counts >= _FEWEST_ROWS].tolist()
    is_missing = is_short or len(np.intersect1d(values.missing, rows)) > 0
    return _Column(name, values.kind, marks, values.kind != "set" and is_missing)


def _encoded(column: _Column, values: _Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, places among the column's features, and values."""
    if column.kind == "number":
        row, place, value = _shares(values, np.array(column.marks))
    else:
        row, place = _known(values, column.marks)
        count = np.bincount(row, minlength=values.num_rows)
        value = count[row] ** -0.5
    if column.has_missing:
        missing = values.missing
        row = np.append(row, missing)
        place = np.append(place, np.full(len(missing), len(column.marks)))
        value = np.append(value, np.ones(len(missing)))
    return row, place, value


def _known(values: _Values, marks: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Values that have a feature, and which."""
    texts, known = values.value.astype(str), np.array(marks, str)
    place = np.minimum(np.searchsorted(known, texts), len(known) - 1)
    is_known = known[place] == texts if len(texts) else np.zeros(0, bool)
    return values.row[is_known], place[is_known]


def _shares(values: _Values, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two knots around each number, and how near it is to either: together 1."""
    number = np.clip(values.value, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, number, side="right") - 1, 0, len(knots) - 2)
    share = (number - knots[left]) / (knots[left + 1] - knots[left])
    return (
        np.tile(values.row, 2),
        np.append(left, left + 1),
        np.append(1 - share, share),
    )


def _fewest(kind: str) -> int:
    """Marks without which a column tells nobody from anybody: one knot is no curve."""
    return 2 if kind == "number" else 1


def _is_described(plain: Any) -> bool:
    """Whether this could be a `_Column`."""
    if not isinstance(plain, list) or len(plain) != len(_Column._fields):
        return False
    name, kind, marks, has_missing = plain
    of_kind = {"number": float, "category": str, "set": str}
    return (
        isinstance(name, str)
        and kind in of_kind
        and isinstance(marks, list)
        and len(marks) >= _fewest(kind)
        and all(isinstance(mark, of_kind[kind]) for mark in marks)
        and isinstance(has_missing, bool)
    )
