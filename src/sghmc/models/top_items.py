"""The best items of many users at once: blocked products of factors, one program for all blocks."""

import functools
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from sghmc.core import xla

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
    kind = jnp.bfloat16 if xla.has_accelerator() else users.dtype
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
