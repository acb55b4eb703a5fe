"""A recommender judged on ratings that it had not seen, and what makes a file a model."""

import dataclasses

import numpy as np
import pytest

from handmade_factors import handmade_draws
from sghmc.estimators import MatrixFactorization
from sghmc.recommender import matrix_factorization
from sghmc.recommender.evaluation import (
    fit_and_judge,
    format_scores,
    is_model,
    ratings_page,
)
from sghmc.recommender.ratings import Ratings

USERS, ITEMS = (axis.ravel() for axis in np.indices((7, 6)))
RATINGS = Ratings(
    USERS.astype(np.int32),
    ITEMS.astype(np.int32),
    np.arange(42, dtype=np.float32),
    np.arange(7),
    np.arange(6),
)


@pytest.fixture
def seen(monkeypatch):
    """The ratings that each run of the chain saw; its draws are made by hand."""
    runs: list[set[tuple[int, int]]] = []

    def run(key, ratings, settings, start, *_):
        runs.append(set(zip(ratings.user.tolist(), ratings.item.tolist(), strict=True)))
        return handmade_draws(seed=len(runs))

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", run)
    return runs


def test_held_out_ratings_are_judged_before_they_are_seen(seen, monkeypatch):
    judged = []
    evaluate = MatrixFactorization.evaluate

    def recorded(self, ratings, k):
        judged.append((len(seen), ratings))
        return evaluate(self, ratings, k)

    monkeypatch.setattr(MatrixFactorization, "evaluate", recorded)
    model, result = fit_and_judge(RATINGS, 0.25, rank=3, random_state=4)
    ((num_runs, held_out),) = judged
    assert num_runs == 1
    pairs = set(zip(held_out.user.tolist(), held_out.item.tolist(), strict=True))
    assert len(pairs) == 10 == result["held_out"]["num_ratings"]
    assert not pairs & seen[0]
    assert pairs | seen[0] == seen[1] == set(zip(USERS.tolist(), ITEMS.tolist(), strict=True))
    np.testing.assert_array_equal(model.draws_["user"], handmade_draws(seed=2)["user"])
    assert (result["num_users"], result["num_items"], result["num_ratings"]) == (7, 6, 42)
    # The seed decides which.
    fit_and_judge(RATINGS, 0.25, rank=3, random_state=5)
    assert seen[2] != seen[0]


def test_the_last_by_time_are_held_out(seen):
    later = dataclasses.replace(RATINGS, time=np.arange(42.0))
    _, result = fit_and_judge(later, 0.25, "time", rank=3)
    assert result["split"] == "time"
    assert seen[0] == set(zip(USERS[:32].tolist(), ITEMS[:32].tolist(), strict=True))


def test_scores_are_told_with_their_errors():
    told = format_scores({"num_ratings": 3, "rmse": 0.9, "rmse_error": 0.01, "log_likelihood": -1.0,
                        "log_likelihood_error": None, "ndcg@10": 0.25, "ndcg@10_error": 0.5,
                        "ndcg@3": 0.5, "recall@10": None, "recall@10_error": None})  # fmt: skip
    assert told == {
        "RMSE": "0.9000 ± 0.0100",
        "mean log-likelihood": "-1.0000",
        "NDCG@10": "0.2500 ± 0.5000",
    }


def test_the_page_has_rankings_and_coverage_with_their_errors():
    judged = {"num_ratings": 9, "ndcg@1": 0.1, "ndcg@1_error": 0.02, "recall@10": 0.5,
              "recall@10_error": None, "coverage": {"50%": 0.4, "95%": 0.9},
              "coverage_errors": {"50%": 0.1, "95%": None}}  # fmt: skip
    sizes = {"num_users": 5, "num_items": 4, "num_ratings": 90}
    page = ratings_page({}, {**sizes, "likelihood": "gaussian", "seconds": 1, "held_out": judged})
    for row in (
        ("1", "0.1000 ± 0.0200", "–"),
        ("10", "–", "0.5000"),
        ("50%", "40.0% ± 10.0%"),
        ("95%", "90.0%"),
    ):
        assert f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" in page


def test_features_and_likelihoods_come_to_the_model(seen):
    people = {"user": np.arange(6), "sex": ["F", "M"] * 3}
    likes = dataclasses.replace(RATINGS, rating=np.ones(42, np.float32))
    model, result = fit_and_judge(likes, 0.25, users=people, rank=3, likelihood="auto")
    assert result["likelihood"] == "implicit" == model.likelihood_
    assert model.sides_["user"].encoding.names == ["sex=F", "sex=M", "sex=?"]
    assert "rmse" not in result["held_out"]
    assert result["held_out"]["ndcg@30"] > 0


def test_nothing_is_judged_where_nothing_is_held_out(seen):
    _, result = fit_and_judge(RATINGS, 0.0, rank=3)
    assert "held_out" not in result
    assert [len(pairs) for pairs in seen] == [42]


@pytest.mark.parametrize("holdout", [0.001, 0.999])
def test_too_few_to_hold_out_or_to_learn_from(seen, holdout):
    with pytest.raises(ValueError, match=r"of 42 ratings are .*, but a split needs"):
        fit_and_judge(RATINGS, holdout)
    assert seen == []


def test_a_model_is_known_by_how_its_file_begins(seen, tmp_path):
    MatrixFactorization().fit(RATINGS).save(tmp_path / "model")
    (tmp_path / "table.csv").write_text("user,item,rating\n1,2,3\n")
    assert is_model(tmp_path / "model")
    assert not is_model(tmp_path / "table.csv")
    assert not is_model(tmp_path)
    assert not is_model(tmp_path / "nothing")
