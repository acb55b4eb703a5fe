"""Rows of new users and items given the other side's, where ratings are levels: a short chain.

Given hidden numbers z a row has the law of `factor_conditional`; given the row, hidden numbers are
normal between their cuts. Draw after draw of the other side the rows go on from where they are: a
few sweeps each, since one draw is much like the one before.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sghmc.core import random
from sghmc.core.gammas import gammas
from sghmc.models.codes import take_rows
from sghmc.models.factor_conditional import Blocks, moments, rows_given_noise
from sghmc.models.factor_gibbs import NOISE_SHAPE
from sghmc.models.ordinal import bounds_of, draw_inside
from sghmc.types import PyTree


class Rows(NamedTuple):
    """Rows that are drawn, and the precisions of users: their own, or their raters'."""

    rows: jax.Array
    noise: jax.Array


def sweep_users(
    key: jax.Array,
    blocks: Blocks,
    state: Rows,
    items: jax.Array,
    prior: PyTree,
    noise_rate: jax.Array,
    cuts: jax.Array,
) -> Rows:
    """Hidden numbers, rows and precisions of users, each given the rest; ratings are levels."""
    of_hidden, of_rows, of_noise = jax.random.split(key, 3)
    owned = state.noise[blocks.owner][:, None]
    hidden = _hidden(of_hidden, blocks, state.rows, items, owned, cuts)
    found = moments(hidden, len(state.rows), items, prior["mean"], jnp.ones_like(blocks.rating))
    weighted = found._replace(
        gram=state.noise[:, None, None] * found.gram, cross=state.noise[:, None] * found.cross
    )
    normal = jax.random.normal(of_rows, found.cross.shape)
    rows = rows_given_noise(normal, weighted, prior)
    error = hidden.rating - _means(blocks, rows, items)
    squares = jax.ops.segment_sum(
        jnp.sum(blocks.is_real * error**2, axis=1), blocks.owner, len(rows)
    )
    gamma = gammas(random.words(of_noise), NOISE_SHAPE + found.count / 2)
    return Rows(rows, gamma / (noise_rate + squares / 2))


def sweep_items(
    key: jax.Array,
    blocks: Blocks,
    state: Rows,
    users: jax.Array,
    prior: PyTree,
    cuts: jax.Array,
) -> Rows:
    """Hidden numbers and rows of items; `state.noise` has the precisions of all who rated them."""
    of_hidden, of_rows = jax.random.split(key)
    noise = state.noise[blocks.other]
    hidden = _hidden(of_hidden, blocks, state.rows, users, noise, cuts)
    found = moments(hidden, len(state.rows), users, prior["mean"], noise)
    normal = jax.random.normal(of_rows, found.cross.shape)
    return Rows(rows_given_noise(normal, found, prior), state.noise)


def _hidden(
    key: jax.Array,
    blocks: Blocks,
    rows: jax.Array,
    others: jax.Array,
    noise: jax.Array,
    cuts: jax.Array,
) -> Blocks:
    """The blocks with hidden numbers in the place of levels."""
    mean = _means(blocks, rows, others)
    bounds = bounds_of(blocks.rating.astype(jnp.int32), mean, noise, cuts)
    inside = draw_inside(jax.random.uniform(key, mean.shape), *bounds)
    return blocks._replace(rating=mean + inside / jnp.sqrt(noise))


def _means(blocks: Blocks, rows: jax.Array, others: jax.Array) -> jax.Array:
    """Of the pairs in blocks: (block, place)."""
    mine, other = rows[blocks.owner], take_rows(others, blocks.other)
    product = jnp.einsum("bk,bnk->bn", mine[:, :-1], other[..., :-1])
    return product + mine[:, -1:] + other[..., -1]
