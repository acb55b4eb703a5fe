"""Folds of ratings: what is learned from, what is judged by, and the judging itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sghmc.paper import methods
from sghmc.paper.methods import Problem, TestSets
from sghmc.recommender.ratings import synthetic_ratings

RATINGS = synthetic_ratings(0, 7, 6)
PROBLEM = Problem.of(RATINGS, 3)


def test_ratings_are_brought_to_one_unit_around_zero():
    low, high = RATINGS.rating.min(), RATINGS.rating.max()
    assert PROBLEM.spread == pytest.approx(high - low)
    scaled = (RATINGS.rating - low) / (high - low)
    np.testing.assert_allclose(PROBLEM.ratings.rating, scaled - scaled.mean(), atol=1e-6)


def test_folds_test_every_rating_once_and_learn_from_the_others():
    rows = np.concatenate([test for _, test in PROBLEM.splits])
    assert sorted(rows) == list(range(len(RATINGS)))
    for train, test in PROBLEM.splits:
        assert sorted([*train, *test]) == list(range(len(RATINGS)))


@pytest.mark.slow
def test_each_chain_has_the_training_rows_of_its_fold():
    """By the potential at 0: −½τ Σ y² over those rows, and the prior's constant."""
    model = PROBLEM.model(rank=2)
    stacked = PROBLEM.posterior(model)
    params = jnp.zeros((7 + 6, 3))
    for fold, (train, _) in enumerate(PROBLEM.splits):
        posterior = stacked[fold]
        assert int(posterior.hyper["fold"]) == fold
        expected = np.sum(PROBLEM.ratings.rating[train].astype(float) ** 2) / 2
        assert float(posterior.potential(params)) == pytest.approx(expected, rel=1e-5)
    counts = PROBLEM.counts()
    for side, size in (("user", 7), ("item", 6)):
        for fold, (train, _) in enumerate(PROBLEM.splits):
            codes = getattr(RATINGS, side)[train]
            expected = [np.sum(codes == code) for code in range(size)]
            assert counts[side][fold].tolist() == expected


@pytest.mark.slow
def test_scores_are_those_of_the_fold():
    """RMSE within the range of the ratings, and density, against NumPy; folds of unequal length."""
    assert len({len(test) for _, test in PROBLEM.splits}) > 1
    model = PROBLEM.model(rank=2)
    tests = TestSets.of(model, PROBLEM)
    params = [model.init(key, scale=1.0) for key in jax.random.split(jax.random.key(0))]
    precisions = [4.0, 9.0]
    low, high = PROBLEM.ratings.rating.min(), PROBLEM.ratings.rating.max()
    for fold, (_, test) in enumerate(PROBLEM.splits):
        hypers = [{"fold": jnp.asarray(fold), "noise": jnp.asarray(each)} for each in precisions]
        part = PROBLEM.ratings.take(test)
        pairs = jnp.asarray(part.user), jnp.asarray(part.item)
        drawn = np.array([model.predict(p, *pairs) for p in params], np.float64)
        averages = {
            name: jnp.mean(jnp.stack([function(p, h) for p, h in zip(params, hypers, strict=True)]),
                           axis=0)
            for name, function in tests.averages().items()
        }  # fmt: skip
        scores = tests.score_average(averages)
        # The noise's variance is E[1/τ], not 1/E[τ].
        error, variance = drawn.mean(0) - part.rating, drawn.var(0) + (1 / 4 + 1 / 9) / 2
        density = stats.norm.logpdf(error, scale=np.sqrt(variance))
        clipped = np.clip(drawn.mean(0), low, high) - part.rating
        assert np.any(clipped != error)
        np.testing.assert_allclose(scores["rmse"], np.sqrt(np.mean(clipped**2)), rtol=1e-5)
        np.testing.assert_allclose(scores["unclipped"], np.sqrt(np.mean(error**2)), rtol=1e-5)
        np.testing.assert_allclose(scores["log_likelihood"], density.mean(), rtol=1e-5)
        alone = tests.score_draw(params[0], hypers[0])
        error = drawn[0] - part.rating
        np.testing.assert_allclose(alone["unclipped"], np.sqrt(np.mean(error**2)), rtol=1e-5)


def test_coverage_is_the_share_inside_over_all_folds():
    """Predictions placed so that a known share of all ratings is inside of each interval."""
    longest = max(len(test) for _, test in PROBLEM.splits)
    reaches = [0.5, 1.0, 1.5, 2.5]  # inside of 50 %, 80 %, 95 % and of none
    noise, spread = np.array([0.2, 0.5, 0.1]), 0.3
    mean = np.full((3, longest), 99.0)  # padding is far off: it must not count
    counts = np.zeros(4)
    for fold, (_, test) in enumerate(PROBLEM.splits):
        kinds = np.arange(len(test)) % 4
        deviation = np.sqrt(noise[fold] + spread)
        mean[fold, : len(test)] = (
            PROBLEM.ratings.rating[test] + np.array(reaches)[kinds] * deviation
        )
        counts += np.bincount(kinds, minlength=4)
    averages = {"mean": mean, "square": mean**2 + spread, "noise": noise}
    shares = np.cumsum(counts) / counts.sum()
    found = methods.coverage(averages, PROBLEM)
    assert found == pytest.approx({"50%": shares[0], "80%": shares[1], "95%": shares[2]})


def test_without_ratings_it_says_what_to_do(monkeypatch):
    monkeypatch.delenv("SGHMC_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"ml-1m.zip from GroupLens.*--dataset synthetic"):
        methods.named_ratings("ml-1m", None)
    with pytest.raises(ValueError, match="dataset must be"):
        methods.named_ratings("netflix", None)


def test_ratings_are_found_in_the_folder_of_data(monkeypatch, tmp_path):
    (tmp_path / "movielens").mkdir()
    found = tmp_path / "movielens" / "ml-1m.zip"
    found.touch()
    monkeypatch.setenv("SGHMC_DATA", str(tmp_path))
    monkeypatch.setattr(methods, "load_ratings", lambda path: path)
    assert methods.named_ratings("ml-1m", None) == found
    assert methods.named_ratings("ml-1m", "elsewhere") == "elsewhere"
    assert dataclasses.is_dataclass(methods.named_ratings("synthetic", None))
