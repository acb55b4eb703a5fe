"""Ratings as levels: scales, outcomes, and newcomers by short chains."""

import jax
import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from handmade_factors import handmade_draws
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.rating_likelihoods import OrdinalOutcome, OrdinalRatings
from sghmc.recommender.ratings import Ratings, Sizes, from_table

DRAWS = handmade_draws() | {"cuts": np.sort(np.random.default_rng(1).normal(size=(5, 3)), axis=1)}
LEVELS = np.array([1.0, 2.0, 3.0, 5.0])
OUTCOME = OrdinalOutcome(LEVELS, DRAWS["noise"], DRAWS["cuts"])
FACTORS = FactorDraws.of(DRAWS)


def test_probabilities_are_those_between_cuts():
    users, items = np.array([0, 3, 6]), np.array([1, 1, 5])
    mean = predictions(DRAWS["user"][:, users].astype(float), DRAWS["item"][:, items].astype(float))
    root = DRAWS["noise"][:, users] ** 0.5
    below = stats.norm.cdf((DRAWS["cuts"][:, None] - mean[..., None]) * root[..., None]).mean(0)
    expected = np.diff(below, axis=1, prepend=0.0, append=1.0)
    np.testing.assert_allclose(OUTCOME.probabilities(FACTORS, users, items), expected, atol=1e-6)
    rating, std = OUTCOME.moments(FACTORS, users, items)
    np.testing.assert_allclose(rating, expected @ LEVELS, rtol=1e-5)
    variance = expected @ LEVELS**2 - rating**2
    np.testing.assert_allclose(std, np.sqrt(variance), rtol=1e-4)
    ranked = OUTCOME.ranked(FACTORS, users, items, rating, std)
    np.testing.assert_array_equal(ranked[0], rating)
    strangers = OUTCOME.probabilities(FACTORS, np.array([-1, -1]), np.array([-1, 2]))
    np.testing.assert_allclose(strangers.sum(1), 1)


def test_scales_have_center_spread_and_levels():
    table = from_table((range(6), range(6), [1.0, 2.0, 2.0, 3.0, 5.0, 5.0]))
    likelihood = OrdinalRatings.of(table)
    center, spread = table.rating.mean(), table.rating.std()
    np.testing.assert_allclose(likelihood.scale, [center, spread, 1, 2, 3, 5], rtol=1e-6)
    cuts = (np.array([1.5, 2.5, 4.0]) - center) / spread
    np.testing.assert_allclose(likelihood.start_cuts, cuts, rtol=1e-5)
    assert likelihood.in_units(table).rating.tolist() == [0, 1, 1, 2, 3, 3]
    with pytest.raises(ValueError, match="Ratings are 1, 2, 3, 5 here, but 4 came"):
        likelihood.in_units(from_table(([1], [2], [4.0])))
    with pytest.raises(ValueError, match=r"100 different ones. Take .* or round them"):
        OrdinalRatings.of(from_table((range(100), range(100), np.arange(100.0))))
    with pytest.raises(ValueError, match=r"1 different ones. Take .*implicit"):
        OrdinalRatings.of(from_table(([1], [1], [1.0])))


@pytest.mark.slow
def test_newcomers_have_their_law_under_every_draw():
    """A user and an item, of a rank of 1: their means against sums over a grid.

    Given one draw again and again, 1,500 of them; neighbours in the chain are alike, so that a mean
    is known as of a fifth of them at the least: within five such errors. A new item's precisions
    are its raters', one of whom is new.
    """
    count = 1500
    rng = np.random.default_rng(2)
    one = {
        "user": rng.normal(size=(1, 3, 2)), "item": rng.normal(size=(1, 8, 2)),
        "noise": rng.gamma(3.0, size=(1, 3)), "noise_rate": np.array([2.0]),
        "cuts": np.array([[-0.5, 0.6]]),
    }  # fmt: skip
    for side in ("user", "item"):
        one |= {f"{side}.mean": rng.normal(size=(1, 2)), f"{side}.precision": np.full((1, 2), 1.5)}
    draws = {name: np.repeat(part, count, axis=0).astype(np.float32) for name, part in one.items()}
    user = np.array([3] * 5 + [0, 1, 3])
    item = np.array([0, 2, 4, 5, 7, 8, 8, 8])
    level = np.array([2, 0, 1, 2, 2, 0, 2, 1], np.float32)
    ratings = Ratings(
        user.astype(np.int32), item.astype(np.int32), level, np.arange(4), np.arange(9)
    )
    new = Newcomers(draws, ratings, Sizes(3, 8), np.array([3]), {})
    after = OrdinalRatings(np.array([0.0, 1.0, 1, 2, 3])).fold_in(jax.random.key(0), new)
    assert after["user"].shape == (count, 4, 2)
    assert after["item"].shape == (count, 9, 2)
    np.testing.assert_array_equal(after["user"][:, :3], draws["user"])
    np.testing.assert_array_equal(after["item"][:, :8], draws["item"])
    edges = np.array([-np.inf, -0.5, 0.6, np.inf])
    grid = np.linspace(-3.5, 3.5, 141)
    noise = np.geomspace(0.03, 8, 60)
    weight = stats.gamma.pdf(noise, 3, scale=0.5) * np.gradient(noise)
    density = np.ones((len(noise), 141, 141)) * weight[:, None, None]
    for j, each in zip(item[:5], level[:5].astype(int), strict=True):
        mean = one["item"][0, j, 0] * grid[:, None] + grid + one["item"][0, j, 1]
        root = np.sqrt(noise)[:, None, None]
        density *= np.diff(
            [stats.norm.cdf((edges[each + k] - mean) * root) for k in (0, 1)], axis=0
        )[0]
    prior = [stats.norm.pdf(grid, one["user.mean"][0, k], 1.5**-0.5) for k in (0, 1)]
    density = density.sum(0) * prior[0][:, None] * prior[1]
    for k in (0, 1):
        marginal = density.sum(1 - k) / density.sum()
        mean = marginal @ grid
        spread = np.sqrt(marginal @ (grid - mean) ** 2)
        found = after["user"][:, 3, k]
        assert abs(found.mean() - mean) < 5 * spread / np.sqrt(count / 5)
        assert found.std() == pytest.approx(spread, rel=0.2)
    assert np.all(np.std(after["item"][:, 8], axis=0) > 0.1)
