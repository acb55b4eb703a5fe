"""Ratings of items by users: from the MovieLens archives, from any table, or made up.

Ids may be of any type. Inside they are codes 0, 1, …; `Ratings.users` and `Ratings.items` say which
id a code stands for.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sghmc.core.checks import check_count
from sghmc.data import columns
from sghmc.data.columns import ROLES, columns_of, find, plain
from sghmc.data.table_files import Style, read_columns

DUPLICATES = ("error", "last", "mean", "sum")

_TIMES = ("timestamp", "time", "date")
_NUMERIC = (*ROLES["rating"], "timestamp")
"""Columns of text that are numbers in any case."""

_HEADERLESS = ("user", "item", "rating", "timestamp")
_FILES = ("ratings.dat", "u.data", "ratings.csv", "ratings.parquet", "ratings.npz")
"""Those of the ratings in a folder or an archive of MovieLens, or like it."""


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Who rated what, and how: one row a rating.

    | field | what |
    | --- | --- |
    | `user`, `item` | codes, int32 |
    | `rating` | float32 |
    | `users`, `items` | the ids: `users[user]` is whom a row speaks of |
    | `time` | when, in seconds from any start; None where it is not known |

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
        """These and new ratings; users and items keep their codes, new ones come after them.

        Where both rate the same pair, the new rating counts, or what `duplicates` says.
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
        """Some of the rows; users and items keep their codes."""
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
    """The ratings in a file.

    Reads `ml-1m.zip` or its `ratings.dat`, `ml-100k.zip` or its `u.data`, the `ratings.csv` of
    newer MovieLens sets and their archives, and tables (.csv, .tsv, .parquet, .npz, or one of them
    in a zip file) with columns of users, items or movies, and ratings. Columns are known by names
    such as userId, movie_id, Rating, or named with `user`, `item`, `rating`; text without a header
    has user, item, rating first. `duplicates` says what becomes of a pair (user, item) that is
    rated twice: "error", "last", "mean" or "sum". With `is_rated` False the column of ratings may
    be missing: every row then says that a pair came up once.
    """
    # Ids stay text until all are seen: 007 is not 7.
    style = Style(lambda name: plain(name) not in _NUMERIC, headerless=_HEADERLESS)
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
    """The ratings in a pandas, polars or Arrow table, a dict of columns, or three arrays.

    Two arrays will do with `is_rated` False, as a table without ratings does.
    """
    if isinstance(table, Ratings):
        return table
    columns = _columns(table)
    return _from_columns(columns, (user, item, rating), duplicates, is_rated, "the table")


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
    """Ratings drawn from the model: mean + user's and item's bias + product of factors + noise.

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
    """(train, test) rows of each fold of a random partition: every row is tested once."""
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
    """The position of each id in `known`, −1 where it is not there.

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
    """An id as somebody types it, of the type that the known ones have."""
    if known.dtype.kind == "U":
        return text
    try:
        return float(text) if known.dtype.kind == "f" else int(text)
    except ValueError:
        raise ValueError(
            f"Ids are numbers here, {known.tolist()[0]!r} for example, but {text!r} was asked for."
        ) from None


def _with_new(known: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Known ids followed by new ones, and the code of each of `ids`."""
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
    if duplicates not in DUPLICATES:
        raise ValueError(f"duplicates must be one of {DUPLICATES}, but is {duplicates!r}.")
    if (
        not is_rated
        and names[2] is None
        and not any(plain(name) in ROLES["rating"] for name in table)
    ):
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
    """When rows were rated, where a column of the table tells for all of them."""
    for name in table:
        if plain(name) in _TIMES:
            times = _seconds(np.asarray(table[name]))
            if times is not None and times.shape == (length,) and np.all(np.isfinite(times)):
                return times
    return None


def _seconds(values: np.ndarray) -> np.ndarray | None:
    """Numbers, dates or text of either as seconds; None where they are none of these."""
    if values.dtype.kind != "M":
        with contextlib.suppress(ValueError, TypeError):
            return values.astype(np.float64)
    try:
        dates = values.astype("datetime64[s]")
    except (ValueError, TypeError):
        return None
    return np.where(np.isnat(dates), np.nan, dates.astype(np.float64))


def _columns(table: Any) -> Mapping[str, Any]:
    if isinstance(table, tuple | list) and len(table) in (2, 3):
        return dict(zip(ROLES, table, strict=False))
    return columns_of(table, "Ratings", "or three arrays (user, item, rating)")


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
