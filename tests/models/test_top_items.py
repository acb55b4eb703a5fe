"""The best items by brute force, for every way to order them."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from exact_factorization import predictions
from sghmc.models.top_items import Block, By, Top, top_items

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
        block = Block(jnp.asarray(self.users), jnp.asarray(seen + padding, jnp.int32))
        draw, width = jnp.asarray(4), jnp.asarray(1.5)
        return top_items(block, jnp.asarray(self.items), draw, width, k=k, by=by)


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


def test_where_nothing_is_left_the_score_says_so():
    seen = [(1, item) for item in range(40) if item not in (5, 9)]
    top = Problem(40).top(4, "upper", seen)
    assert np.isfinite(top.score[1]).tolist() == [True, True, False, False]
    assert set(np.asarray(top.item[1, :2]).tolist()) == {5, 9}
    assert Problem(40).top(60, "mean", []).item.shape == (NUM_USERS, 40)
