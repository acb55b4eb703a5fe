"""Answers of draws made by hand: nothing needs to be fitted."""

import numpy as np
import pytest
from scipy import stats

from handmade_factors import SIZES, handmade_draws
from sghmc.estimators import MatrixFactorization
from sghmc.recommender.ratings import Ratings

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


def test_evaluate_ranks_what_was_not_rated(model):
    """u0 has rated 10 and 40: of four items left, two of three held out are good enough."""
    best = model.recommend("u0", k=4).items
    held_out = (["u0"] * 3 + ["stranger"], [*best[[0, 2, 3]], 0], [5.0, 4.0, 1.0, 5.0])
    found = model.evaluate(held_out, k=3)
    assert found["num_users_ranked"] == 1
    gain, most = 1 + 1 / np.log2(4), 1 + 1 / np.log2(3)
    assert found["ndcg@3"] == pytest.approx(gain / most)
    assert found["recall@3"] == 1
    assert model.evaluate(held_out, k=2)["recall@2"] == 0.5
    assert model.evaluate(held_out, k=3, relevant=0.5)["recall@3"] == pytest.approx(2 / 3)
    assert model.evaluate(held_out, relevant=9.0)["ndcg@10"] is None


@pytest.mark.parametrize("clip", [False, True])
def test_all_recommendations_are_those_of_each_user(model, clip):
    model.set_params(clip=clip)
    best = model.recommend_all(k=4)
    for user in RATINGS.users:
        mine, one = best.user == user, model.recommend(user, k=4)
        assert best.item[mine].tolist() == one.items.tolist()
        assert best.rank[mine].tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(best.rating[mine], one.ratings, rtol=1e-4)
        np.testing.assert_allclose(best.std[mine], one.stds, rtol=1e-4)


@pytest.mark.slow
def test_the_seed_fixes_the_draws_and_wrong_questions_are_refused(model):
    same = [model.recommend_all(by="draw", random_state=3).item.tolist() for _ in range(2)]
    assert same[0] == same[1]
    assert len({tuple(model.recommend_all(by="draw").item) for _ in range(5)}) > 1
    for wrong, message in (
        ({"by": "luck"}, 'by must be "mean"'),
        ({"width": -1.0}, "width must be zero or more"),
        ({"k": 0}, "k must be"),
    ):
        with pytest.raises(ValueError, match=message):
            model.recommend_all(**wrong)


def test_factors_are_exported(model, tmp_path):
    model.export(tmp_path / "factors.npz")
    with np.load(tmp_path / "factors.npz") as arrays:
        assert arrays["scale"].tolist() == [3.0, 1.7]
        assert arrays["item_factors"].shape == (SIZES["item"], 3)
