"""What is held out: at random, each user's last rating, or the last of all."""

import dataclasses

import numpy as np
import pytest

from sghmc.recommender.rating_answers import split
from sghmc.recommender.ratings import Ratings, from_table

RATINGS = Ratings(
    np.array([0, 0, 0, 1, 2, 2], np.int32),
    np.array([0, 1, 2, 0, 0, 1], np.int32),
    np.arange(6, dtype=np.float32),
    np.arange(3),
    np.arange(3),
    np.array([5.0, 9.0, 1.0, 7.0, 3.0, 3.0]),
)


def test_the_last_of_a_user_is_held_out_if_there_is_another():
    """User 1 has one rating; of two at the same time the later row is the last."""
    rows, held_out = split(RATINGS, "last", 0.1)
    assert held_out.tolist() == [1, 5]
    assert rows.tolist() == [0, 2, 3, 4]


def test_by_time_all_that_is_held_out_came_later():
    rows, held_out = split(RATINGS, "time", 0.5)
    assert held_out.tolist() == [0, 1, 3]
    assert rows.tolist() == [2, 4, 5]


def test_at_random_the_seed_decides_which():
    parts = [split(RATINGS, "random", 0.5, seed) for seed in range(6)]
    for rows, held_out in parts:
        assert len(held_out) == 3
        assert sorted([*rows, *held_out]) == list(range(6))
    assert len({tuple(held_out) for _, held_out in parts}) > 1
    np.testing.assert_array_equal(split(RATINGS, "random", 0.5), parts[0])


def test_what_cannot_be_split_is_refused():
    for how, share, message in (
        ("luck", 0.5, 'split must be "random"'),
        ("random", 0.01, "some to hold out and some to learn"),
        ("time", 0.99, "some to hold out and some to learn"),
    ):
        with pytest.raises(ValueError, match=message):
            split(RATINGS, how, share)
    with pytest.raises(ValueError, match='a column "timestamp"'):
        split(dataclasses.replace(RATINGS, time=None), "last", 0.1)
    with pytest.raises(ValueError, match="No user has two ratings"):
        split(from_table({"user": [1], "item": [1], "rating": [1.0], "time": [2]}), "last", 0.1)
