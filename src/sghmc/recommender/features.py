"""Features of users and items from files: MovieLens' own, or any table.

Side information of a recommender's users and items: what it learned of it, and for whom.

What a model file has besides draws: ratings, their scale, and features, as arrays by name.
"""

import dataclasses
import json
import pathlib
import re
from typing import Any

import jax.numpy as jnp
import numpy as np

from sghmc.data import columns
from sghmc.data.archives import Archive
from sghmc.data.columns import find_ids
from sghmc.data.table_files import Style, read_columns
from sghmc.estimators.storage import ModelFileError
from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.factor_gibbs import SIDES, Features
from sghmc.recommender.ratings import Ratings, codes_of
from sghmc.recommender.side_information import Entries, SideEncoding, SideTable, side_table

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


# Side information of a recommender's users and items: what it learned of it, and for whom.


@dataclasses.dataclass(frozen=True)
class Side:
    """The features of one side: how columns became them, and those of all codes."""

    encoding: SideEncoding
    entries: Entries

    def features(self) -> Features:
        """As a model takes them, padded so that a few more find their program compiled."""
        group = self.encoding.group
        length = padded_size(len(self.entries.row), 4)
        row, column, value = (jnp.asarray(padded(part, length)) for part in self.entries)
        sizes = np.bincount(group).astype(np.float32)
        return Features(row, column, value, jnp.asarray(group), jnp.asarray(sizes))

    def centers(self, draws: dict[str, np.ndarray], side: str, codes: np.ndarray) -> np.ndarray:
        """What rows of some codes lie around under each draw: (draw, code, column)."""
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


Sides = dict[str, Side]
"""By "user" and "item", those that have features."""


def given(users: Any, items: Any) -> dict[str, SideTable]:
    """Tables of features, by side."""
    tables = dict(zip(SIDES, (users, items), strict=True))
    return {side: side_table(table, side) for side, table in tables.items() if table is not None}


def with_ids(ratings: Ratings, tables: dict[str, SideTable]) -> Ratings:
    """Ratings that also know whom only a table of features knows."""
    for side, table in tables.items():
        known = getattr(ratings, f"{side}s")
        new = table.ids[codes_of(table.ids, known) < 0]
        ratings = dataclasses.replace(ratings, **{f"{side}s": np.concatenate([known, new])})
    return ratings


def learned(tables: dict[str, SideTable], ratings: Ratings) -> Sides:
    """Features of a first fit."""
    encodings = {
        side: SideEncoding.of(table, getattr(ratings, f"{side}s")) for side, table in tables.items()
    }
    empty = {side: Side(encoding, Entries.none()) for side, encoding in encodings.items()}
    return extended(empty, tables, ratings, dict.fromkeys(empty, 0))


def extended(
    sides: Sides, tables: dict[str, SideTable], ratings: Ratings, known: dict[str, int]
) -> Sides:
    """With the rows of new tables, and with those beyond the known that no table has.

    Features are those of the first fit: of a new category nothing is known.
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
        entries = entries.replaced(old.encoding.without_row(absent), absent)
        found[side] = Side(old.encoding, entries)
    return found


# What a model file has besides draws: ratings, their scale, and features, as arrays by name.

_RATINGS, _FEATURES = "ratings.", "features."
"""Begin the names of their arrays, where draws have names without either."""


def packed(model: Any) -> dict[str, np.ndarray]:
    """All arrays of a fitted recommender."""
    columns = dataclasses.asdict(model.ratings_)
    parts = {name: column for name, column in columns.items() if column is not None}
    parts |= {"scale": model.scale_, "num_fits": np.array(model.num_fits_)}
    arrays = {f"{_RATINGS}{name}": part for name, part in parts.items()}
    for side, each in model.sides_.items():
        text = json.dumps(each.encoding.plain()).encode()
        named = {"encoding": np.frombuffer(text, np.uint8), **each.entries._asdict()}
        arrays |= {f"{_FEATURES}{side}.{name}": part for name, part in named.items()}
    return model.draws_ | arrays


def unpack(model: Any, path: str) -> None:
    """Give a model that was read what `packed` put among its draws."""
    ratings, features = (_taken(model.draws_, prefix) for prefix in (_RATINGS, _FEATURES))
    try:
        model.scale_, model.num_fits_ = ratings.pop("scale"), int(ratings.pop("num_fits"))
        model.ratings_ = Ratings(**ratings)
        model.sides_ = {
            side: _side(_taken(features, f"{side}."))
            for side in SIDES
            if any(name.startswith(f"{side}.") for name in features)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} is none that sghmc wrote: {error}.") from error


def _side(parts: dict[str, np.ndarray]) -> Side:
    encoding = SideEncoding.restored(json.loads(parts.pop("encoding").tobytes()))
    return Side(encoding, Entries(**parts))


def _taken(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Those whose name begins so, without the beginning; they are no longer in `arrays`."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}
