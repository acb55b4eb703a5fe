"""Which column of a table plays which role: users, items and ratings, by their usual names."""

from collections.abc import Mapping
from typing import Any

ROLES = {
    "user": ("user", "users", "userid", "uid"),
    "item": ("item", "items", "itemid", "iid", "movie", "movies", "movieid"),
    "rating": ("rating", "ratings"),
}


def columns_of(table: Any, what: str, otherwise: str = "") -> Mapping[str, Any]:
    """The columns of a pandas, polars or Arrow table or a dict, by name."""
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
    """The name of the column that plays a role."""
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
    """The name of the column with the ids of users or items, "id" among them; None without one."""
    for names in (ROLES[role], ("id",)):
        matches = [each for each in table if plain(each) in names]
        if len(matches) == 1:
            return matches[0]
    return None


def plain(name: Any) -> str:
    """A name as it is compared: letters and digits, small."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())
