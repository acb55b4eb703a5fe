"""All pairs of users and items in tiles, and the likelihood of which of them came up.

A tile is a block of rows times a block of columns: dense, so that its pairs are one product of
matrices, whether they came up or not. It is one example of a posterior: batches of tiles in
shuffled epochs see every pair equally often, and nothing is said of pairs by sampling them.
"""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.types import PyTree

SIDE = 64
"""Rows and columns of a tile."""


def tiled(
    row: np.ndarray, column: np.ndarray, count: np.ndarray, shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Tiles of all pairs of a matrix, of whose entries some are positive.

    | array | what |
    | --- | --- |
    | `block` | (tile, 2): numbers of the blocks of rows and columns |
    | `place` | (tile, entry): where its positive entries are; SIDE² stands for no entry |
    | `count` | (tile, entry): those entries |
    """
    num_blocks = [max(1, -(-size // SIDE)) for size in shape]
    tile = (row // SIDE).astype(np.int64) * num_blocks[1] + column // SIDE
    order = np.argsort(tile, kind="stable")
    counts = np.bincount(tile, minlength=num_blocks[0] * num_blocks[1])
    starts = np.cumsum(counts) - counts
    number = tile[order]
    within = np.arange(len(order)) - starts[number]
    width = padded_width(int(counts.max(initial=1)))
    place = np.full((len(counts), width), SIDE**2, np.int32)
    value = np.zeros((len(counts), width), np.float32)
    place[number, within] = (row % SIDE * SIDE + column % SIDE)[order]
    value[number, within] = count[order]
    blocks = np.stack(np.divmod(np.arange(len(counts)), num_blocks[1]), axis=1)
    return {"block": blocks.astype(np.int32), "place": place, "count": value}


def padded_width(size: int) -> int:
    """Entries of the fullest tile with some room, so that a few more find their program."""
    unit = max(8, 2 ** (size - 1).bit_length() // 8)
    return -(-size // unit) * unit


def codes_in(block: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positions that a block has, within bounds, and which of them are real."""
    position = block * SIDE + jnp.arange(SIDE)
    return jnp.minimum(position, size - 1), position < size


def log_likelihood(
    score: jax.Array, tile: PyTree, is_real: tuple[jax.Array, jax.Array], is_count: bool
) -> jax.Array:
    """Of a tile, given the scores of its pairs; of rows and columns some are not real.

    Bernoulli with log-odds s, Σ s over positive pairs − Σ log(1 + eˢ) over all; or, for counts,
    Poisson with log-rates s, Σ y s − Σ eˢ.
    """
    entries = jnp.take(score.ravel(), tile["place"], mode="fill", fill_value=0)
    total = jnp.exp(score) if is_count else jax.nn.softplus(score)
    both = is_real[0][:, None] & is_real[1][None]
    return jnp.sum(tile["count"] * entries) - jnp.sum(jnp.where(both, total, 0))
