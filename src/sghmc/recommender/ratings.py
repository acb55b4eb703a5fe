"""Ratings of items by users: from the MovieLens archives, from any table, or made up.

Ids may be of any type. Inside they are codes 0, 1, …: `Ratings.users` and `Ratings.items` hold the
id of each code.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sghmc.core.checks import check_choice, check_count
from sghmc.data import columns
from sghmc.data.columns import ROLES, columns_of, find, plain
from sghmc.data.table_files import Style, read_columns

DUPLICATES = ("error", "last", "mean", "sum")

_TIME_COLUMNS = ("timestamp", "time", "date")
_NUMERIC_COLUMNS = (*ROLES["rating"], "timestamp")
"""Columns of text files that are read as numbers; ids stay text."""

_HEADERLESS = ("user", "item", "rating", "timestamp")
_FILES = ("ratings.dat", "u.data", "ratings.csv", "ratings.parquet", "ratings.npz")
"""Names of files with ratings in a folder or an archive, as MovieLens has them."""


class Sizes(NamedTuple):
    """Numbers of users and items, in a chain's table or among the draws."""

    user: int
    item: int


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Table of ratings, a row for each.

    | field | what |
    | --- | --- |
    | `user`, `item` | codes, int32 |
    | `rating` | float32 |
    | `users`, `items` | the ids: `users[user]` is the id of a row's user |
    | `time` | in seconds from any start; None if it is not known |

    >>> ratings = from_table((["ann", "bob", "ann"], [31, 31, 7], [4.0, 2.0, 5.0]))
    >>> ratings.user, ratings.users
    (array([0, 1, 0], dtype=int32), array(['ann', 'bob'], dtype='<U3'))
    """

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    users: np.ndarray
    items: np.ndarray
    time: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rating)

    @property
    def num_users(self) -> int:
        return len(self.users)

    @property
    def num_items(self) -> int:
        return len(self.items)

    def joined(self, new: "Ratings", duplicates: str = "last") -> "Ratings":
        """Append new ratings; users and items keep their codes, new ones come after them.

        If both tables rate a pair, `duplicates` decides: by default the new rating counts.
        """
        users, user = _with_new(self.users, new.users)
        items, item = _with_new(self.items, new.items)
        times = [part.time for part in (self, new) if part.time is not None]
        both = Ratings(
            np.concatenate([self.user, user[new.user]]),
            np.concatenate([self.item, item[new.item]]),
            np.concatenate([self.rating, new.rating]),
            users,
            items,
            np.concatenate(times) if len(times) == 2 else None,
        )
        return _without_duplicates(both, duplicates, "the table")

    def take(self, rows: np.ndarray) -> "Ratings":
        """Return some of the rows; users and items keep their codes."""
        return dataclasses.replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            rating=self.rating[rows],
            time=None if self.time is None else self.time[rows],
        )


def load_ratings(
    path: str | pathlib.Path,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    duplicates: str = "error",
    is_rated: bool = True,
) -> Ratings:
    """Read the ratings in a file.

    Known files are `ml-1m.zip` or its `ratings.dat`, `ml-100k.zip` or its `u.data`, the
    `ratings.csv` of newer MovieLens sets and their archives, and tables (.csv, .tsv, .parquet,
    .npz, or one of them in a zip file) with columns of users, items or movies, and ratings. Columns
    are found by names such as userId, movie_id, Rating, or named with `user`, `item`, `rating`;
    text without a header has user, item, rating first. `duplicates` decides about a pair (user,
    item) that is rated twice: "error", "last", "mean" or "sum". With `is_rated` False the column of
    ratings may be missing: every row then means that a pair came up once.
    """
    # Ids stay text until all are read: 007 is not 7.
    style = Style(lambda name: plain(name) not in _NUMERIC_COLUMNS, headerless=_HEADERLESS)
    found = read_columns(pathlib.Path(path), style, _FILES)
    table = {name: columns.whole_numbers(column) for name, column in found.items()}
    return _from_columns(table, (user, item, rating), duplicates, is_rated, str(path))


def from_table(
    table: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    duplicates: str = "error",
    is_rated: bool = True,
) -> Ratings:
    """Take the ratings in a pandas, polars or Arrow table, a dict of columns, or three arrays.

    With `is_rated` False the ratings may be missing, so that two arrays suffice.
    """
    if isinstance(table, Ratings):
        return table
    if isinstance(table, tuple | list) and len(table) in (2, 3):
        table = dict(zip(ROLES, table, strict=False))
    found = columns_of(table, "Ratings", "or three arrays (user, item, rating)")
    return _from_columns(found, (user, item, rating), duplicates, is_rated, "the table")


def synthetic_ratings(
    seed: int,
    num_users: int = 200,
    num_items: int = 100,
    rank: int = 4,
    density: float = 0.3,
    *,
    noise: float = 0.5,
    mean: float = 3.5,
) -> Ratings:
    """Draw ratings from the model: mean + user's and item's bias + product of factors + noise.

    Every pair is rated with probability `density`, and every user and item at least once. Biases
    and the product have standard deviations of about ½ each, the noise `noise`.
    """
    if min(num_users, num_items, rank) < 1 or not 0 < density <= 1:
        raise ValueError(
            f"synthetic_ratings needs at least one user, item and dimension and a density in "
            f"(0, 1], but has {num_users}, {num_items}, {rank} and {density}."
        )
    generator = np.random.default_rng(seed)
    user_factors, item_factors = (
        generator.normal(scale=(0.25 / rank) ** 0.25, size=(count, rank))
        for count in (num_users, num_items)
    )
    biases = [generator.normal(scale=0.5, size=count) for count in (num_users, num_items)]
    is_rated = generator.random((num_users, num_items)) < density
    every = np.arange(max(num_users, num_items))
    is_rated[every % num_users, every % num_items] = True
    user, item = (codes.astype(np.int32) for codes in np.nonzero(is_rated))
    exact = np.sum(user_factors[user] * item_factors[item], axis=1)
    exact += mean + biases[0][user] + biases[1][item]
    rating = exact + generator.normal(scale=noise, size=len(user))
    order = generator.permutation(len(user))
    return Ratings(
        user[order],
        item[order],
        rating[order].astype(np.float32),
        np.arange(num_users),
        np.arange(num_items),
    )


def folds(ratings: Ratings, num_folds: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows (train, test) of each fold of a random partition; a row is tested once."""
    check_count(num_folds, "num_folds", 2)
    if len(ratings) < num_folds:
        raise ValueError(
            f"{len(ratings)} ratings do not fill {num_folds} folds: one of them would be empty."
        )
    order = np.random.default_rng(seed).permutation(len(ratings))
    fold_of = np.empty(len(ratings), np.int64)
    fold_of[order] = np.arange(len(ratings)) % num_folds
    return [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(num_folds)]


def codes_of(ids: Iterable[Any], known: np.ndarray) -> np.ndarray:
    """Return the position of each id in `known`, −1 for an unknown one.

    >>> codes_of(["bob", "eve"], np.array(["ann", "bob"]))
    array([ 1, -1])
    """
    given, which = columns.encode(ids, "ids", "the ids given")
    if len(given) == 0:
        return np.zeros(0, np.int64)
    if (given.dtype.kind == "U") != (known.dtype.kind == "U"):
        raise TypeError(
            f"Ids are {'text' if known.dtype.kind == 'U' else 'numbers'} here, "
            f"{known.tolist()[0]!r} for example, but {given.tolist()[0]!r} was asked for."
        )
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known, given, sorter=order), len(known) - 1)
    found = order[place]
    return np.where(known[found] == given, found, -1)[which]


def id_of(text: str, known: np.ndarray) -> Any:
    """Convert an id that a user typed to the type of the known ones."""
    if known.dtype.kind == "U":
        return text
    try:
        return float(text) if known.dtype.kind == "f" else int(text)
    except ValueError:
        raise ValueError(
            f"Ids are numbers here, {known.tolist()[0]!r} for example, but {text!r} was asked for."
        ) from None


def _with_new(known: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Append new ids to the known ones, and return the code of each of `ids`, too."""
    codes = codes_of(ids, known)
    is_new = codes < 0
    codes[is_new] = len(known) + np.arange(is_new.sum())
    return np.concatenate([known, ids[is_new]]), codes.astype(np.int32)


def _from_columns(
    table: Mapping[str, Any],
    names: tuple[str | None, ...],
    duplicates: str,
    is_rated: bool,
    source: str,
) -> Ratings:
    check_choice(duplicates, "duplicates", DUPLICATES)
    has_ratings = names[2] is not None or any(plain(name) in ROLES["rating"] for name in table)
    if not is_rated and not has_ratings:
        length = len(table[find(table, "user", names[0], source)])
        table = {**table, "rating": np.ones(length, np.float32)}
    chosen = {
        role: table[find(table, role, name, source)]
        for role, name in zip(ROLES, names, strict=True)
    }
    lengths = {role: len(column) for role, column in chosen.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of {source} have different lengths: {lengths}.")
    if lengths["rating"] == 0:
        raise ValueError(f"{source} holds no ratings: it has 0 rows.")
    rating = columns.numbers(chosen["rating"], source)
    users, user = columns.encode(chosen["user"], "user", source)
    items, item = columns.encode(chosen["item"], "item", source)
    ratings = Ratings(user, item, rating, users, items, _times(table, len(rating)))
    return _without_duplicates(ratings, duplicates, source)


def _times(table: Mapping[str, Any], length: int) -> np.ndarray | None:
    """Return the times of all ratings, or None if no column has them."""
    for name in table:
        if plain(name) in _TIME_COLUMNS:
            times = _seconds(np.asarray(table[name]))
            if times is not None and times.shape == (length,) and np.all(np.isfinite(times)):
                return times
    return None


def _seconds(values: np.ndarray) -> np.ndarray | None:
    """Convert numbers, dates, or text of either to seconds; return None for anything else."""
    if values.dtype.kind != "M":
        with contextlib.suppress(ValueError, TypeError):
            return values.astype(np.float64)
    try:
        dates = values.astype("datetime64[s]")
    except (ValueError, TypeError):
        return None
    return np.where(np.isnat(dates), np.nan, dates.astype(np.float64))


def _without_duplicates(ratings: Ratings, duplicates: str, source: str) -> Ratings:
    pair = ratings.user.astype(np.int64) * ratings.num_items + ratings.item
    order = np.argsort(pair, kind="stable")
    is_repeat = np.diff(pair[order], prepend=-1) == 0
    if not is_repeat.any():
        return ratings
    if duplicates == "error":
        row = int(order[is_repeat].min())
        raise ValueError(
            f"{source} rates the same item twice: user {ratings.users[ratings.user[row]]} and item "
            f"{ratings.items[ratings.item[row]]} again in row {row + 1}; {is_repeat.sum():,} of "
            f'{len(pair):,} rows repeat a pair. duplicates="last", "mean" or "sum" resolves them.'
        )
    starts = np.flatnonzero(~is_repeat)
    if duplicates == "last":
        return ratings.take(np.sort(order[np.append(starts[1:], len(order)) - 1]))
    counts = np.diff(np.append(starts, len(order))) if duplicates == "mean" else 1
    whole = np.add.reduceat(ratings.rating[order].astype(np.float64), starts) / counts
    first = order[starts]
    in_order = np.argsort(first)
    return dataclasses.replace(
        ratings.take(first[in_order]), rating=whole[in_order].astype(np.float32)
    )
