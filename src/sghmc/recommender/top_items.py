"""Recommend the best items to all users: blocked products of factors, one program for all."""

import functools
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import runtime
from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.ratings import Ratings

By: TypeAlias = Literal["mean", "upper", "lower", "draw"]

_GROUP_SIZE = 128
"""Items in a group. The k best items are in the k groups with the best maxima."""


class UserBlock(NamedTuple):
    """Rows of some users under every draw, and the items that they have rated.

    `seen` are pairs (place in the block, item); items past the last one are padding.
    """

    users: jax.Array  # (draw, user, column)
    seen: jax.Array  # (pair, 2)


class Top(NamedTuple):
    """Best items of each user, best first, with means and variances of their ratings, and scores.

    If no item is left, the score is −∞.
    """

    item: jax.Array  # (user, k)
    mean: jax.Array
    variance: jax.Array
    score: jax.Array


@functools.partial(jax.jit, static_argnames=("k", "by"))
def top_items(
    block: UserBlock, items: jax.Array, draw: jax.Array, width: jax.Array, *, k: int, by: By
) -> Top:
    """Return the `k` items with the highest score that a user has not rated.

    | by | score |
    | --- | --- |
    | "mean" | the mean over draws |
    | "upper", "lower" | `width` standard deviations over draws above it, or below |
    | "draw" | the mean under one draw, number `draw` |

    A first pass over all items, in bfloat16 on an accelerator for "mean", finds somewhat more than
    twice as many as needed; these are then scored exactly.
    """
    if by == "mean":
        score = _rough_means(block.users, items)
    elif by == "draw":
        score = _ratings(block.users[draw], items[draw])
    else:
        mean, variance = _moments(_ratings, block.users, items)
        score = _bound(mean, variance, width, by)
    places, seen = block.seen.T
    score = score.at[places, seen].set(-jnp.inf, mode="drop")
    rough, candidates = _top(score, min(2 * k + 8, items.shape[1]))

    def of_candidates(user: jax.Array, item: jax.Array) -> jax.Array:
        rows = item[candidates]
        product = jnp.einsum("bk,bck->bc", user[:, :-1], rows[..., :-1])
        return product + user[:, -1:] + rows[..., -1]

    mean, variance = _moments(of_candidates, block.users, items)
    exact = {"draw": rough, "mean": mean}.get(by, _bound(mean, variance, width, by))
    exact = jnp.where(jnp.isfinite(rough), exact, -jnp.inf)
    best, order = jax.lax.top_k(exact, min(k, items.shape[1]))

    def ordered(part: jax.Array) -> jax.Array:
        return jnp.take_along_axis(part, order, axis=1)

    return Top(ordered(candidates), ordered(mean), ordered(variance), best)


def _bound(mean: jax.Array, variance: jax.Array, width: jax.Array, by: By) -> jax.Array:
    return mean + (width if by == "upper" else -width) * jnp.sqrt(variance)


def _ratings(users: jax.Array, items: jax.Array) -> jax.Array:
    """Return the means of all pairs (user, item) under one draw."""
    return users[:, :-1] @ items[:, :-1].T + users[:, -1:] + items[:, -1][None]


def _rough_means(users: jax.Array, items: jax.Array) -> jax.Array:
    """Average over draws by one product, (user, draw · column) by (draw · column, item)."""
    kind = jnp.bfloat16 if runtime.has_accelerator() else users.dtype
    product = jnp.einsum(
        "dbk,dik->bi",
        users[..., :-1].astype(kind),
        items[..., :-1].astype(kind),
        preferred_element_type=users.dtype,
    )
    biases = jnp.mean(users[..., -1], axis=0)[:, None] + jnp.mean(items[..., -1], axis=0)[None]
    return product / len(users) + biases


def _moments(
    ratings: Callable[[jax.Array, jax.Array], jax.Array], users: jax.Array, items: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over draws of ratings given the rows of users and items."""
    # Relative to the first draw: squares of small differences do not cancel.
    first = ratings(users[0], items[0])

    def add(sums, draw):
        difference = ratings(*draw) - first
        return (sums[0] + difference, sums[1] + difference**2), None

    start = (jnp.zeros_like(first), jnp.zeros_like(first))
    (total, squares), _ = jax.lax.scan(add, start, (users, items))
    count = len(users)
    mean = total / count
    variance = jnp.maximum(squares / count - mean**2, 0.0) * count / max(count - 1, 1)
    return first + mean, variance


def _top(score: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Return the k largest values of each row, exactly, and their places."""
    num_rows, length = score.shape
    num_groups = -(-length // _GROUP_SIZE)
    if num_groups <= k:
        return jax.lax.top_k(score, k)
    padding = ((0, 0), (0, num_groups * _GROUP_SIZE - length))
    grouped = jnp.pad(score, padding, constant_values=-jnp.inf)
    grouped = grouped.reshape(num_rows, num_groups, _GROUP_SIZE)
    _, groups = jax.lax.top_k(jnp.max(grouped, axis=2), k)
    inside = jnp.take_along_axis(grouped, groups[..., None], axis=1).reshape(num_rows, -1)
    best, place = jax.lax.top_k(inside, k)
    group = jnp.take_along_axis(groups, place // _GROUP_SIZE, axis=1)
    # If no item is left, padding may be chosen: its code must still be an item's.
    return best, jnp.minimum(group * _GROUP_SIZE + place % _GROUP_SIZE, length - 1)


# All users, block after block.

_MAX_BLOCK_PAIRS, _MAX_BLOCK_USERS = 1 << 25, 1024
"""Most pairs of users and items, and users, in a block: 128 MiB of scores."""


class Best(NamedTuple):
    """Recommendations in codes and the model's units: user after user, best first."""

    user: np.ndarray
    item: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """Place of each recommendation among its user's, from 1."""
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
    """Return the k best items of every user, or all that are left.

    With "draw" each user's order is that of a random draw. The variance is that of the posterior,
    without the noise of ratings.
    """
    users, items = draws["user"], jnp.asarray(draws["item"])
    seen_by = _RatedItems(ratings if exclude_seen else ratings.take(np.arange(0)))
    size = min(_MAX_BLOCK_USERS, max(8, _MAX_BLOCK_PAIRS // ratings.num_items))
    batches = list(_batches(ratings.num_users, len(users), size, by, generator))
    # All blocks have the shape of the largest: one program.
    length = padded_size(max(len(codes) for codes, _ in batches), 1)
    num_pairs = padded_size(max(seen_by.count[codes].sum() for codes, _ in batches).item(), 1)
    found: list[Best] = []
    pending: tuple[np.ndarray, Top] | None = None
    for codes, draw in batches:
        seen = seen_by.pairs(codes)
        pairs = np.full((num_pairs, 2), ratings.num_items, np.int32)
        pairs[: len(seen)] = seen
        rows = padded(users[:, codes], length, axis=1)
        block = UserBlock(jnp.asarray(rows), jnp.asarray(pairs))
        top = top_items(block, items, jnp.asarray(draw), jnp.asarray(width), k=k, by=by)
        # The previous block is fetched only now: the device worked on it while the host prepared
        # this one.
        found += [] if pending is None else [_fetched(*pending)]
        pending = codes, top
    assert pending is not None
    found.append(_fetched(*pending))
    whole = Best(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    order = np.argsort(whole.user, kind="stable")
    return Best(*(part[order] for part in whole))


def _fetched(codes: np.ndarray, top: Top) -> Best:
    """Fetch the recommendations of a block, without padding and items that are not left."""
    item, mean, variance, score = (part[: len(codes)] for part in jax.device_get(top))
    is_left = np.isfinite(score)
    owner = np.broadcast_to(codes[:, None], item.shape)
    return Best(*(part[is_left] for part in (owner, item, mean, variance)))


def _batches(
    num_users: int, num_draws: int, size: int, by: By, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield codes of users in blocks, and the number of the draw that orders their items."""
    if by != "draw":
        for first in range(0, num_users, size):
            yield np.arange(first, min(first + size, num_users)), 0
        return
    draw = generator.integers(num_draws, size=num_users)
    for each in range(num_draws):
        mine = np.flatnonzero(draw == each)
        for first in range(0, len(mine), size):
            yield mine[first : first + size], each


class _RatedItems:
    """Items that users have rated, sorted by user."""

    def __init__(self, ratings: Ratings):
        self.item = ratings.item[np.argsort(ratings.user, kind="stable")]
        self.count = np.bincount(ratings.user, minlength=ratings.num_users)
        self.start = np.cumsum(self.count) - self.count

    def pairs(self, users: np.ndarray) -> np.ndarray:
        """Return the pairs (place among `users`, item) that these users have rated."""
        count = self.count[users]
        place = np.repeat(np.arange(len(users)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        item = self.item[np.repeat(self.start[users], count) + within]
        return np.stack([place, item], axis=1).astype(np.int32)
