"""Scores of ratings and rankings: by hand, and by scikit-learn."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import ndcg_score

from sghmc.recommender.rating_answers import mean_by_user, ranking_scores, rating_scores

rng = np.random.default_rng(0)


def test_the_error_of_a_mean_with_one_value_a_user_is_the_usual_one():
    values = rng.normal(size=50)
    score = mean_by_user(values, np.arange(50))
    assert score.value == pytest.approx(values.mean())
    assert score.error == pytest.approx(stats.sem(values))


def test_values_of_one_user_do_not_count_as_many():
    """Every value twice is no news: the error is that of the users' means."""
    values = rng.normal(size=50)
    twice = mean_by_user(np.repeat(values, 2), np.repeat(np.arange(50), 2))
    assert twice.error == pytest.approx(stats.sem(values))
    assert mean_by_user(values, np.zeros(50, int)).error is None
    assert mean_by_user(values[:0], np.zeros(0, int)) == (None, None)


def test_scores_of_ratings_are_those_of_scipy():
    error, std, users = rng.normal(size=200), rng.gamma(3.0, size=200), np.arange(200) // 4
    scores = rating_scores(error, std, users)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert scores["log_likelihood"] == pytest.approx(stats.norm.logpdf(error, scale=std).mean())
    inside = np.abs(error) / std < stats.norm.ppf(0.9)
    assert scores["coverage"]["80%"] == pytest.approx(inside.mean())
    means = inside.reshape(-1, 4).mean(1)
    assert scores["coverage_errors"]["80%"] == pytest.approx(stats.sem(means))


def test_the_error_of_a_root_is_its_spread_over_many_samples():
    """Within a fifth, where 2,000 samples know a spread to 1.6 %."""
    samples = [rating_scores(rng.normal(size=100), np.ones(100), np.arange(100) // 2)
               for _ in range(2000)]  # fmt: skip
    spread = np.std([scores["rmse"] for scores in samples])
    assert np.mean([scores["rmse_error"] for scores in samples]) == pytest.approx(spread, rel=0.2)


def test_rankings_are_scored_as_scikit_learn_does():
    num_users, num_items, k = 30, 12, 5
    score = rng.normal(size=(num_users, num_items))
    is_relevant = rng.random((num_users, num_items)) < 0.3
    is_relevant[3] = False  # nobody can do this user well or badly
    order = np.argsort(-score, axis=1)[:, : k + 2]
    user = np.repeat(np.arange(num_users), k + 2)
    rank = np.tile(np.arange(1, k + 3), num_users)
    scores = ranking_scores(user, order.ravel(), rank, np.argwhere(is_relevant), k)
    some = is_relevant.any(1)
    each = [ndcg_score(is_relevant[[i]], score[[i]], k=k) for i in np.flatnonzero(some)]
    assert scores["num_users_ranked"] == some.sum()
    assert scores[f"ndcg@{k}"] == pytest.approx(np.mean(each))
    assert scores[f"ndcg@{k}_error"] == pytest.approx(stats.sem(each))
    hits = np.take_along_axis(is_relevant, order[:, :k], axis=1).sum(1)
    recall = hits[some] / is_relevant.sum(1)[some]
    assert scores[f"recall@{k}"] == pytest.approx(recall.mean())
    assert scores[f"recall@{k}_error"] == pytest.approx(stats.sem(recall))


def test_without_anything_relevant_nothing_is_told():
    empty = np.zeros((0, 2), int)
    scores = ranking_scores(np.array([0]), np.array([1]), np.array([1]), empty, 3)
    assert scores == {
        "num_users_ranked": 0,
        "ndcg@3": None,
        "recall@3": None,
        "ndcg@3_error": None,
        "recall@3_error": None,
    }
