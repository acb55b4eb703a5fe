"""What posterior draws of factors say of pairs, against the same sums written out."""

import numpy as np

from sghmc.estimators.factor_draws import FactorDraws

NUM_DRAWS, SIZES, WIDTH = 5, {"user": 7, "item": 6}, 4


def handmade() -> tuple[FactorDraws, dict[str, np.ndarray]]:
    generator = np.random.default_rng(0)
    draws: dict[str, np.ndarray] = {"noise": generator.gamma(3.0, size=(NUM_DRAWS, SIZES["user"]))}
    for side, size in SIZES.items():
        draws[side] = generator.normal(size=(NUM_DRAWS, size, WIDTH)).astype(np.float32)
        draws[f"{side}.mean"] = generator.normal(size=(NUM_DRAWS, WIDTH))
        draws[f"{side}.precision"] = generator.gamma(3.0, size=(NUM_DRAWS, WIDTH))
    return FactorDraws.of(draws), draws


def test_moments_of_more_pairs_than_fit_at_once():
    factors, draws = handmade()
    generator = np.random.default_rng(1)
    users, items = (generator.integers(0, size, 10_000) for size in SIZES.values())
    user, item = draws["user"][:, users].astype(float), draws["item"][:, items].astype(float)
    ratings = np.sum(user[..., :-1] * item[..., :-1], axis=-1) + user[..., -1] + item[..., -1]
    mean, variance = factors.moments(users, items)
    np.testing.assert_allclose(mean, ratings.mean(0), rtol=1e-4, atol=1e-5)
    expected = ratings.var(axis=0, ddof=1) + np.mean(1 / draws["noise"], axis=0)[users]
    np.testing.assert_allclose(variance, expected, rtol=1e-4)


def test_a_stranger_is_the_prior():
    """Of an unknown user and a known item: mean and variance over draws, and the prior's own."""
    factors, draws = handmade()
    item = draws["item"][:, 2].astype(float)
    prior, precision = draws["user.mean"], draws["user.precision"]
    means = np.sum(prior[:, :-1] * item[:, :-1], axis=1) + prior[:, -1] + item[:, -1]
    own = np.sum(item[:, :-1] ** 2 / precision[:, :-1], axis=1) + 1 / precision[:, -1]
    mean, variance = factors.moments(np.array([-1]), np.array([2]))
    np.testing.assert_allclose(mean, means.mean(), rtol=1e-4)
    expected = means.var(ddof=1) + own.mean() + np.mean(1 / draws["noise"])
    np.testing.assert_allclose(variance, expected, rtol=1e-4)


def test_a_single_draw_has_no_spread_of_its_own():
    _, draws = handmade()
    one = FactorDraws.of({name: values[:1] for name, values in draws.items()})
    _, variance = one.moments(np.array([0]), np.array([0]))
    np.testing.assert_allclose(variance, 1 / draws["noise"][0, :1], rtol=1e-6)


def test_similarity_is_the_correlation_of_tastes():
    factors, draws = handmade()
    expected = np.zeros(SIZES["item"])
    for users, items in zip(draws["user"], draws["item"], strict=True):
        tastes = items[:, :-1].astype(float) @ users[:, :-1].astype(float).T
        expected += np.corrcoef(tastes)[2]
    np.testing.assert_allclose(factors.similarity(2), expected / NUM_DRAWS, rtol=1e-4, atol=1e-5)
