"""Rows given the other side: densities written out, and the way along the draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from sghmc.recommender.clicks import RowsGivenOthers

NUM_DRAWS, NUM_ROWS, NUM_OTHERS, WIDTH, OFFSET = 3, 4, 70, 3, -0.7

rng = np.random.default_rng(0)
OTHERS = rng.normal(size=(NUM_DRAWS, NUM_OTHERS + 5, WIDTH)).astype(np.float32)
PRECISION = rng.gamma(3.0, size=(NUM_DRAWS, WIDTH)).astype(np.float32)
MEANS = {
    "shared": rng.normal(size=(NUM_DRAWS, WIDTH)).astype(np.float32),
    "own": rng.normal(size=(NUM_DRAWS, NUM_ROWS, WIDTH)).astype(np.float32),
}
COUNTS = rng.poisson(0.3, (NUM_ROWS, NUM_OTHERS))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("is_count", [False, True])
def test_the_potential_is_that_of_all_pairs_under_the_draw(mean, is_count):
    model = RowsGivenOthers(
        jnp.asarray(OTHERS),
        jnp.asarray(MEANS[mean]),
        jnp.asarray(PRECISION),
        jnp.asarray(OFFSET),
        jnp.asarray(NUM_OTHERS),
        is_count,
    )
    row, other = np.nonzero(COUNTS)
    count = COUNTS[row, other] if is_count else np.ones(len(row))
    posterior = model.posterior(row, other, count, NUM_ROWS)
    params = jax.random.normal(jax.random.key(0), (NUM_ROWS, WIDTH))
    x = np.asarray(params, float)
    assert posterior.num_rows == 2
    for draw in range(NUM_DRAWS):
        given = posterior.with_hyper({**posterior.hyper, "draw": jnp.int32(draw)})
        others = OTHERS[draw, :NUM_OTHERS].astype(float)
        score = OFFSET + x[:, :-1] @ others[:, :-1].T + x[:, -1:] + others[:, -1]
        if is_count:
            logs = stats.poisson.logpmf(COUNTS, np.exp(score)) + special.gammaln(COUNTS + 1)
        else:
            logs = stats.bernoulli.logpmf(COUNTS > 0, special.expit(score))
        center = MEANS[mean][draw]
        expected = logs.sum() - 0.5 * np.sum(PRECISION[draw] * (x - center) ** 2)
        assert -float(given.potential(params)) == pytest.approx(expected, rel=1e-5)
        following = model.next_draw(jax.random.key(0), params, given)
        assert int(following["draw"]) == min(draw + 1, NUM_DRAWS - 1)


def test_masses_count_and_weigh():
    model = RowsGivenOthers(
        jnp.asarray(OTHERS), jnp.asarray(MEANS["shared"]), jnp.asarray(PRECISION),
        jnp.asarray(OFFSET), jnp.asarray(NUM_OTHERS), False,
    )  # fmt: skip
    weights, counts = rng.random(NUM_OTHERS + 5), np.array([1.0, 2.0])
    mass = model.mass(jnp.asarray(counts, jnp.float32), jnp.asarray(weights, jnp.float32))
    squares = np.average(OTHERS[0] ** 2, axis=0, weights=weights)
    squares[-1] = 1
    np.testing.assert_allclose(mass, counts[:, None] * squares + PRECISION[0], rtol=1e-5)
