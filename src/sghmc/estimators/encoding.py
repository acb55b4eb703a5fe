"""Encode a table's columns as a matrix of numbers, text as one column for each category."""

from typing import Any, Self

import numpy as np

from sghmc.data.table_files import Columns, is_number

_MAX_CATEGORIES = 100
"""Largest number of categories, each an input of its own: a column with more holds names."""


class Encoding:
    """The columns that a model was fitted to, in a form that can be stored as JSON.

    A column of numbers stays one; a column of text becomes one column of 0 and 1 a category.
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
    def of(cls, table: Columns, target: str, ignored: list[str]) -> Self:
        for name in (target, *ignored):
            if name not in table:
                raise ValueError(
                    f"There is no column {name!r} in the table: it has {', '.join(table)}."
                )
        names = [name for name in table if name != target and name not in ignored]
        if not names:
            raise ValueError("Besides the target the table has no column to learn from.")
        return cls(target, [_described(name, table[name]) for name in names])

    def matrix(self, table: Columns) -> np.ndarray:
        """Return the inputs of a model, given a table with all columns that it was fitted to."""
        missing = [column["name"] for column in self.columns if column["name"] not in table]
        if missing:
            raise ValueError(
                f"The table lacks {', '.join(map(repr, missing))}: the model was fitted to "
                f"{', '.join(self.inputs)}."
            )
        return np.column_stack([_encoded(column, table[column["name"]]) for column in self.columns])

    @property
    def inputs(self) -> list[str]:
        """Return the names of the table's columns that a model learns from."""
        return [column["name"] for column in self.columns]

    @property
    def names(self) -> list[str]:
        """Return the names of the matrix' columns."""
        return [
            f"{column['name']}={category}" if category is not None else column["name"]
            for column in self.columns
            for category in column.get("categories") or [None]
        ]

    def plain(self) -> dict[str, Any]:
        return {"target": self.target, "columns": self.columns}


def _is_described(column: Any) -> bool:
    """Tell whether a value could have been made by `_described`."""
    if not isinstance(column, dict) or set(column) - {"name", "categories"}:
        return False
    categories = column.get("categories", [""])
    return (
        isinstance(column.get("name"), str)
        and isinstance(categories, list)
        and 0 < len(categories) <= _MAX_CATEGORIES
        and all(isinstance(category, str) for category in categories)
    )


def _described(name: str, values: np.ndarray) -> dict[str, Any]:
    if values.dtype != object:
        _check_finite(name, values)
        return {"name": name}
    categories = sorted(set(values))
    if len(categories) > _MAX_CATEGORIES:
        raise ValueError(
            f"The column {name!r} holds text with {len(categories):,} different values, such as "
            f"{categories[0]!r}: at most {_MAX_CATEGORIES} can be told apart. If numbers are "
            f"meant, look for entries that are none; if it is a name, --ignore {name}."
        )
    return {"name": name, "categories": categories}


def _encoded(column: dict[str, Any], values: np.ndarray) -> np.ndarray:
    name, categories = column["name"], column.get("categories")
    if categories is None:
        if values.dtype == object:
            odd = next((value for value in values if not is_number(value)), values[0])
            raise ValueError(
                f"The column {name!r} held numbers when the model was fitted, but now holds text "
                f"such as {odd!r}."
            )
        _check_finite(name, values)
        return values.astype(np.float64)[:, None]
    # Categories that look like numbers are read as numbers from a table without the others.
    texts = values.astype(str)
    unknown = sorted(set(texts.tolist()) - set(categories))
    if unknown:
        raise ValueError(
            f"The column {name!r} has categories that the model has not seen: "
            f"{', '.join(map(repr, unknown[:5]))}. It knows "
            f"{', '.join(map(repr, categories[:10]))}{', …' if len(categories) > 10 else ''}."
        )
    return (texts[:, None] == np.array(categories)[None]).astype(np.float64)


def _check_finite(name: str, values: np.ndarray) -> None:
    count = int((~np.isfinite(values.astype(np.float64))).sum())
    if count:
        raise ValueError(
            f"The column {name!r} has {count:,} infinite values: inputs must be finite."
        )
