"""Recommendations for all users of a fitted recommender, block after block."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.data.ratings import Ratings
from sghmc.estimators.rows import padded, padded_size
from sghmc.models.top_items import Block, By, Top, top_items

_SCORES_AT_ONCE, _MOST_USERS = 1 << 25, 1024
"""Pairs of users and items, and users, in a block: 128 MiB of scores."""


class Best(NamedTuple):
    """Recommendations in codes and standardized ratings: of each user in turn, best first."""

    user: np.ndarray
    item: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """The place of each among its user's, from 1."""
        count = np.bincount(self.user)
        return np.arange(len(self.user)) - np.repeat(np.cumsum(count) - count, count) + 1


def best_items(
    draws: dict[str, np.ndarray],
    ratings: Ratings,
    k: int,
    exclude_seen: bool,
    by: By,
    width: float,
    generator: np.random.Generator,
) -> Best:
    """The k best items of every user; fewer where not so many are left.

    With "draw" every user's order is that of a draw of their own. The variance is that of the
    posterior, noise left out.
    """
    users, items = draws["user"], jnp.asarray(draws["item"])
    seen_by = _Seen(ratings if exclude_seen else ratings.take(np.arange(0)))
    size = min(_MOST_USERS, max(8, _SCORES_AT_ONCE // ratings.num_items))
    batches = list(_batches(ratings.num_users, len(users), size, by, generator))
    # Of the longest, for all: one program.
    length = padded_size(max(len(codes) for codes, _ in batches), 1)
    num_pairs = padded_size(max(seen_by.count[codes].sum() for codes, _ in batches).item(), 1)
    found: list[Best] = []
    pending: tuple[np.ndarray, Top] | None = None
    for codes, draw in batches:
        seen = seen_by.pairs(codes)
        pairs = np.full((num_pairs, 2), ratings.num_items, np.int32)
        pairs[: len(seen)] = seen
        rows = padded(users[:, codes], length, axis=1)
        block = Block(jnp.asarray(rows), jnp.asarray(pairs))
        top = top_items(block, items, jnp.asarray(draw), jnp.asarray(width), k=k, by=by)
        # The block before is fetched only now: this one was made ready while it was worked on.
        found += [] if pending is None else [_fetched(*pending)]
        pending = codes, top
    assert pending is not None
    found.append(_fetched(*pending))
    whole = Best(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    order = np.argsort(whole.user, kind="stable")
    return Best(*(part[order] for part in whole))


def _fetched(codes: np.ndarray, top: Top) -> Best:
    """Of a block's real users, what is left to recommend."""
    item, mean, variance, score = (part[: len(codes)] for part in jax.device_get(top))
    is_left = np.isfinite(score)
    owner = np.broadcast_to(codes[:, None], item.shape)
    return Best(*(part[is_left] for part in (owner, item, mean, variance)))


def _batches(
    num_users: int, num_draws: int, size: int, by: By, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """Codes of users, and the number of the draw that is theirs: one for a block."""
    if by != "draw":
        for first in range(0, num_users, size):
            yield np.arange(first, min(first + size, num_users)), 0
        return
    draw = generator.integers(num_draws, size=num_users)
    for each in range(num_draws):
        mine = np.flatnonzero(draw == each)
        for first in range(0, len(mine), size):
            yield mine[first : first + size], each


class _Seen:
    """What users have rated, found by user."""

    def __init__(self, ratings: Ratings):
        self.item = ratings.item[np.argsort(ratings.user, kind="stable")]
        self.count = np.bincount(ratings.user, minlength=ratings.num_users)
        self.start = np.cumsum(self.count) - self.count

    def pairs(self, users: np.ndarray) -> np.ndarray:
        """(place among `users`, item) of all that they have rated."""
        count = self.count[users]
        place = np.repeat(np.arange(len(users)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        item = self.item[np.repeat(self.start[users], count) + within]
        return np.stack([place, item], axis=1).astype(np.int32)
