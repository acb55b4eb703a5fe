"""Which ratings are held out to judge a recommender: at random, each user's last, or by time.

How good predicted ratings and rankings are, with standard errors.

Ratings of one user err together. So the standard error of a mean over ratings counts users as what
was drawn independently: se² = m/(m − 1) · Σ_users (Σ_ratings (x − x̄))² / n², with m users.
"""

from typing import Any, NamedTuple

import numpy as np

from sghmc.recommender.ratings import Ratings
from sghmc.results.scores import inside_intervals

SPLITS = ("random", "last", "time")


def split(ratings: Ratings, how: str, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and rows that are held out; both in order.

    | how | held out |
    | --- | --- |
    | "random" | a `share` of all ratings |
    | "last" | the last rating of every user who has another (leave-last-out); no `share` |
    | "time" | the last `share` of all ratings: what came after a day |

    >>> from sghmc.recommender.ratings import from_table
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


# How good predicted ratings and rankings are, with standard errors.


class Score(NamedTuple):
    """A mean and its standard error; None where there are too few to tell."""

    value: float | None
    error: float | None


def mean_by_user(values: np.ndarray, users: np.ndarray) -> Score:
    """Of numbers that belong to users, each a code.

    >>> mean_by_user(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    Score(value=2.0, error=1.0)
    """
    if len(values) == 0:
        return Score(None, None)
    mean, count = float(np.mean(values)), len(np.unique(users))
    if count < 2:
        return Score(mean, None)
    total = float(np.sum(np.bincount(users, values - mean) ** 2))
    return Score(mean, float(np.sqrt(count / (count - 1) * total)) / len(values))


def rating_scores(error: np.ndarray, std: np.ndarray, users: np.ndarray) -> dict[str, Any]:
    """Root mean squared error, mean log-density of N(mean, std²), and coverage of intervals.

    "rmse" has the standard error of the mean square over twice the root.
    """
    square = mean_by_user(error**2, users)
    root = float(np.sqrt(np.mean(error**2)))
    log_density = -0.5 * (np.log(2 * np.pi * std**2) + (error / std) ** 2)
    inside = {
        level: mean_by_user(part.astype(np.float64), users)
        for level, part in inside_intervals(error, std).items()
    }
    scores = {
        "rmse": Score(root, square.error and square.error / (2 * root)),
        "log_likelihood": mean_by_user(log_density, users),
    }
    return told(scores) | {
        "coverage": {level: score.value for level, score in inside.items()},
        "coverage_errors": {level: score.error for level, score in inside.items()},
    }


def ranking_scores(
    user: np.ndarray, item: np.ndarray, rank: np.ndarray, relevant: np.ndarray, k: int
) -> dict[str, Any]:
    """NDCG@k and recall@k of recommendations, means over users with something relevant.

    `user`, `item`, `rank` (from 1) are the columns of the recommendations in codes, `relevant` the
    pairs (user, item) that should have come. A hit at rank r gains 1/log₂(r + 1); NDCG is the gain
    over the best possible, recall the share of the relevant that came.
    """
    num_items = 1 + max(int(item.max(initial=0)), int(relevant[:, 1].max(initial=0)))
    wanted = relevant[:, 0].astype(np.int64) * num_items + relevant[:, 1]
    is_hit = (rank <= k) & np.isin(user.astype(np.int64) * num_items + item, wanted)
    users, count = np.unique(relevant[:, 0], return_counts=True)
    size = int(max(users.max(initial=0), user.max(initial=0))) + 1
    gain = np.bincount(user, is_hit / np.log2(rank + 1), size)[users]
    hits = np.bincount(user, is_hit, size)[users]
    best = np.cumsum(1 / np.log2(np.arange(2, k + 2)))[np.minimum(count, k) - 1]
    scores = {
        f"ndcg@{k}": mean_by_user(gain / best, users),
        f"recall@{k}": mean_by_user(hits / count, users),
    }
    return {"num_users_ranked": len(users)} | told(scores)


def told(scores: dict[str, Score]) -> dict[str, Any]:
    """Values by name, and errors by name and "_error"."""
    values = {name: score.value for name, score in scores.items()}
    return values | {f"{name}_error": score.error for name, score in scores.items()}
