"""Which ratings are held out to judge a recommender: at random, each user's last, or by time."""

import numpy as np

from sghmc.data.ratings import Ratings

SPLITS = ("random", "last", "time")


def split(ratings: Ratings, how: str, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and rows that are held out; both in order.

    | how | held out |
    | --- | --- |
    | "random" | a `share` of all ratings |
    | "last" | the last rating of every user who has another (leave-last-out); no `share` |
    | "time" | the last `share` of all ratings: what came after a day |

    >>> from sghmc.data.ratings import from_table
    >>> table = {"user": [1, 1, 2, 2], "item": [1, 2, 1, 2], "rating": [3.0, 4.0, 5.0, 1.0]}
    >>> split(from_table(table | {"timestamp": [4, 1, 2, 3]}), "last", 0.0)[1]
    array([0, 3])
    """
    if how not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, but is {how!r}.")
    count = round(share * len(ratings))
    if how != "last" and not 0 < count < len(ratings):
        raise ValueError(
            f"{share:.0%} of {len(ratings)} ratings are {count}: too few to hold out and learn "
            f"from the rest. Give more ratings, or hold nothing out."
        )
    if how == "random":
        held_out = np.random.default_rng(seed).permutation(len(ratings))[:count]
    else:
        order = np.argsort(_times(ratings, how), kind="stable")
        held_out = order[-count:] if how == "time" else _last_of_users(ratings, order)
    is_held_out = np.zeros(len(ratings), bool)
    is_held_out[held_out] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _times(ratings: Ratings, how: str) -> np.ndarray:
    if ratings.time is None:
        raise ValueError(
            f"The split {how!r} needs to know when ratings were made: give the table a column "
            f'"timestamp", or split at "random".'
        )
    return ratings.time


def _last_of_users(ratings: Ratings, order: np.ndarray) -> np.ndarray:
    last = np.zeros(ratings.num_users, np.int64)
    last[ratings.user[order]] = order  # of equal indices the last assignment stays
    held_out = last[np.bincount(ratings.user, minlength=ratings.num_users) > 1]
    if len(held_out) == 0:
        raise ValueError("No user has two ratings: none can be held out as the last one.")
    return held_out
