"""Normal ratings: their outcome, and newcomers with features."""

import jax
import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from handmade_factors import SIZES, WIDTH, handmade_draws
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.rating_likelihoods import GaussianRatings, NormalOutcome
from sghmc.recommender.ratings import Ratings, Sizes, from_table
from sghmc.recommender.side_information import given, learned

DRAWS = handmade_draws()
FACTORS = FactorDraws.of(DRAWS)
GIVEN = np.array([1.0, 2.0, 2.0, 4.0, 5.0], np.float32)
OUTCOME = NormalOutcome(3.0, 1.7, DRAWS["noise"], (-np.inf, np.inf), GIVEN)


def test_levels_have_the_probability_of_what_is_nearest():
    users, items = np.array([0, 3, 6]), np.array([1, 1, 5])
    found = OUTCOME.probabilities(FACTORS, users, items)
    assert OUTCOME.levels is not None
    assert OUTCOME.levels.tolist() == [1, 2, 4, 5]
    mean = predictions(DRAWS["user"][:, users].astype(float), DRAWS["item"][:, items].astype(float))
    scale = DRAWS["noise"][:, users] ** -0.5
    below = [stats.norm.cdf(cut, 3.0 + 1.7 * mean, 1.7 * scale).mean(0) for cut in (1.5, 3.0, 4.5)]
    edges = np.zeros(3), np.ones(3)
    expected = np.column_stack([*below, edges[1]]) - np.column_stack([edges[0], *below])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_stranger_is_as_noisy_as_the_average_user():
    _, std = OUTCOME.moments(FACTORS, np.array([-1]), np.array([2]))
    _, variance = FACTORS.moments(np.array([-1]), np.array([2]))
    noise = np.mean(1 / DRAWS["noise"])
    assert std[0] == pytest.approx(1.7 * np.sqrt(variance[0] + noise), rel=1e-6)
    found = OUTCOME.probabilities(FACTORS, np.array([-1]), np.array([2]))
    assert found.sum() == pytest.approx(1)


def test_many_different_ratings_have_no_levels():
    many = NormalOutcome(0.0, 1.0, DRAWS["noise"], (0.0, 1.0), np.arange(60.0))
    assert many.levels is None


def test_scales_are_those_of_the_ratings():
    table = from_table(([1, 2, 3], [1, 1, 1], [2.0, 4.0, 6.0]))
    likelihood = GaussianRatings.of(table)
    np.testing.assert_allclose(likelihood.scale, [4.0, float(np.std([2, 4, 6]))])
    np.testing.assert_allclose(likelihood.in_units(table).rating.std(), 1.0, rtol=1e-6)
    same = GaussianRatings.of(from_table(([1, 2], [1, 1], [3.0, 3.0])))
    assert same.scale.tolist() == [3.0, 1.0]


def newcomers(num_draws: int) -> Newcomers:
    """One draw again and again; two new users of two kinds, of whom one rates."""
    rng = np.random.default_rng(0)
    draws = {name: np.repeat(part[:1], num_draws, axis=0) for name, part in DRAWS.items()}
    draws["user.weights"] = np.repeat(rng.normal(size=(1, 2, WIDTH)), num_draws, axis=0)
    count = SIZES["user"]
    ratings = Ratings(
        np.full(3, count, np.int32),
        np.arange(3, dtype=np.int32),
        np.array([0.5, -1.0, 2.0], np.float32),
        np.arange(count + 2),
        np.arange(SIZES["item"]),
    )
    kinds = {"user": np.arange(count + 2), "kind": [*"abababa", "a", "b"]}
    sides = learned(given(kinds, None), ratings)
    known = Sizes(SIZES["user"], SIZES["item"])
    return Newcomers(draws, ratings, known, np.array([count, count + 1]), sides)


@pytest.mark.slow
def test_newcomers_lie_around_what_their_features_say():
    """Without ratings as the prior has it; with some, as the regression around it.

    4,000 draws, means within five standard errors: a false alarm in 10⁵ keys.
    """
    new = newcomers(4000)
    after = GaussianRatings(np.array([0.0, 1.0])).fold_in(jax.random.key(0), new)
    weights, mean = new.draws["user.weights"][0], new.draws["user.mean"][0]
    precision = new.draws["user.precision"][0]
    centers = [mean + weights[0], mean + weights[1]]  # kind a, then b
    silent = after["user"][:, SIZES["user"] + 1]
    error = np.sqrt(1 / precision / 4000)
    assert np.all(np.abs(silent.mean(0) - centers[1]) < 5 * error)
    x = new.draws["item"][0, :3].astype(float)
    target = new.ratings.rating - x[:, -1]
    x[:, -1] = 1
    rows, noise = after["user"][:, SIZES["user"]], after["noise"][:, SIZES["user"]].astype(float)
    matrix = noise[:, None, None] * (x.T @ x) + np.diag(precision)
    vector = noise[:, None] * (x.T @ target) + precision * centers[0]
    expected = np.linalg.solve(matrix, vector[..., None])[..., 0]
    z = np.einsum("dji,dj->di", np.linalg.cholesky(matrix), rows - expected)
    assert np.abs(z.mean(0)).max() < 5 / np.sqrt(4000)
    assert np.abs(np.cov(z.T) - np.eye(WIDTH)).max() < 5 * np.sqrt(2 / 4000)
