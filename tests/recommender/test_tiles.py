"""Tiles of all pairs: every one in one of them, none twice."""

import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.recommender import clicks
from sghmc.recommender.clicks import TILE_SIDE, codes_in, tiled


@pytest.mark.parametrize("shape", [(5, 3), (64, 64), (65, 130), (200, 70)])
def test_every_positive_entry_is_in_its_tile(shape):
    rng = np.random.default_rng(0)
    matrix = np.where(rng.random(shape) < 0.3, rng.integers(1, 5, shape), 0)
    row, column = np.nonzero(matrix)
    data = tiled(row, column, matrix[row, column], shape)
    found = np.zeros((len(data["block"]), TILE_SIDE**2 + 1))
    for k, (place, count) in enumerate(zip(data["place"], data["count"], strict=True)):
        np.add.at(found[k], place, count)
    assert np.all(found[:, -1] == 0)
    whole = np.zeros([-(-size // TILE_SIDE) * TILE_SIDE for size in shape])
    for (a, b), tile in zip(data["block"], found[:, :-1], strict=True):
        part = np.s_[a * TILE_SIDE : (a + 1) * TILE_SIDE, b * TILE_SIDE : (b + 1) * TILE_SIDE]
        assert np.all(whole[part] == 0)
        whole[part] = tile.reshape(TILE_SIDE, TILE_SIDE)
    np.testing.assert_array_equal(whole[: shape[0], : shape[1]], matrix)
    assert len(data["block"]) == len(np.unique(data["block"], axis=0))


def test_positions_of_a_block_end_where_the_rows_do():
    position, is_real = codes_in(jnp.int32(1), jnp.int32(TILE_SIDE + 3))
    assert position[:4].tolist() == [TILE_SIDE, TILE_SIDE + 1, TILE_SIDE + 2, TILE_SIDE + 2]
    assert is_real.sum() == 3


@pytest.mark.parametrize("is_count", [False, True])
def test_the_likelihood_of_a_tile_is_that_of_its_pairs(is_count):
    from scipy import special, stats

    rng = np.random.default_rng(1)
    score = rng.normal(size=(TILE_SIDE, TILE_SIDE))
    count = (
        rng.poisson(0.5, (TILE_SIDE, TILE_SIDE))
        if is_count
        else rng.random((TILE_SIDE, TILE_SIDE)) < 0.2
    ) * 1.0
    rows, columns = np.arange(TILE_SIDE) < 50, np.arange(TILE_SIDE) < 7
    count *= rows[:, None] & columns
    row, column = np.nonzero(count)
    data = tiled(row, column, count[row, column], (TILE_SIDE, TILE_SIDE))
    tile = {name: jnp.asarray(part[0]) for name, part in data.items()}
    found = clicks.log_likelihood(
        jnp.asarray(score, jnp.float32), tile, (jnp.asarray(rows), jnp.asarray(columns)), is_count
    )
    if is_count:
        # Up to the factorials of the counts.
        logs = stats.poisson.logpmf(count, np.exp(score)) + special.gammaln(count + 1)
    else:
        logs = stats.bernoulli.logpmf(count, special.expit(score))
    assert float(found) == pytest.approx(logs[np.ix_(rows, columns)].sum(), rel=1e-5)
