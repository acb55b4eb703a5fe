"""Features of users and items from files: MovieLens' own, or any table."""

import pathlib
import re
from typing import Any

from sghmc.data.side_information import SideTable, side_table
from sghmc.data.tables import columns
from sghmc.data.tables.archives import Archive
from sghmc.data.tables.roles import find_ids
from sghmc.data.tables.table_files import read_columns
from sghmc.data.tables.text import Style

_FILES = {
    "user": ("u.user", "users.dat", "users.csv", "users.parquet", "users.npz"),
    "item": ("u.item", "movies.dat", "movies.csv", "items.csv", "items.parquet", "items.npz"),
}
"""Those with features in a folder or an archive of MovieLens, or like it."""

_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip
"""Of u.item's last fields, in their order."""

_YEAR = re.compile(r"\((\d{4})\)\s*$")


def load_side(path: str | pathlib.Path, role: str) -> SideTable:
    """The features of users ("user") or items ("item") in a file.

    Reads `u.user` and `u.item` of MovieLens 100K, `users.dat` and `movies.dat` of 1M, `movies.csv`
    of newer sets, from the archive or by themselves, and tables (.csv, .tsv, .parquet, .npz) with a
    column of ids: user, movieId, id or the like. A year at the end of titles is a feature, too.
    """
    path = pathlib.Path(path)
    for name, rows in (("u.user", _u_user), ("u.item", _u_item), *_DATS):
        text = _member(path, name) if name in _FILES[role] else None
        if text is not None:
            return side_table(rows(text, f"{name} of {path}"), role)
    # Ids stay text until all are seen: 007 is not 7.
    found = read_columns(path, Style(), _FILES[role])
    ids = find_ids(found, role)
    if ids is not None:
        style = Style(lambda name: name == ids)
        found = read_columns(path, style, _FILES[role]) if _is_text(path) else found
    table = {name: columns.whole_numbers(column) for name, column in found.items()}
    return side_table(_with_years(table), role)


def _member(path: pathlib.Path, name: str) -> str | None:
    """The text of a file of this name: the path itself, or inside it."""
    if path.name == name and path.is_file():
        content = path.read_bytes()
    elif path.is_dir() and (path / name).is_file():
        content = (path / name).read_bytes()
    elif path.suffix.lower() == ".zip" and path.is_file():
        with Archive(path) as archive:
            found = [each for each in archive.members if pathlib.PurePosixPath(each).name == name]
            if not found:
                return None
            content = archive.read(min(found, key=len))
    else:
        return None
    return content.decode("latin-1")


def _is_text(path: pathlib.Path) -> bool:
    return path.suffix.lower() not in (".parquet", ".npz")


def _fields(text: str, separator: str, count: int, source: str) -> list[list[str]]:
    rows = [line.split(separator) for line in text.splitlines() if line.strip()]
    wrong = next((i for i, row in enumerate(rows) if len(row) != count), None)
    if wrong is not None:
        raise ValueError(
            f"{source} has {len(rows[wrong])} fields in row {wrong + 1}, where {count} belong."
        )
    return rows


def _u_user(text: str, source: str) -> dict[str, Any]:
    ids, age, gender, occupation, area = zip(*_fields(text, "|", 5, source), strict=True)
    return {
        "user": [int(each) for each in ids],
        "age": [float(each) for each in age],
        "gender": list(gender),
        "occupation": list(occupation),
        "zip": list(area),
    }


def _u_item(text: str, source: str) -> dict[str, Any]:
    rows = _fields(text, "|", 5 + len(_GENRES), source)
    return {
        "item": [int(row[0]) for row in rows],
        "year": [float(row[2][-4:]) if row[2] else None for row in rows],
        "genres": [
            [genre for genre, flag in zip(_GENRES, row[5:], strict=True) if flag == "1"]
            for row in rows
        ],
    }


def _users_dat(text: str, source: str) -> dict[str, Any]:
    ids, gender, age, occupation, area = zip(*_fields(text, "::", 5, source), strict=True)
    return {
        "user": [int(each) for each in ids],
        "gender": list(gender),
        "age": [float(each) for each in age],
        "occupation": list(occupation),
        "zip": list(area),
    }


def _movies_dat(text: str, source: str) -> dict[str, Any]:
    rows = _fields(text, "::", 3, source)
    return {
        "item": [int(row[0]) for row in rows],
        "year": [_year(row[1]) for row in rows],
        "genres": [row[2].split("|") for row in rows],
    }


_DATS = (("users.dat", _users_dat), ("movies.dat", _movies_dat))


def _with_years(table: dict[str, Any]) -> dict[str, Any]:
    """With a column of years where titles end in one, as those of MovieLens do."""
    if "title" not in table or "year" in table:
        return table
    titles = columns.as_arrow(table["title"], "title", "the table").to_pylist()
    years = [_year(str(title)) for title in titles]
    is_told = sum(year is not None for year in years) * 2 > len(years)
    return {**table, "year": years} if is_told else table


def _year(title: str) -> float | None:
    found = _YEAR.search(title)
    return float(found[1]) if found else None
