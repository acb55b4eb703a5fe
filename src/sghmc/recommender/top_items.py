"""The best items of many users at once: blocked products of factors, one program for all blocks.

Recommendations for all users of a fitted recommender, block after block.
"""

import functools
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import runtime
from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.ratings import Ratings

By: TypeAlias = Literal["mean", "upper", "lower", "draw"]

_GROUP = 128
"""Items whose best is looked for first: the k best items are in the k groups with the best ones."""


class Block(NamedTuple):
    """Some users: their rows under every draw, and what they have seen.

    `seen` are pairs (place in the block, item); those past the items are padding.
    """

    users: jax.Array  # (draw, user, column)
    seen: jax.Array  # (pair, 2)


class Top(NamedTuple):
    """Of each user, best first: items, means and variances of their ratings, scores.

    A score of −∞ stands where no item is left.
    """

    item: jax.Array  # (user, k)
    mean: jax.Array
    variance: jax.Array
    score: jax.Array


@functools.partial(jax.jit, static_argnames=("k", "by"))
def top_items(
    block: Block, items: jax.Array, draw: jax.Array, width: jax.Array, *, k: int, by: By
) -> Top:
    """The `k` items with the highest score that were not seen.

    | by | score |
    | --- | --- |
    | "mean" | the mean over draws |
    | "upper", "lower" | `width` standard deviations over draws above it, or below |
    | "draw" | that under one draw, number `draw` |

    All items are looked through for twice as many as are asked for, and some more, on an
    accelerator in half precision ("mean"); these are then scored exactly.
    """
    if by == "mean":
        score = _rough_means(block.users, items)
    elif by == "draw":
        score = _ratings(block.users[draw], items[draw])
    else:
        mean, variance = _moments(block.users, items)
        score = _bound(mean, variance, width, by)
    places, seen = block.seen.T
    score = score.at[places, seen].set(-jnp.inf, mode="drop")
    rough, candidates = _top(score, min(2 * k + 8, items.shape[1]))
    mean, variance = _moments_of(block.users, items, candidates)
    exact = {"draw": rough, "mean": mean}.get(by, _bound(mean, variance, width, by))
    exact = jnp.where(jnp.isfinite(rough), exact, -jnp.inf)
    best, order = jax.lax.top_k(exact, min(k, items.shape[1]))

    def ordered(part: jax.Array) -> jax.Array:
        return jnp.take_along_axis(part, order, axis=1)

    return Top(ordered(candidates), ordered(mean), ordered(variance), best)


def _bound(mean: jax.Array, variance: jax.Array, width: jax.Array, by: By) -> jax.Array:
    return mean + (width if by == "upper" else -width) * jnp.sqrt(variance)


def _ratings(users: jax.Array, items: jax.Array) -> jax.Array:
    """Of all pairs (user, item) under one draw."""
    return users[:, :-1] @ items[:, :-1].T + users[:, -1:] + items[:, -1][None]


def _rough_means(users: jax.Array, items: jax.Array) -> jax.Array:
    """One product for all draws, (user, draw · column) by (draw · column, item)."""
    kind = jnp.bfloat16 if runtime.has_accelerator() else users.dtype
    product = jnp.einsum(
        "dbk,dik->bi",
        users[..., :-1].astype(kind),
        items[..., :-1].astype(kind),
        preferred_element_type=users.dtype,
    )
    biases = jnp.mean(users[..., -1], axis=0)[:, None] + jnp.mean(items[..., -1], axis=0)[None]
    return product / len(users) + biases


def _moments(users: jax.Array, items: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over draws, of all pairs."""
    return _over_draws(lambda draw: _ratings(*draw), (users, items), len(users))


def _moments_of(
    users: jax.Array, items: jax.Array, chosen: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The same of some items of each user, (user, candidate)."""

    def ratings(draw):
        user, item = draw
        rows = item[chosen]
        product = jnp.einsum("bk,bck->bc", user[:, :-1], rows[..., :-1])
        return product + user[:, -1:] + rows[..., -1]

    return _over_draws(ratings, (users, items), len(users))


def _over_draws(ratings, draws, count: int) -> tuple[jax.Array, jax.Array]:
    # Around the first draw's: squares of differences do not cancel.
    first = ratings(jax.tree.map(lambda part: part[0], draws))

    def add(sums, draw):
        difference = ratings(draw) - first
        return (sums[0] + difference, sums[1] + difference**2), None

    start = (jnp.zeros_like(first), jnp.zeros_like(first))
    (total, squares), _ = jax.lax.scan(add, start, draws)
    mean = total / count
    variance = jnp.maximum(squares / count - mean**2, 0.0) * count / max(count - 1, 1)
    return first + mean, variance


def _top(score: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k best of each row, exactly: values and places."""
    num_rows, length = score.shape
    num_groups = -(-length // _GROUP)
    if num_groups <= k:
        return jax.lax.top_k(score, k)
    padding = ((0, 0), (0, num_groups * _GROUP - length))
    grouped = jnp.pad(score, padding, constant_values=-jnp.inf)
    grouped = grouped.reshape(num_rows, num_groups, _GROUP)
    _, groups = jax.lax.top_k(jnp.max(grouped, axis=2), k)
    inside = jnp.take_along_axis(grouped, groups[..., None], axis=1).reshape(num_rows, -1)
    best, place = jax.lax.top_k(inside, k)
    group = jnp.take_along_axis(groups, place // _GROUP, axis=1)
    # Where nothing is left, padding may come out: its code must still be an item's.
    return best, jnp.minimum(group * _GROUP + place % _GROUP, length - 1)


# Recommendations for all users of a fitted recommender, block after block.

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
