"""Hold ratings out, and score predicted ratings and rankings on them, with standard errors.

Errors of one user's ratings are correlated. So the standard error of a mean over ratings takes
users, not ratings, as independent: se² = m/(m − 1) · Σ_users (Σ_ratings (x − x̄))² / n², m users.
"""

from typing import Any, NamedTuple

import numpy as np

from sghmc.core.checks import check_choice
from sghmc.recommender.ratings import Ratings
from sghmc.results.scores import inside_intervals

SPLITS = ("random", "last", "time")


def split(ratings: Ratings, how: str, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split ratings into rows to learn from and held-out rows, both in order.

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
    check_choice(how, "split", SPLITS)
    count = round(share * len(ratings))
    if how != "last" and not 0 < count < len(ratings):
        raise ValueError(
            f"{share:.0%} of {len(ratings)} ratings are {count}, but a split needs some to hold "
            f"out and some to learn from. Give more ratings, or hold nothing out."
        )
    if how == "random":
        held_out = np.random.default_rng(seed).permutation(len(ratings))[:count]
    else:
        if ratings.time is None:
            raise ValueError(
                f"The split {how!r} needs the times of ratings, but there are none: give the table "
                f'a column "timestamp", or split at "random".'
            )
        order = np.argsort(ratings.time, kind="stable")
        held_out = order[-count:] if how == "time" else _last_of_users(ratings, order)
    is_held_out = np.zeros(len(ratings), bool)
    is_held_out[held_out] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _last_of_users(ratings: Ratings, order: np.ndarray) -> np.ndarray:
    last = np.zeros(ratings.num_users, np.int64)
    last[ratings.user[order]] = order  # if indices are equal, the last assignment stays
    held_out = last[np.bincount(ratings.user, minlength=ratings.num_users) > 1]
    if len(held_out) == 0:
        raise ValueError("No user has two ratings: none can be held out as the last one.")
    return held_out


class Score(NamedTuple):
    """A mean and its standard error; None if there are too few values."""

    value: float | None
    error: float | None


def mean_by_user(values: np.ndarray, users: np.ndarray) -> Score:
    """Mean of numbers and its standard error, given the user of each.

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
    """Score predictions: root mean squared error, mean log-density, and coverage of intervals.

    The density is that of N(mean, std²); `error` is the predicted mean less the rating. The
    standard error of "rmse" is that of the mean square over twice the root.
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
    return with_errors(scores) | {
        "coverage": {level: score.value for level, score in inside.items()},
        "coverage_errors": {level: score.error for level, score in inside.items()},
    }


def ranking_scores(
    user: np.ndarray, item: np.ndarray, rank: np.ndarray, relevant: np.ndarray, k: int
) -> dict[str, Any]:
    """Score recommendations: means of NDCG@k and recall@k over users with a relevant item.

    `user`, `item`, `rank` (from 1) are the columns of the recommendations in codes, `relevant` the
    pairs (user, item) that should be recommended. A hit at rank r gains 1/log₂(r + 1); NDCG is the
    gain over the best possible one, recall the share of relevant items that were recommended.
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
    return {"num_users_ranked": len(users)} | with_errors(scores)


def with_errors(scores: dict[str, Score]) -> dict[str, Any]:
    """Return values by name, and standard errors by name and "_error"."""
    values = {name: score.value for name, score in scores.items()}
    return values | {f"{name}_error": score.error for name, score in scores.items()}
