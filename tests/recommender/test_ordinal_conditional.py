"""Rows of newcomers given the other side, where ratings are levels: against integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from sghmc.core import random
from sghmc.core.random import gammas
from sghmc.recommender.fold_in import Blocks
from sghmc.recommender.ordinal import LatentRows, sweep_items, sweep_users

CUTS, RATE = np.array([-0.8, 0.3, 1.1]), 1.7
NUM_CHAINS, NUM_SWEEPS = 4000, 40

rng = np.random.default_rng(0)
OTHERS = rng.normal(size=(6, 2))
LEVEL = np.array([3, 2, 0, 1, 3, 0])
COUNTS = (6, 0, 2)
"""Ratings of each row; the last has the first two of them."""
MEAN, PRECISION = np.array([[0.4, -0.2], [0.1, 0.0], [-0.5, 0.3]]), np.array([1.5, 2.5])


def blocks() -> Blocks:
    shape = (3, 8)
    other, rating, is_real = np.full(shape, 2), np.full(shape, 1.0), np.zeros(shape)
    for row, count in enumerate(COUNTS):
        other[row, :count], rating[row, :count] = np.arange(count), LEVEL[:count]
        is_real[row, :count] = 1
    return Blocks(
        jnp.arange(3, dtype=jnp.int32),
        jnp.asarray(other, jnp.int32),
        jnp.asarray(rating, jnp.float32),
        jnp.asarray(is_real, jnp.float32),
    )


GRIDS = np.linspace(-3.5, 3.5, 141), np.linspace(-3.0, 3.0, 121)


def probabilities(noise: np.ndarray, count: int) -> np.ndarray:
    """Of the first ratings at all rows of the grid: (…, factor, bias)."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    total = np.ones(())
    for j in range(count):
        mean = OTHERS[j, 0] * GRIDS[0][:, None] + GRIDS[1][None] + OTHERS[j, 1]
        root = np.sqrt(noise[..., j])[..., None, None]
        low, high = (stats.norm.cdf((edges[LEVEL[j] + k] - mean) * root) for k in (0, 1))
        total = total * (high - low)
    return total


def check(rows: np.ndarray, density: np.ndarray, row: int) -> None:
    """Factor and bias of a row; Kolmogorov–Smirnov at 10⁻⁵, for each."""
    prior = [
        stats.norm.pdf(grid, MEAN[row, k], PRECISION[k] ** -0.5) for k, grid in enumerate(GRIDS)
    ]
    density = density * prior[0][:, None] * prior[1][None]
    for k, grid in enumerate(GRIDS):
        marginal = np.broadcast_to(density, (len(GRIDS[0]), len(GRIDS[1]))).sum(1 - k)
        distribution = np.cumsum(marginal) - marginal / 2
        uniform = np.interp(rows[:, row, k], grid, distribution / marginal.sum())
        assert stats.kstest(uniform, "uniform").pvalue > 1e-5


def after_sweeps(sweep) -> LatentRows:
    def chain(key):
        def one(i, state):
            return sweep(jax.random.fold_in(key, i), state)

        return jax.lax.fori_loop(0, NUM_SWEEPS, one, LatentRows(jnp.zeros((3, 2)), START))

    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), NUM_CHAINS))


START = jnp.ones(3)
PRIOR = {"mean": jnp.asarray(MEAN, jnp.float32), "precision": jnp.asarray(PRECISION, jnp.float32)}


@pytest.mark.slow
def test_users_have_their_law_given_levels():
    """With τ ~ Gamma(3, ρ) summed over a grid; somebody without ratings has the prior."""

    def sweep(key, state):
        others, cuts = jnp.asarray(OTHERS, jnp.float32), jnp.asarray(CUTS, jnp.float32)
        return sweep_users(key, blocks(), state, others, PRIOR, jnp.float32(RATE), cuts)

    found = after_sweeps(sweep)
    noise = np.geomspace(0.02, 12, 60)
    weight = stats.gamma.pdf(noise, 3, scale=1 / RATE) * np.gradient(noise)
    for row, count in enumerate(COUNTS):
        at = probabilities(np.repeat(noise[:, None], 6, axis=1), count)
        at = np.broadcast_to(at, (len(noise), len(GRIDS[0]), len(GRIDS[1])))
        check(np.asarray(found.rows), np.einsum("n,nij->ij", weight, at), row)
    of_nobody = stats.gamma(3, scale=1 / RATE)
    assert stats.kstest(np.asarray(found.noise[:, 1]), of_nobody.cdf).pvalue > 1e-5


@pytest.mark.slow
def test_items_have_their_law_given_levels_and_their_raters_precisions():
    noise = rng.gamma(3.0, size=6)

    def sweep(key, state):
        others, cuts = jnp.asarray(OTHERS, jnp.float32), jnp.asarray(CUTS, jnp.float32)
        given = state._replace(noise=jnp.asarray(noise, jnp.float32))
        return sweep_items(key, blocks(), given, others, PRIOR, cuts)._replace(noise=START)

    found = after_sweeps(sweep)
    for row, count in enumerate(COUNTS):
        check(np.asarray(found.rows), probabilities(noise, count), row)


def hidden_numbers(key, rows: np.ndarray, noise: np.ndarray):
    """(owner, other, z) of all real ratings, by inversion; `noise` is (row, other)."""
    uniform = np.asarray(jax.random.uniform(key, (3, 8)), float)
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    found = []
    for row, count in enumerate(COUNTS):
        for j in range(count):
            mean, root = predictions(rows[row], OTHERS[j]), np.sqrt(noise[row, j])
            low, high = ((edges[LEVEL[j] + k] - mean) * root for k in (0, 1))
            share = uniform[row, j] if low + high > 0 else 1 - uniform[row, j]
            found.append((row, j, mean + stats.truncnorm.ppf(share, low, high) / root))
    return found


def regression(row: int, hidden, noise: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """The row's law given hidden numbers, at some normal numbers."""
    matrix, vector = np.diag(PRECISION), PRECISION * MEAN[row]
    for owner, j, z in hidden:
        if owner == row:
            x = np.append(OTHERS[j, :-1], 1.0)
            matrix = matrix + noise[row, j] * np.outer(x, x)
            vector = vector + noise[row, j] * x * (z - OTHERS[j, -1])
    root = np.linalg.cholesky(matrix)
    return np.linalg.solve(matrix, vector) + np.linalg.solve(root.T, normal)


ROWS = np.random.default_rng(3).normal(size=(3, 2))


def f32(values) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def test_a_sweep_of_users_is_the_one_written_down():
    """Hidden numbers, rows and precisions of one sweep, variate by variate."""
    noise = np.array([0.6, 1.4, 2.3])

    @jax.jit
    def swept(rows, noise):
        key, state = jax.random.key(7), LatentRows(rows, noise)
        return sweep_users(key, blocks(), state, f32(OTHERS), PRIOR, f32(RATE), f32(CUTS))

    found = swept(f32(ROWS), f32(noise))
    of_hidden, of_rows, of_noise = jax.random.split(jax.random.key(7), 3)
    owned = np.repeat(noise[:, None], 8, axis=1)
    hidden = hidden_numbers(of_hidden, ROWS, owned)
    normal = np.asarray(jax.random.normal(of_rows, (3, 2)), float)
    shapes = f32(3 + np.array(COUNTS) / 2)
    gamma = np.asarray(jax.jit(gammas)(random.words(of_noise), shapes), float)
    for row in range(3):
        expected = regression(row, hidden, owned, normal[row])
        np.testing.assert_allclose(found.rows[row], expected, rtol=2e-3, atol=1e-3)
        squares = sum(
            (z - predictions(expected, OTHERS[j])) ** 2 for owner, j, z in hidden if owner == row
        )
        assert float(found.noise[row]) == pytest.approx(gamma[row] / (RATE + squares / 2), rel=5e-3)


def test_a_sweep_of_items_weighs_by_their_raters_precisions():
    raters = np.array([0.5, 1.7, 2.6, 0.8, 3.1, 1.2])

    @jax.jit
    def swept(rows, noise):
        key, state = jax.random.key(9), LatentRows(rows, noise)
        return sweep_items(key, blocks(), state, f32(OTHERS), PRIOR, f32(CUTS))

    found = swept(f32(ROWS), f32(raters))
    of_hidden, of_rows = jax.random.split(jax.random.key(9))
    each = np.tile(raters, (3, 1))
    hidden = hidden_numbers(of_hidden, ROWS, each)
    normal = np.asarray(jax.random.normal(of_rows, (3, 2)), float)
    for row in range(3):
        expected = regression(row, hidden, each, normal[row])
        np.testing.assert_allclose(found.rows[row], expected, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(found.noise, raters, rtol=1e-6)
