"""Rows of new users and items given the other side: against closed forms and integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import exact_factorization
from exact_factorization import conditional
from sghmc.recommender import fold_in
from sghmc.recommender.fold_in import (
    Blocks,
    Moments,
    NoiseLaw,
    draw_items,
    draw_users,
    moments,
    rows_given_noise,
)

RANK, NUM_USERS, NUM_ITEMS = 3, 4, 30
COUNTS = (0, 1, 7, 25)
"""Ratings of each user: of nobody nothing is known, of the last more than a row has columns."""
RATE, RESOLUTION = 1.7, 0.3

rng = np.random.default_rng(0)
USER = np.repeat(np.arange(NUM_USERS), COUNTS)
ITEM = np.concatenate([rng.permutation(NUM_ITEMS)[:count] for count in COUNTS])
RATING = rng.normal(size=len(USER))
DATA = exact_factorization.Ratings(USER, ITEM, RATING, NUM_USERS, NUM_ITEMS)
ITEMS = rng.normal(size=(NUM_ITEMS, RANK + 1))
PRIOR = {"mean": rng.normal(size=RANK + 1), "precision": rng.gamma(3.0, size=RANK + 1)}


def blocks_by_hand() -> Blocks:
    """Blocks of ten ratings, those that are not real full of rubbish."""
    shape = (5, 10)
    owner = np.array([1, 2, 3, 3, 3])
    other, rating, is_real = np.full(shape, 2), np.full(shape, 9.0), np.zeros(shape)
    for block, first, count in ((0, 0, 1), (1, 1, 7), (2, 8, 10), (3, 18, 10), (4, 28, 5)):
        rows = slice(first, first + count)
        other[block, :count] = ITEM[rows]
        rating[block, :count] = RATING[rows]
        is_real[block, :count] = 1.0
    return Blocks(
        jnp.asarray(owner, jnp.int32),
        jnp.asarray(other, jnp.int32),
        jnp.asarray(rating, jnp.float32),
        jnp.asarray(is_real, jnp.float32),
    )


def found(weights: np.ndarray) -> Moments:
    others = jnp.asarray(ITEMS, jnp.float32)
    return moments(
        blocks_by_hand(),
        NUM_USERS,
        others,
        jnp.asarray(PRIOR["mean"], jnp.float32),
        jnp.asarray(weights, jnp.float32),
    )


@pytest.mark.slow
def test_rows_given_the_noise_have_the_regressions_law():
    """The mean at z = 0, the covariance from the derivative by z."""
    noise = rng.gamma(3.0, size=NUM_USERS)
    blocks = blocks_by_hand()
    weighted = found(noise[np.asarray(blocks.owner)][:, None] * np.ones((1, 10)))
    prior = {name: jnp.asarray(part, jnp.float32) for name, part in PRIOR.items()}

    def rows(normal):
        return rows_given_noise(normal, weighted, prior)

    zero = jnp.zeros((NUM_USERS, RANK + 1))
    mean, derivative = rows(zero), jax.jacobian(rows)(zero)
    for i in range(NUM_USERS):
        matrix, expected = conditional(DATA, "user", i, ITEMS, noise, *PRIOR.values())
        np.testing.assert_allclose(mean[i], expected, rtol=2e-4, atol=1e-5)
        root = np.asarray(derivative[i, :, i])
        np.testing.assert_allclose(root @ root.T, np.linalg.inv(matrix), rtol=1e-3, atol=1e-5)
        assert not np.any(np.delete(np.asarray(derivative[i]), i, axis=1))


def exact_log_density(user: int, log_noise: float, shape: float = 3.0) -> float:
    """Of ln τ: Gamma(shape, ρ), and the user's ratings as one normal vector, dense."""
    noise, mine = np.exp(log_noise), np.equal(USER, user)
    x = ITEMS[ITEM[mine]].copy()
    rest = RATING[mine] - x[:, -1]
    x[:, -1] = 1.0
    value = stats.gamma.logpdf(noise, shape, scale=1 / RATE) + log_noise
    if mine.any():
        covariance = np.eye(mine.sum()) / noise + x / PRIOR["precision"] @ x.T
        value += stats.multivariate_normal.logpdf(rest - x @ PRIOR["mean"], cov=covariance)
    return float(value - 0.5 * noise * mine.sum() * RESOLUTION**2)


@pytest.fixture(scope="module")
def law() -> NoiseLaw:
    plain = found(np.ones((5, 10)))
    squares = plain.squares + RESOLUTION**2 * plain.count
    precision = jnp.asarray(PRIOR["precision"], jnp.float32)
    return NoiseLaw.of(plain._replace(squares=squares), precision, jnp.float32(RATE))


@pytest.mark.slow
def test_the_density_of_the_noise_is_that_of_the_ratings_together(law):
    points = np.linspace(-2.5, 2.5, 11)
    density = np.asarray(law.log_density(jnp.tile(points[:, None], NUM_USERS)))
    for i in range(NUM_USERS):
        exact = np.array([exact_log_density(i, x) for x in points])
        np.testing.assert_allclose(density[:, i] - density[5, i], exact - exact[5], atol=2e-4)


@pytest.mark.slow
def test_draws_of_the_noise_have_that_density(law):
    """Mean and spread of ln τ over evenly spread uniforms, against integrals."""
    steps = (np.arange(2000) + 0.5) / 2000
    jitter = np.random.default_rng(1).permuted(np.tile(steps, (2, 1)), axis=1)
    uniforms = np.stack([steps, *jitter])
    drawn = jax.vmap(lambda one: law.draw(jnp.tile(one[:, None], NUM_USERS)))(uniforms.T)
    log_noise = np.log(np.asarray(drawn, np.float64))
    for i in range(NUM_USERS):

        def expected(power, center, i=i):
            top = exact_log_density(i, np.median(log_noise[:, i]))
            return integrate.quad(
                lambda x: (x - center) ** power * np.exp(exact_log_density(i, x) - top), -8, 5
            )[0]

        total = expected(0, 0.0)
        mean = expected(1, 0.0) / total
        spread = np.sqrt(expected(2, mean) / total)
        # The rest is of the jitter, which is random: √(h²/6 / 2000), and of interpolation.
        assert log_noise[:, i].mean() == pytest.approx(mean, abs=0.01 * spread)
        assert log_noise[:, i].std() == pytest.approx(spread, rel=0.01)


@pytest.mark.slow
def test_the_grid_lies_around_the_mode_and_reaches_the_tails(law):
    points, gap = law.grid()
    density = np.asarray(law.log_density(points))
    assert np.all(np.abs(density.argmax(0) - len(points) // 2) <= 2)
    assert np.all(density.max(0) - density[[0, -1]] > 7)
    np.testing.assert_allclose(np.diff(points, axis=0), np.tile(gap, (len(points) - 1, 1)), 1e-3)


def exact_noise(user: int, uniforms: np.ndarray, shape: float) -> float:
    """The grid's point that a uniform number leads to, moved by two more: in double precision."""

    def log_density(x):
        return exact_log_density(user, x, shape)

    found = optimize.minimize_scalar(lambda x: -log_density(x), (-3, 3), options={"xtol": 1e-10})
    mode, step = float(found.x), 1e-3  # pyright: ignore[reportAttributeAccessIssue]
    around = [log_density(mode + k * step) for k in (-1, 0, 1)]
    curvature = -(around[0] - 2 * around[1] + around[2]) / step**2
    points = mode + np.linspace(-6, 6, 65) * min(curvature**-0.5, 1.0)
    density = np.exp([log_density(x) - around[1] for x in points])
    reached = np.cumsum(density)
    place = np.searchsorted(reached, uniforms[0] * reached[-1])
    gap = points[1] - points[0]
    return float(np.exp(points[place] + gap * (uniforms[1] + uniforms[2] - 1)))


def test_new_users_are_drawn_as_the_formulas_say(monkeypatch):
    """Precisions and rows of one draw, variate by variate; a prior so wide that the grid ends."""
    shape = 0.25
    monkeypatch.setattr(fold_in, "NOISE_SHAPE", shape)
    of_noise, of_rows = jax.random.split(jax.random.key(4))
    uniforms = np.asarray(jax.random.uniform(of_noise, (3, NUM_USERS)), float)
    normal = np.asarray(jax.random.normal(of_rows, (NUM_USERS, RANK + 1)), float)
    prior = {name: jnp.asarray(part, jnp.float32) for name, part in PRIOR.items()}
    items = jnp.asarray(ITEMS, jnp.float32)

    @jax.jit
    def drawn(items):
        key, rate = jax.random.key(4), jnp.asarray(1.7)
        return draw_users(key, blocks_by_hand(), NUM_USERS, items, prior, rate, RESOLUTION)

    rows, noise = (np.asarray(part, float) for part in drawn(items))
    exact = [exact_noise(i, uniforms[:, i], shape) for i in range(NUM_USERS)]
    np.testing.assert_allclose(noise, exact, rtol=2e-3)
    for i in range(NUM_USERS):
        matrix, mean = conditional(DATA, "user", i, ITEMS, noise, *PRIOR.values())
        expected = mean + np.linalg.solve(np.linalg.cholesky(matrix).T, normal[i])
        np.testing.assert_allclose(rows[i], expected, rtol=1e-3, atol=1e-4)


def test_new_items_are_weighted_by_their_raters_precisions():
    """One draw of items' rows around means of their own, variate by variate."""
    means = rng.normal(size=(NUM_USERS, RANK + 1))
    noise = rng.gamma(3.0, size=NUM_ITEMS)
    normal = np.asarray(jax.random.normal(jax.random.key(5), (NUM_USERS, RANK + 1)), float)
    given = (ITEMS, noise, means, PRIOR["precision"])

    @jax.jit
    def drawn(users, noise, mean, precision):
        prior = {"mean": mean, "precision": precision}
        return draw_items(jax.random.key(5), blocks_by_hand(), NUM_USERS, users, noise, prior)

    rows = drawn(*(jnp.asarray(part, jnp.float32) for part in given))
    # The same table of ratings, with the sides' names exchanged.
    data = DATA._replace(user=ITEM, item=USER)
    for i in range(NUM_USERS):
        matrix, mean = conditional(data, "item", i, ITEMS, noise, means[i], PRIOR["precision"])
        expected = mean + np.linalg.solve(np.linalg.cholesky(matrix).T, normal[i])
        np.testing.assert_allclose(rows[i], expected, rtol=1e-3, atol=1e-4)
