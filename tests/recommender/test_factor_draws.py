"""What posterior draws of factors say of pairs, against the same sums written out."""

import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from handmade_factors import NUM_DRAWS, SIZES, handmade_draws
from sghmc.recommender.factor_draws import FactorDraws

DRAWS = handmade_draws()
FACTORS = FactorDraws.of(DRAWS)
STRANGER = np.array([-1])


def test_moments_of_more_pairs_than_fit_at_once():
    generator = np.random.default_rng(1)
    users, items = (generator.integers(0, size, 10_000) for size in SIZES.values())
    ratings = predictions(*(DRAWS[side][:, codes].astype(float) for side, codes in
                            (("user", users), ("item", items))))  # fmt: skip
    mean, variance = FACTORS.moments(users, items)
    np.testing.assert_allclose(mean, ratings.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, ratings.var(axis=0, ddof=1), rtol=1e-3)


def stranger_moments(user: int, item: int) -> tuple[float, float]:
    """Mean and variance of a pair's mean by the law of total variance, draw by draw.

    Rows of strangers are independent normals, so that of a product (μ + s)(ν + t) the variance is
    μ² Var t + ν² Var s + Var s Var t; a known row has Var 0.
    """
    means, variances = [], []
    for draw in range(NUM_DRAWS):
        rows, spreads = [], []
        for side, code in (("user", user), ("item", item)):
            known = code >= 0
            row = DRAWS[side][draw, code] if known else DRAWS[f"{side}.mean"][draw]
            rows.append(row.astype(float))
            spreads.append(np.zeros(len(row)) if known else 1 / DRAWS[f"{side}.precision"][draw])
        (u, v), (s, t) = rows, spreads
        means.append(predictions(u, v))
        products = u**2 * t + v**2 * s + s * t
        variances.append(products[:-1].sum() + s[-1] + t[-1])
    return float(np.mean(means)), float(np.mean(variances) + np.var(means, ddof=1))


@pytest.mark.parametrize(("user", "item"), [(-1, 2), (3, -1), (-1, -1), (3, 2)])
def test_strangers_have_the_prior_as_their_law(user, item):
    mean, variance = FACTORS.moments(np.array([user]), np.array([item]))
    expected = stranger_moments(user, item)
    assert mean[0] == pytest.approx(expected[0], rel=1e-5)
    assert variance[0] == pytest.approx(expected[1], rel=1e-5)


def test_many_strangers_at_once_are_each_their_own():
    users, items = np.array([-1, 3, -1, -1, 3]), np.array([2, -1, -1, 4, 2])
    mean, variance = FACTORS.moments(users, items)
    for i, pair in enumerate(zip(users, items, strict=True)):
        np.testing.assert_allclose((mean[i], variance[i]), stranger_moments(*pair), rtol=1e-5)


def test_a_single_draw_has_no_spread_of_its_own():
    one = FactorDraws.of({name: values[:1] for name, values in DRAWS.items()})
    _, variance = one.moments(np.array([0]), np.array([0]))
    assert variance == 0


def test_one_draw_of_a_known_user_is_that_of_a_random_draw():
    expected = predictions(DRAWS["user"][:, [3]].astype(float), DRAWS["item"].astype(float))
    generator = np.random.default_rng(0)
    taken = [FACTORS.one_draw(3, generator) for _ in range(500)]
    found = [int(np.abs(expected - one).max(1).argmin()) for one in taken]
    np.testing.assert_allclose(taken, expected[found], atol=1e-5)
    counts = np.bincount(found, minlength=NUM_DRAWS)
    # A false alarm once in 10⁶ seeds.
    assert stats.chisquare(counts).pvalue > 1e-6


def test_one_draw_of_a_stranger_has_the_priors_law():
    """With one draw the ratings of two items are normal: their covariance in closed form."""
    one = {name: values[:1] for name, values in DRAWS.items()}
    generator = np.random.default_rng(0)
    factors = FactorDraws.of(one)
    taken = np.array([factors.one_draw(-1, generator)[:2] for _ in range(40_000)])
    items = one["item"][0, :2].astype(float)
    bias = items[:, -1].copy()
    items[:, -1] = 1.0
    mean = items @ one["user.mean"][0] + bias
    covariance = items / one["user.precision"][0] @ items.T
    error = np.sqrt(covariance.diagonal() / len(taken))
    # Two means, three entries of a covariance, each within five errors: once in 300,000 seeds.
    assert np.all(np.abs(taken.mean(0) - mean) < 5 * error)
    outer = np.outer(covariance.diagonal(), covariance.diagonal())
    error = np.sqrt((outer + covariance**2) / len(taken))
    assert np.all(np.abs(np.cov(taken.T) - covariance) < 5 * error)


def test_similarity_is_the_correlation_of_tastes():
    expected = np.zeros(SIZES["item"])
    for users, items in zip(DRAWS["user"], DRAWS["item"], strict=True):
        tastes = items[:, :-1].astype(float) @ users[:, :-1].astype(float).T
        expected += np.corrcoef(tastes)[2]
    np.testing.assert_allclose(FACTORS.similarity(2), expected / NUM_DRAWS, rtol=1e-4, atol=1e-5)
