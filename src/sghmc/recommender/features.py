"""Read features of users and items from files: those of MovieLens, or any table."""

import pathlib
import re
from typing import Any

from sghmc.data import columns
from sghmc.data.archives import Archive
from sghmc.data.columns import find_ids
from sghmc.data.table_files import Style, read_columns
from sghmc.recommender.side_information import SideTable, side_table

_FILES = {
    "user": ("u.user", "users.dat", "users.csv", "users.parquet", "users.npz"),
    "item": ("u.item", "movies.dat", "movies.csv", "items.csv", "items.parquet", "items.npz"),
}
"""Names of files with features in a folder or an archive, as MovieLens has them."""

_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip
"""Genres whose flags are the last fields of u.item, in this order."""

_MOVIELENS = {
    "u.user": ("|", ("user", "age", "gender", "occupation", "zip")),
    "u.item": ("|", ("item", "title", "date", "video date", "address", *_GENRES)),
    "users.dat": ("::", ("user", "gender", "age", "occupation", "zip")),
    "movies.dat": ("::", ("item", "title", "genres")),
}
"""Separator and fields of the files of MovieLens without a header."""

_YEAR = re.compile(r"\((\d{4})\)\s*$")


def load_side(path: str | pathlib.Path, role: str) -> SideTable:
    """Read the features of users ("user") or items ("item") in a file.

    Known files are `u.user` and `u.item` of MovieLens 100K, `users.dat` and `movies.dat` of 1M,
    `movies.csv` of newer sets, from the archive or by themselves, and tables (.csv, .tsv, .parquet,
    .npz) with a column of ids: user, movieId, id or the like. A year at the end of titles is a
    feature, too.
    """
    path = pathlib.Path(path)
    for name in _MOVIELENS:
        text = _member(path, name) if name in _FILES[role] else None
        if text is not None:
            return side_table(_movielens(text, name, f"{name} of {path}"), role)
    found = read_columns(path, Style(), _FILES[role])
    ids = find_ids(found, role)
    if ids is not None and path.suffix.lower() not in (".parquet", ".npz"):
        # Again, with ids as text: 007 is not 7.
        found = read_columns(path, Style(lambda name: name == ids), _FILES[role])
    table = {name: columns.whole_numbers(column) for name, column in found.items()}
    return side_table(_with_years(table), role)


def _member(path: pathlib.Path, name: str) -> str | None:
    """Return the text of a file of this name: `path` itself, or in its folder or archive."""
    path = path / name if path.is_dir() else path
    if not path.is_file():
        return None
    if path.name == name:
        content = path.read_bytes()
    elif path.suffix.lower() == ".zip":
        with Archive(path) as archive:
            found = [each for each in archive.members if pathlib.PurePosixPath(each).name == name]
            if not found:
                return None
            content = archive.read(min(found, key=len))
    else:
        return None
    return content.decode("latin-1")


def _movielens(text: str, name: str, source: str) -> dict[str, Any]:
    """Read a file of MovieLens' own format: the columns of a table of features."""
    separator, names = _MOVIELENS[name]
    rows = [line.split(separator) for line in text.splitlines() if line.strip()]
    wrong = next((i for i, row in enumerate(rows) if len(row) != len(names)), None)
    if wrong is not None:
        raise ValueError(
            f"{source} has {len(rows[wrong])} fields in row {wrong + 1}, where {len(names)} belong."
        )
    table: dict[str, Any] = {each: [row[i] for row in rows] for i, each in enumerate(names)}
    role = names[0]
    table[role] = [int(each) for each in table[role]]
    if role == "user":
        return {**table, "age": [float(each) for each in table["age"]]}
    if name == "movies.dat":
        years = [_year(title) for title in table["title"]]
        genres = [each.split("|") for each in table["genres"]]
    else:  # dates end in the year, and the last fields are flags
        years = [float(date[-4:]) if date else None for date in table["date"]]
        flags = [row[-len(_GENRES) :] for row in rows]
        genres = [
            [genre for genre, flag in zip(_GENRES, row, strict=True) if flag == "1"]
            for row in flags
        ]
    return {role: table[role], "year": years, "genres": genres}


def _with_years(table: dict[str, Any]) -> dict[str, Any]:
    """Add a column of years if most titles end in one, as those of MovieLens do."""
    if "title" not in table or "year" in table:
        return table
    titles = columns.as_arrow(table["title"], "title", "the table").to_pylist()
    years = [_year(str(title)) for title in titles]
    are_most = sum(year is not None for year in years) * 2 > len(years)
    return {**table, "year": years} if are_most else table


def _year(title: str) -> float | None:
    found = _YEAR.search(title)
    return float(found[1]) if found else None
