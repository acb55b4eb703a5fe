"""Answers in the units of the ratings, from draws made by hand."""

import numpy as np
import pytest

from handmade_factors import SIZES, handmade_draws
from sghmc.estimators import MatrixFactorization
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.ratings import Ratings

RATINGS = Ratings(
    user=np.array([0, 0, 3, 3], np.int32),
    item=np.array([1, 4, 0, 2], np.int32),
    rating=np.array([1.0, 5.0, 3.0, 2.0], np.float32),
    users=np.array([f"u{i}" for i in range(SIZES["user"])]),
    items=10 * np.arange(SIZES["item"]),
)
DRAWS = FactorDraws.of(handmade_draws())
NOISE = handmade_draws()["noise"]


def fitted(clip: bool) -> MatrixFactorization:
    """In stars around 3, as wide as 1.7."""
    model = MatrixFactorization(clip=clip)
    model.draws_, model.ratings_ = handmade_draws(), RATINGS
    model.scale_ = np.array([3.0, 1.7])
    return model


PREDICTOR, CLIPPED = fitted(clip=False), fitted(clip=True)


def moments(users, items):
    """Of a new rating: E[1/τ] is what one by this user varies by, whatever the draw."""
    mean, variance = DRAWS.moments(users, items)
    return mean, variance + np.mean(1 / NOISE, axis=0)[users]


def every_pair():
    users, items = (axis.ravel() for axis in np.indices((SIZES["user"], SIZES["item"])))
    return users, items, [f"u{i}" for i in users], 10 * items


def test_predictions_are_the_moments_in_stars():
    users, items, *ids = every_pair()
    mean, variance = moments(users, items)
    rating, std = PREDICTOR.predict(*ids, return_std=True)
    np.testing.assert_allclose(rating, 3.0 + 1.7 * mean, rtol=1e-12)
    np.testing.assert_allclose(std, 1.7 * np.sqrt(variance), rtol=1e-12)


def test_clipping_keeps_means_within_the_ratings_and_leaves_their_spread():
    *_, users, items = every_pair()
    (plain, std), (clipped, same) = (
        p.predict(users, items, return_std=True) for p in (PREDICTOR, CLIPPED)
    )
    is_below, is_above = plain < 1, plain > 5
    assert is_below.any()
    assert is_above.any()
    assert np.all(clipped[is_below] == 1)
    assert np.all(clipped[is_above] == 5)
    inside = ~(is_below | is_above)
    np.testing.assert_array_equal(clipped[inside], plain[inside])
    np.testing.assert_array_equal(std, same)
    best = CLIPPED.recommend("u0", 10, False, 0.0, 0)
    assert best.ratings.max() <= 5


@pytest.mark.parametrize("explore", [0.0, 0.5, 1.0, 2.0])
def test_recommendations_are_the_best_unseen_by_mean_and_draw(explore):
    unseen = np.array([0, 2, 3, 5])  # user 0 has rated 1 and 4
    mean, variance = moments(np.zeros(4, int), unseen)
    drawn = DRAWS.one_draw(0, np.random.default_rng(8))[unseen]
    order = np.argsort(-(mean + explore * (drawn - mean)))
    best = PREDICTOR.recommend("u0", 3, True, explore, 8)
    assert best.items.tolist() == (10 * unseen[order[:3]]).tolist()
    np.testing.assert_allclose(best.ratings, 3.0 + 1.7 * mean[order[:3]], rtol=1e-12)
    np.testing.assert_allclose(best.stds, 1.7 * np.sqrt(variance[order[:3]]), rtol=1e-12)


def test_exploring_changes_the_order_here():
    """Or the test above could not tell."""
    orders = [
        PREDICTOR.recommend("u0", 4, True, explore, 8).items.tolist() for explore in (0.0, 2.0)
    ]
    assert orders[0] != orders[1]


def test_seen_items_come_when_asked_for_and_strangers_have_seen_none():
    for user, exclude_seen, count in (("u0", True, 4), ("u0", False, 6), ("nobody", True, 6)):
        best = PREDICTOR.recommend(user, 10, exclude_seen, 0.0, 0)
        assert len(best.items) == count


def test_similar_items_leave_out_the_item_itself():
    items, similarity = PREDICTOR.similar_items(20, k=3)
    expected = DRAWS.similarity(2)
    expected[2] = -2
    order = np.argsort(-expected)[:3]
    assert items.tolist() == (10 * order).tolist()
    np.testing.assert_allclose(similarity, expected[order], rtol=1e-12)
    with pytest.raises(ValueError, match="The model has no item 999"):
        PREDICTOR.similar_items(999, k=3)
