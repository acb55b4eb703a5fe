"""New users and items of a fitted recommender, without a refit: their law given the other side."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.data.ratings import Ratings
from sghmc.estimators.recommender.factor_chain import RESOLUTION
from sghmc.estimators.rows import padded, padded_size
from sghmc.models.factor_conditional import Blocks, draw_items, draw_users
from sghmc.types import PyTree

_BLOCK = 64
"""Ratings in a block: somebody who rated much has many, and one program serves all."""


class Known(NamedTuple):
    """How many users and items the draws have rows for."""

    num_users: int
    num_items: int


def fold_in(
    key: jax.Array, draws: dict[str, np.ndarray], ratings: Ratings, known: Known, users: np.ndarray
) -> dict[str, np.ndarray]:
    """Draws by name with rows for all users and items of `ratings` (standardized).

    `users` are the codes of those who get a fresh row, from all their ratings of known items. New
    items then get theirs from all who rated them.
    """
    with jax.default_device(_processor()):
        return _fold_in(key, draws, ratings, known, users)


def _processor() -> Any:
    """The CPU, where there is one: the reduction to tridiagonal form has no batches on a GPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _fold_in(
    key: jax.Array, draws: dict[str, np.ndarray], ratings: Ratings, known: Known, users: np.ndarray
) -> dict[str, np.ndarray]:
    of_users, of_items = jax.random.split(key)
    is_known = ratings.item < known.num_items
    is_asked = np.zeros(ratings.num_users, bool)
    is_asked[users] = True
    place = np.cumsum(is_asked) - 1
    rows = np.flatnonzero(is_asked[ratings.user] & is_known)
    blocks, length = _blocks(
        place[ratings.user[rows]], ratings.item[rows], ratings.rating[rows], len(users)
    )
    items = padded(draws["item"], padded_size(known.num_items, 8), axis=1)
    fresh, noise = _users(
        of_users, length, blocks, items, _prior(draws, "user"), draws["noise_rate"]
    )
    new = {
        "user": _with_rows(draws["user"], users, np.asarray(fresh), ratings.num_users),
        "noise": _with_rows(draws["noise"], users, np.asarray(noise), ratings.num_users),
    }
    if ratings.num_items > known.num_items:
        rows = np.flatnonzero(~is_known)
        codes = np.arange(known.num_items, ratings.num_items)
        raters, rater = np.unique(ratings.user[rows], return_inverse=True)
        blocks, length = _blocks(
            ratings.item[rows] - known.num_items, rater, ratings.rating[rows], len(codes)
        )
        size = padded_size(len(raters), 4)
        others = (padded(new[name][:, raters], size, axis=1) for name in ("user", "noise"))
        fresh = _items(of_items, length, blocks, *others, _prior(draws, "item"))
        new["item"] = _with_rows(draws["item"], codes, np.asarray(fresh), ratings.num_items)
    return {**draws, **new}


def _blocks(
    owner: np.ndarray, other: np.ndarray, rating: np.ndarray, num_owners: int
) -> tuple[Blocks, int]:
    """Ratings sorted into blocks of their owners, and the number of owners with padding."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=num_owners)
    num_blocks = -(-counts // _BLOCK)
    starts, firsts = (np.cumsum(each) - each for each in (counts, num_blocks))
    sorted_owner = owner[order]
    within = np.arange(len(order)) - starts[sorted_owner]
    block, place = firsts[sorted_owner] + within // _BLOCK, within % _BLOCK
    size = padded_size(max(int(num_blocks.sum()), 1), 4)

    def filled(values: np.ndarray, kind: type) -> jax.Array:
        table = np.zeros((size, _BLOCK), kind)
        table[block, place] = values
        return jnp.asarray(table)

    owners = np.repeat(np.arange(num_owners, dtype=np.int32), num_blocks)
    blocks = Blocks(
        jnp.asarray(padded(owners, size)),
        filled(other[order], np.int32),
        filled(rating[order], np.float32),
        filled(np.ones(len(order)), np.float32),
    )
    return blocks, padded_size(num_owners, 4)


def _prior(draws: dict[str, np.ndarray], side: str) -> PyTree:
    return {part: draws[f"{side}.{part}"].astype(np.float32) for part in ("mean", "precision")}


def _with_rows(known: np.ndarray, codes: np.ndarray, fresh: np.ndarray, length: int) -> np.ndarray:
    """Draws (draw, row, …) up to `length` rows, those of `codes` fresh."""
    rows = padded(known, length, axis=1)
    rows[:, codes] = fresh[:, : len(codes)]
    return rows


@functools.partial(jax.jit, static_argnames=("num_users",))
def _users(key, num_users, blocks, items, prior, noise_rate):
    """(draw, user, column) and (draw, user)."""

    def one(draw):
        key, items, prior, rate = draw
        return draw_users(key, blocks, num_users, items, prior, rate, RESOLUTION)

    keys = jax.random.split(key, len(items))
    return jax.lax.map(one, (keys, items, prior, jnp.asarray(noise_rate, jnp.float32)))


@functools.partial(jax.jit, static_argnames=("num_items",))
def _items(key, num_items, blocks, users, noise, prior):
    """(draw, item, column)."""

    def one(draw):
        key, users, noise, prior = draw
        return draw_items(key, blocks, num_items, users, noise, prior)

    keys = jax.random.split(key, len(users))
    return jax.lax.map(one, (keys, users, jnp.asarray(noise, jnp.float32), prior))
