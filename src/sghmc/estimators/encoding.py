"""Encode a table's columns as a matrix of numbers: categories, dates, and what is missing."""

import collections
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from sghmc.data.columns import plain as plain_name
from sghmc.data.table_files import Columns, is_number

_MAX_CATEGORIES = 100
"""Largest number of categories with an input of their own; the rarer ones share another."""
_MIN_NUMBERS = 0.9
"""Share of numbers from which on a column of text is taken for numbers with gaps."""
_MIN_NAMES = 20
"""Least number of different values of a column that names its rows."""
_OTHER, _MISSING = "(other)", "(missing)"
_DAY = 86_400_000.0
"""Milliseconds of a day; dates are numbers of them since 1970, which began on a Thursday."""
_YEAR_DAYS = 365.2425


def _cycle(days: np.ndarray, length: float, wave: Callable) -> np.ndarray:
    return wave(2 * np.pi * days / length)


PARTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "year": lambda days: 1970 + days / _YEAR_DAYS,
    "season sin": lambda days: _cycle(days, _YEAR_DAYS, np.sin),
    "season cos": lambda days: _cycle(days, _YEAR_DAYS, np.cos),
    "week sin": lambda days: _cycle(np.floor(days), 7, np.sin),
    "week cos": lambda days: _cycle(np.floor(days), 7, np.cos),
    "weekend": lambda days: np.where(np.isnan(days), np.nan, (np.floor(days) + 3) % 7 >= 5),
    "hour sin": lambda days: _cycle(days, 1, np.sin),
    "hour cos": lambda days: _cycle(days, 1, np.cos),
}
"""Calendar features of a date, as functions of its days since 1970."""


_KEYS = {"name", "categories", "parts", "gaps", "pooled"}
"""Keys of a column's description; `pooled`: rare categories shared an input when it was made."""


class Options(NamedTuple):
    """Columns that the user has left out, or named as categories or as numbers."""

    ignored: Collection[str] = ()
    categories: Collection[str] = ()
    numbers: Collection[str] = ()


DEFAULTS = Options()


class Read(NamedTuple):
    """Values (row, column) of a table to predict, the rows that are unreadable, and remarks.

    A number stands as it is, a category by its place in the list, a date by its milliseconds; NaN
    is missing.
    """

    values: np.ndarray
    is_bad: np.ndarray
    flags: dict[int, list[str]]


class Encoding:
    """The columns that a model was fitted to, in a form that can be stored as JSON.

    A column of numbers stays one; one of text becomes a column of 0 and 1 for each category and one
    for all others; dates become calendar features. NaN is missing.
    """

    def __init__(self, target: str, columns: list[dict[str, Any]]):
        self.target, self.columns = target, columns

    @classmethod
    def restored(cls, plain: Any) -> Self:
        """Restore what `plain` returned, after checks: anybody may have written the file."""
        columns = plain.get("columns") if isinstance(plain, dict) else None
        if (
            not isinstance(columns, list)
            or set(plain) != {"target", "columns"}
            or not columns
            or not all(_is_described(column) for column in columns)
        ):
            raise ValueError("The model does not know its columns: it was not made by `sghmc fit`.")
        return cls(str(plain["target"]), columns)

    @classmethod
    def of(
        cls, table: Columns, target: str, options: Options = DEFAULTS, problems: Sequence[str] = ()
    ) -> tuple[Self, list[str], list[str]]:
        """Return the encoding, what its columns were taken for, and warnings.

        All problems of the table, those that are known before, are one error.
        """
        problems = list(problems)
        for option, names in options._asdict().items():
            for name in names:
                if name not in table:
                    problems.append(
                        f"There is no column {name!r} to be {option}: the table has "
                        f"{', '.join(table)}."
                    )
        taken: dict[str, list[str]] = collections.defaultdict(list)
        columns, warnings = [], []
        for name in table:
            if name == target or name in options.ignored:
                continue
            try:
                found, kind, warning = _described(name, table[name], options)
            except ValueError as error:
                problems.append(str(error))
                continue
            columns += [] if found is None else [found]
            taken[kind].append(name)
            warnings += [warning] if warning else []
            if found is not None and found.get("gaps"):
                taken["missing"].append(name)
        if not columns and not problems:
            problems += ["Besides the target the table has no column to learn from.", *warnings]
        if problems:
            raise ValueError("\n".join(problems))
        return cls(target, columns), [*map(_words, taken.items())], warnings

    def read(self, table: Columns) -> Read:
        """Read a table with all columns that the model was fitted to."""
        absent = [name for name in self.inputs if name not in table]
        if absent:
            raise ValueError(
                f"The table lacks {', '.join(map(repr, absent))}: the model was fitted to "
                f"{', '.join(self.inputs)}."
            )
        flags: dict[int, list[str]] = collections.defaultdict(list)
        columns, is_bad = [], np.zeros(len(table[self.inputs[0]]), bool)
        for column in self.columns:
            name, given = column["name"], table[column["name"]]
            values, is_odd = _values(column, given)
            is_missing = np.isnan(values) & ~is_odd & (not column.get("gaps"))
            columns.append(values)
            words = "has an unseen category" if "categories" in column else "cannot be read"
            if "categories" not in column:
                is_bad |= is_odd & (not column.get("gaps"))
            for row in np.flatnonzero(is_odd):
                flags[int(row)].append(f"{name} {words}: {given[row]!s}")
            for row in np.flatnonzero(is_missing):
                flags[int(row)].append(f"{name} is missing")
        return Read(np.column_stack(columns), is_bad, flags)

    def expanded(self, values: np.ndarray) -> np.ndarray:
        """Return the inputs of a model for values as they were read."""
        pairs = zip(self.columns, np.asarray(values, float).T, strict=True)
        return np.column_stack([_expanded(column, each) for column, each in pairs])

    @property
    def inputs(self) -> list[str]:
        """Return the names of the table's columns that a model learns from."""
        return [column["name"] for column in self.columns]

    @property
    def names(self) -> list[str]:
        """Return the names of the matrix' columns."""
        return [name for column in self.columns for name in _names(column)]

    def places(self) -> dict[str, list[int]]:
        """Return the matrix' columns for each column of numbers or dates."""
        ends = np.cumsum([len(_names(column)) for column in self.columns]).tolist()
        starts = [0, *ends[:-1]]
        return {
            column["name"]: list(range(start, end))
            for column, start, end in zip(self.columns, starts, ends, strict=True)
            if "categories" not in column
        }

    def plain(self) -> dict[str, Any]:
        return {"target": self.target, "columns": self.columns}


def _is_described(column: Any) -> bool:
    """Tell whether a value could have been made by `_described`."""
    if not isinstance(column, dict) or set(column) - _KEYS:
        return False
    categories, parts = column.get("categories", [""]), column.get("parts", ["year"])
    return (
        isinstance(column.get("name"), str)
        and isinstance(categories, list)
        and 0 < len(categories) <= _MAX_CATEGORIES
        and all(isinstance(category, str) for category in categories)
        and isinstance(parts, list)
        and len(parts) > 0
        and all(isinstance(part, str) and part in PARTS for part in parts)
    )


def _described(
    name: str, values: np.ndarray, options: Options
) -> tuple[dict[str, Any] | None, str, str]:
    """Describe a column: for the model (None: left out), its kind in words, and a warning."""
    is_category = name in options.categories
    if values.dtype.kind == "M" and not is_category:
        return _date(name, values)
    if values.dtype == object and not is_category:
        texts = [text for text in values if text is not None]
        odd = next((text for text in texts if not isinstance(text, str)), None)
        if odd is not None:
            raise ValueError(
                f"The column {name!r} holds values such as {odd!r}: columns of numbers, text, "
                f"dates and booleans can be learned from. Convert it, or --ignore {name}."
            )
        is_read = [is_number(text) for text in texts]
        if name in options.numbers or (texts and np.mean(is_read) >= _MIN_NUMBERS):
            return _number(name, *_parsed(values, False))
        repeats = len(set(texts)) <= max(_MIN_NAMES, len(texts) // 2)
        if not repeats:
            return (
                None,
                "left out",
                f"The column {name!r} has another text in almost every row, such as {texts[0]!r}: "
                f"it is left out. --category {name} takes its {_MAX_CATEGORIES} most frequent.",
            )
    elif not is_category:
        return _number(name, values.astype(np.float64), np.zeros(len(values), bool), values)
    texts = _texts(values)
    gaps = sum(text is None for text in texts)
    counts = collections.Counter(text or _MISSING for text in texts)
    categories = sorted(each for each, _ in counts.most_common(_MAX_CATEGORIES))
    rest = len(counts) - len(categories)
    warning = (
        f"The column {name!r} has {len(counts):,} categories: all but the "
        f"{_MAX_CATEGORIES} most frequent are taken for one. If it holds names, --ignore {name}."
    )
    found = {"name": name, "categories": categories, "gaps": gaps > 0, "pooled": rest > 0}
    return found, "categories", warning if rest else ""


def _number(
    name: str, values: np.ndarray, is_odd: np.ndarray, given: np.ndarray | None = None
) -> tuple[dict[str, Any], str, str]:
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise ValueError(
            f"The column {name!r} has {infinite:,} infinite values: inputs must be finite."
        )
    warning = ""
    if is_odd.any():
        if is_odd.all() or np.isnan(values).all():
            raise ValueError(f"The column {name!r} holds no numbers: it cannot be taken for some.")
        warning = (
            f"The column {name!r} holds numbers but for {is_odd.sum():,} entries, which count as "
            f"missing: --category {name} takes all for categories."
        )
    is_whole = given is not None and given.dtype.kind in "iu"
    if is_whole and len(values) > _MIN_NAMES and len(np.unique(values)) == len(values):
        is_counted = np.ptp(values) == len(values) - 1
        if (
            is_counted
            or plain_name(name) in ("id", "index", "row")
            or plain_name(name)[-2:] == "id"
        ):
            warning = (
                f"The column {name!r} looks like an identifier, as every row has a number of its "
                f"own: --ignore {name} leaves it out."
            )
    return {"name": name, "gaps": bool(np.isnan(values).any())}, "numbers", warning


def _date(name: str, values: np.ndarray) -> tuple[dict[str, Any], str, str]:
    days = _milliseconds(values) / _DAY
    known = days[~np.isnan(days)]
    parts = [part for part in PARTS if len(known) and np.ptp(PARTS[part](known)) > 1e-9]
    gaps = len(known) < len(days)
    return {"name": name, "parts": parts or ["year"], "gaps": gaps}, "dates", ""


def _words(kind: tuple[str, list[str]]) -> str:
    """Return what columns were taken for, with the option that changes it."""
    others = {
        "numbers": "--category NAME takes one for classes",
        "categories": "one input each; --number NAME takes its numbers",
        "dates": "year, season, weekday and hour; --ignore NAME leaves one out",
        "missing": "NaN counts as the mean, or as a category, with an input that says so",
        "left out": "--category NAME takes one in",
    }
    return f"{kind[0]}: {', '.join(kind[1])} ({others[kind[0]]})"


def _values(column: dict[str, Any], given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a column's values, and the rows with an unseen category or an unreadable number."""
    if "categories" not in column:
        is_date = "parts" in column
        if given.dtype == object or (given.dtype.kind == "M") != is_date:
            values, is_odd = _parsed(given, is_date)
        else:
            values = _milliseconds(given) if is_date else given.astype(np.float64)
            is_odd = np.zeros(len(given), bool)
        is_odd |= np.isinf(values)
        return np.where(is_odd, np.nan, values), is_odd
    places = {category: float(place) for place, category in enumerate(column["categories"])}
    missing, other = places.get(_MISSING, np.nan), float(len(places))
    texts = _texts(given)
    values = np.array([missing if text is None else places.get(text, other) for text in texts])
    return values, (values == other) & (not column.get("pooled"))


def _parsed(given: np.ndarray, is_date: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers, or milliseconds of dates, and which entries are neither these nor missing."""
    values, is_odd = np.full(len(given), np.nan), np.zeros(len(given), bool)
    for row, text in enumerate(_texts(given)):
        if text is None:
            continue
        try:
            values[row] = _milliseconds(np.datetime64(text)) if is_date else float(text)
        except ValueError:
            is_odd[row] = True
    return values, is_odd


def _milliseconds(dates: Any) -> np.ndarray:
    """Return dates as numbers, NaN where there is none."""
    stamps = np.asarray(dates, "datetime64[ms]")
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64).astype(float))


def _texts(values: np.ndarray) -> list[str | None]:
    """Return entries as text, None for missing ones; 3.0 is 3, as from a table without gaps."""
    if values.dtype.kind == "f":
        return [None if np.isnan(v) else f"{v:.15g}" for v in values.tolist()]
    if values.dtype.kind == "M":
        return [None if np.isnat(v) else str(v) for v in values]
    return [None if v is None else str(v) for v in values.tolist()]


def _names(column: dict[str, Any]) -> list[str]:
    name = column["name"]
    if "categories" in column:
        return [f"{name}={each}" for each in [*column["categories"], _OTHER]]
    return [f"{name} {part}" for part in column["parts"]] if "parts" in column else [name]


def _expanded(column: dict[str, Any], values: np.ndarray) -> np.ndarray:
    if "parts" in column:
        return np.column_stack([PARTS[part](values / _DAY) for part in column["parts"]])
    if "categories" not in column:
        return values[:, None]
    count = len(column["categories"])
    places = np.where(np.isnan(values), count, values)
    return (places[:, None] == np.arange(count + 1)).astype(np.float64)
