"""Which likelihood a table gets: by its levels, then by what was held out."""

import dataclasses

import numpy as np
import pytest

from handmade_factors import handmade_draws
from sghmc.estimators import MatrixFactorization
from sghmc.recommender import matrix_factorization
from sghmc.recommender.matrix_factorization import likeliest
from sghmc.recommender.ratings import Ratings

USERS, ITEMS = (axis.ravel().astype(np.int32) for axis in np.indices((7, 6)))
STARS = np.random.default_rng(0).integers(1, 6, 42).astype(np.float32)
TABLE = Ratings(USERS, ITEMS, STARS, np.arange(7), np.arange(6))


def test_tables_without_levels_to_compare_need_no_fit():
    numbers = dataclasses.replace(TABLE, rating=np.linspace(0, 1, 42, dtype=np.float32))
    few = numbers.take(np.arange(42))
    many = dataclasses.replace(
        TABLE,
        user=np.tile(USERS, 2),
        item=np.tile(ITEMS, 2),
        rating=np.arange(84, dtype=np.float32),
    )
    model = MatrixFactorization(likelihood="auto")
    assert likeliest(model, many, {}) == ("gaussian", {})
    ones = dataclasses.replace(few, rating=np.ones(42, np.float32))
    assert likeliest(model, ones, {}) == ("implicit", {})


@pytest.mark.parametrize(("gain", "expected"), [(0.5, "ordinal"), (0.0, "gaussian")])
def test_held_out_levels_decide(monkeypatch, gain, expected):
    """The unusual one must be clearly better: by half a nat, or not at all."""
    asked, seen = [], []

    def run(key, ratings, settings, start, likelihood, sides):
        seen.append((type(likelihood).__name__, len(ratings)))
        draws = handmade_draws()
        return draws | {"cuts": np.tile([-1.0, 0.0, 1.0, 2.0], (5, 1))}

    def log_probabilities(self, ratings):
        asked.append(len(ratings))
        noise = 0.1 * np.random.default_rng(len(asked)).normal(size=len(ratings))
        return noise + gain * (self.likelihood_ == "ordinal")

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", run)
    monkeypatch.setattr(MatrixFactorization, "log_probabilities", log_probabilities)
    model = MatrixFactorization(rank=3, likelihood="auto").fit(TABLE)
    assert model.likelihood_ == expected
    assert asked == [4, 4]
    assert [count for _, count in seen] == [38, 38, 42]
    assert set(model.diagnostics_["log_probability"]) == {"gaussian", "ordinal"}
    assert model.get_params()["likelihood"] == "auto"
