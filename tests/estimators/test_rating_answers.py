"""Answers of draws made by hand: nothing needs to be fitted."""

import numpy as np
import pytest
from scipy import stats

from handmade_factors import SIZES, handmade_draws
from sghmc.data.ratings import Ratings
from sghmc.estimators import MatrixFactorization

RATINGS = Ratings(
    user=np.array([0, 0, 3, 3, 5], np.int32),
    item=np.array([1, 4, 0, 2, 5], np.int32),
    rating=np.array([1.0, 5.0, 3.0, 2.0, 4.0], np.float32),
    users=np.array([f"u{i}" for i in range(SIZES["user"])]),
    items=10 * np.arange(SIZES["item"]),
)


@pytest.fixture
def model() -> MatrixFactorization:
    """In stars around 3, as wide as 1.7."""
    answers = MatrixFactorization(clip=False)
    answers.draws_, answers.ratings_ = handmade_draws(), RATINGS
    answers.scale_ = np.array([3.0, 1.7])
    return answers


def test_evaluate_counts_ratings_inside_their_intervals(model):
    """Ratings placed just inside and just outside of each interval, by scipy's quantiles."""
    users, items = np.array([f"u{i}" for i in range(6)]), 10 * np.arange(6)
    mean, std = model.predict(users, items, return_std=True)
    reach = np.repeat(stats.norm.ppf([0.75, 0.9, 0.975]), 2) + [-0.01, 0.01] * 3
    rating = mean + reach * std * [1, -1, 1, -1, -1, 1]
    found = model.evaluate((users, items, rating))
    assert found["num_ratings"] == 6
    assert found["coverage"] == pytest.approx({"50%": 1 / 6, "80%": 3 / 6, "95%": 5 / 6})
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((reach * std) ** 2)), rel=1e-4)
