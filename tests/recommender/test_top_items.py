"""The best items by brute force, for every way to order them."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from exact_factorization import predictions
from sghmc.recommender.factor_draws import By, Top, UserBlock, _top, top_items

NUM_DRAWS, NUM_USERS, WIDTH = 6, 5, 4
SEEN = [(0, 3), (0, 7), (2, 1), (4, 39)]


class Problem:
    """Factors at random, and what all pairs score."""

    def __init__(self, num_items: int):
        rng = np.random.default_rng(0)
        self.users, self.items = (
            rng.normal(size=(NUM_DRAWS, size, WIDTH)).astype(np.float32)
            for size in (NUM_USERS, num_items)
        )
        ratings = predictions(
            self.users[:, :, None].astype(float), self.items[:, None].astype(float)
        )
        self.mean, self.std = ratings.mean(0), ratings.std(0, ddof=1)
        self.scores = {
            "mean": self.mean,
            "upper": self.mean + 1.5 * self.std,
            "lower": self.mean - 1.5 * self.std,
            "draw": ratings[4],
        }

    def top(self, k: int, by: By, seen: list[tuple[int, int]]) -> Top:
        padding = [(0, self.items.shape[1])] * 2
        block = UserBlock(jnp.asarray(self.users), jnp.asarray(seen + padding, jnp.int32))
        draw, width = jnp.asarray(4), jnp.asarray(1.5)
        return top_items(block, jnp.asarray(self.items), draw, width, k=k, by=by)


@pytest.mark.slow_cases("draw-2000", "lower-2000", "upper-2000")
@pytest.mark.parametrize("num_items", [40, 2000])
@pytest.mark.parametrize("by", get_args(By))
def test_the_best_are_those_of_all_pairs(by, num_items):
    """Of 2,000 items only the best groups are looked through, of 40 all."""
    problem = Problem(num_items)
    score = problem.scores[by].copy()
    score[tuple(np.transpose(SEEN))] = -np.inf
    expected = np.argsort(-score, axis=1)[:, :3]
    top = problem.top(3, by, SEEN)
    np.testing.assert_array_equal(top.item, expected)
    at = np.arange(NUM_USERS)[:, None], expected
    np.testing.assert_allclose(top.score, score[at], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(top.mean, problem.mean[at], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(top.variance, problem.std[at] ** 2, rtol=1e-4, atol=1e-5)


def test_the_orders_differ_here():
    """Or the test above could not tell."""
    scores = Problem(40).scores.values()
    assert len({tuple(np.argsort(-score[1])[:3]) for score in scores}) == 4


@pytest.mark.slow
def test_where_nothing_is_left_the_score_says_so():
    seen = [(1, item) for item in range(40) if item not in (5, 9)]
    top = Problem(40).top(4, "upper", seen)
    assert np.isfinite(top.score[1]).tolist() == [True, True, False, False]
    assert set(np.asarray(top.item[1, :2]).tolist()) == {5, 9}
    assert Problem(40).top(60, "mean", []).item.shape == (NUM_USERS, 40)


def test_the_best_of_many_groups_are_the_best_of_all():
    """1,400 scores, the last group cut short; of a row that has two left, the rest is −∞."""
    score = np.random.default_rng(1).permutation(2800).reshape(2, 1400).astype(np.float32)
    score[1, np.delete(np.arange(1400), [1399, 4])] = -np.inf
    score[0, :3] = [9000, 9001, 8000]  # of one group
    best, place = (np.asarray(part) for part in _top(jnp.asarray(score), 5))
    np.testing.assert_array_equal(place[0], np.argsort(-score[0])[:5])
    np.testing.assert_array_equal(best[0], np.sort(score[0])[::-1][:5])
    assert set(place[1, :2].tolist()) == {4, 1399}
    assert np.all(np.isneginf(best[1, 2:]))
    assert place.max() < 1400


def test_of_users_who_have_seen_nearly_all_little_is_left():
    """By the mean: nothing is recommended that was seen, and no more than there is."""
    seen = [(1, item) for item in range(40) if item not in (5, 9)]
    top = Problem(40).top(3, "mean", SEEN + seen)
    assert np.isfinite(top.score[1]).tolist() == [True, True, False]
    assert set(np.asarray(top.item[1, :2]).tolist()) == {5, 9}
