"""Predictions, recommendations and scores of a fitted recommender, in the units of the ratings.

Errors of one user's ratings are correlated. So the standard error of a mean over ratings takes
users, not ratings, as independent: se² = m/(m − 1) · Σ_users (Σ_ratings (x − x̄))² / n², m users.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sghmc.core.checks import check_choice, check_count
from sghmc.recommender import factor_draws
from sghmc.recommender.clicks import Counts, Implicit
from sghmc.recommender.factor_chain import Likelihood, Outcome
from sghmc.recommender.factor_draws import By, FactorDraws, best_items
from sghmc.recommender.rating_likelihoods import GaussianRatings, OrdinalRatings
from sghmc.recommender.ratings import Ratings, codes_of, from_table
from sghmc.results.scores import inside_intervals

# Held-out ratings, and scores of predictions on them.

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


# Answers of a fitted recommender.

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (GaussianRatings, OrdinalRatings, Implicit, Counts)
}


def reading_options(name: str, duplicates: str) -> dict[str, Any]:
    """Return the options of `from_table` for a likelihood, or for "auto".

    If the data are events, a pair may come more than once, unless `duplicates` decides otherwise,
    and ratings may be missing.
    """
    kind = LIKELIHOODS.get(name)
    repeats = kind.repeats if kind and duplicates == "error" else duplicates
    return {"duplicates": repeats, "is_rated": kind is not None and kind.is_rated}


class Recommendations(NamedTuple):
    """Recommended items, best first, with the mean and standard deviation of a new rating."""

    items: np.ndarray
    ratings: np.ndarray
    stds: np.ndarray


class AllRecommendations(NamedTuple):
    """Table of recommendations, user after user, best first; `rank` counts from 1."""

    user: np.ndarray
    rank: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    std: np.ndarray


class RatingAnswers(BaseEstimator):
    """Answers of an estimator that has posterior draws of factors.

    | attribute | what |
    | --- | --- |
    | `draws_` | draws by name, as `FactorDraws` takes them |
    | `ratings_` | all ratings learned from |
    | `scale_` | converts ratings to the model's units: for example their center and spread |
    | `likelihood_` | the name of the likelihood |
    """

    likelihood_: str = "gaussian"

    draws_: dict[str, np.ndarray]
    ratings_: Ratings
    scale_: np.ndarray
    clip: bool
    duplicates: str

    def predict(self, users: Any, items: Any, return_std: bool = False) -> Any:
        """Predict ratings of pairs (users[k], items[k]); `return_std` adds standard deviations.

        The standard deviation is that of a new rating: uncertainty of the posterior and noise of
        ratings. An unknown id has the prior as its law. With the likelihood "implicit" a prediction
        is the probability that a pair comes up, with "counts" how often on average.
        """
        draws, outcome = self._fitted()
        mean, std = outcome.moments(draws, *_coded(users, items, self.ratings_))
        return (mean, std) if return_std else mean

    def predict_proba(self, users: Any, items: Any) -> np.ndarray:
        """Predict the probability of each of `levels_` for pairs (users[k], items[k])."""
        draws, outcome = self._fitted()
        if outcome.levels is None:
            raise ValueError(
                "predict_proba needs ratings with a few levels, but here they can be any number."
            )
        return outcome.probabilities(draws, *_coded(users, items, self.ratings_))

    @property
    def levels_(self) -> np.ndarray | None:
        """The possible ratings, in order; None if they can be any number."""
        return self._fitted()[1].levels

    def recommend(
        self,
        user: Any,
        k: int = 10,
        exclude_seen: bool = True,
        explore: float = 0.0,
        random_state: int | None = None,
    ) -> Recommendations:
        """Recommend the `k` items that a user would rate best, or all if there are fewer.

        With `explore` 1 the order is that of one draw from the posterior: Thompson sampling, which
        tries items that may be good. In between, the draw's difference from the mean is scaled.
        Every call takes another draw; `random_state` fixes it. An unknown user has the prior as
        their law, so that the most popular items come first.
        """
        draws, outcome = self._fitted()
        check_count(k, "k")
        if not np.isfinite(explore) or explore < 0:
            raise ValueError(f"explore must be zero or more, but is {explore!r}.")
        ratings = self.ratings_
        (code,) = codes_of([user], ratings.users)
        candidates = np.arange(ratings.num_items)
        if exclude_seen and code >= 0:
            candidates = np.setdiff1d(candidates, ratings.item[ratings.user == code])
        users = np.full(len(candidates), code)
        mean, variance = draws.moments(users, candidates)
        score = mean
        if explore > 0:
            drawn = draws.one_draw(int(code), np.random.default_rng(random_state))[candidates]
            score = mean + explore * (drawn - mean)
        best = np.argsort(-score, kind="stable")[:k]
        chosen = candidates[best]
        found = outcome.ranked(draws, users[best], chosen, mean[best], variance[best])
        return Recommendations(ratings.items[chosen], *found)

    def recommend_all(
        self,
        k: int = 10,
        exclude_seen: bool = True,
        by: By = "mean",
        width: float = 1.0,
        random_state: int | None = None,
    ) -> AllRecommendations:
        """Recommend the `k` best items to every known user, in batches, on a GPU if there is one.

        `by` is "mean"; "upper" or "lower" for the mean plus or minus `width` standard deviations of
        the posterior (without the noise of ratings); or "draw" for the order under a random draw
        for each user, Thompson sampling, which `random_state` fixes.
        """
        draws, outcome = self._fitted()
        check_count(k, "k")
        check_choice(by, "by", get_args(By))
        if not np.isfinite(width) or width < 0:
            raise ValueError(f"width must be zero or more, but is {width!r}.")
        generator = np.random.default_rng(random_state)
        ratings = self.ratings_
        best = best_items(self.draws_, ratings, k, exclude_seen, by, width, generator)
        rating, std = outcome.ranked(draws, best.user, best.item, best.mean, best.variance)
        users, items = ratings.users[best.user], ratings.items[best.item]
        return AllRecommendations(users, best.rank, items, rating, std)

    def export(self, path: str | pathlib.Path) -> None:
        """Write factors and biases with their standard deviations to an .npz file.

        The factors of all draws are first rotated onto the last draw's. A rating is scale[0] +
        scale[1] · (product of factors + biases); so is the hidden number of a level, the log-odds
        of "implicit" and the log-rate of "counts".
        """
        check_is_fitted(self, "draws_")
        factor_draws.write(pathlib.Path(path), self.draws_, self.ratings_, self.scale_)

    def similar_items(self, item: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the `k` items that the same users like, and the correlations of users' tastes."""
        draws, _ = self._fitted()
        check_count(k, "k")
        (code,) = codes_of([item], self.ratings_.items)
        if code < 0:
            raise ValueError(
                f"The model has no item {item!r}: give one that was rated, or that has features."
            )
        similarity = draws.similarity(int(code))
        order = np.argsort(-similarity, kind="stable")
        best = order[order != code][:k]
        return self.ratings_.items[best], similarity[best]

    def evaluate(
        self, ratings: Any, k: int | Sequence[int] = 10, relevant: float | None = None
    ) -> dict[str, Any]:
        """Score predictions and rankings on held-out ratings.

        "rmse", "log_likelihood" (the mean log-density of a normal law with the predicted mean and
        standard deviation), "coverage" of predictive intervals and, if ratings have levels,
        "log_probability", the mean log-probability of the observed level, which can compare
        likelihoods. "ndcg@k" and "recall@k", for one `k` or several, score the `k` best among all
        items that a known user had not rated; relevant are held-out ratings of at least `relevant`,
        by default the mean of those learned from. With "implicit" and "counts" only rankings are
        scored, since held-out tables lack the pairs that did not come up. Names that end in
        "_error" are standard errors, with users as independent.
        """
        check_is_fitted(self, "draws_")
        ks = [k] if isinstance(k, int) else list(k)
        for each in ks:
            check_count(each, "k")
        table = self._read(ratings, self.likelihood_)
        scores: dict[str, Any] = {"num_ratings": len(table)}
        is_wanted = table.rating > 0
        if self._likelihood.is_rated:
            scores |= self._rating_scores(table)
            mean = self.ratings_.rating.mean(dtype=np.float64)
            is_wanted = table.rating >= (mean if relevant is None else relevant)
        users = codes_of(table.users, self.ratings_.users)[table.user]
        items = codes_of(table.items, self.ratings_.items)[table.item]
        pairs = np.stack([users, items], axis=1)
        pairs = pairs[is_wanted & np.all(pairs >= 0, axis=1)]
        best = best_items(
            self.draws_, self.ratings_, max(ks), True, "mean", 0.0, np.random.default_rng(0)
        )
        for each in ks:
            scores |= ranking_scores(best.user, best.item, best.rank, pairs, each)
        return scores

    def _read(self, ratings: Any, likelihood: str) -> Ratings:
        """Read a table of ratings with the options of a likelihood."""
        return from_table(ratings, **reading_options(likelihood, self.duplicates))

    def log_probabilities(self, ratings: Any) -> np.ndarray:
        """Log-probability of each rating's level; only for likelihoods of ratings with levels."""
        table, levels = self._read(ratings, self.likelihood_), self.levels_
        if levels is None:
            raise ValueError(
                "log_probabilities needs ratings with a few levels, but here they are any number."
            )
        place = np.searchsorted((levels[1:] + levels[:-1]) / 2, table.rating)
        found = self.predict_proba(table.users[table.user], table.items[table.item])
        chosen = found[np.arange(len(table)), place]
        return np.log(np.maximum(chosen, np.finfo(float).tiny))

    def _rating_scores(self, table: Ratings) -> dict[str, Any]:
        users, items = table.users[table.user], table.items[table.item]
        mean, std = self.predict(users, items, return_std=True)
        scores = rating_scores(mean - table.rating, std, table.user)
        if self.levels_ is not None:
            logs = self.log_probabilities(table)
            scores |= with_errors({"log_probability": mean_by_user(logs, table.user)})
        return scores

    @property
    def _likelihood(self) -> Likelihood:
        return LIKELIHOODS[self.likelihood_](self.scale_)

    def _fitted(self) -> tuple[FactorDraws, Outcome]:
        """Return the draws of pairs' means, and what predicts ratings from them."""
        check_is_fitted(self, "draws_")
        outcome = self._likelihood.outcome(self.draws_, self.ratings_, self.clip)
        return FactorDraws.of(self.draws_), outcome


def _coded(users: Any, items: Any, known: Ratings) -> tuple[np.ndarray, np.ndarray]:
    """Convert users and items of pairs to codes, −1 for an unknown id."""
    user, item = (
        codes_of(np.ravel(ids).tolist() if np.ndim(ids) == 0 else ids, of_known)
        for ids, of_known in ((users, known.users), (items, known.items))
    )
    if len(user) != len(item):
        raise ValueError(
            f"users and items must be pairs, but there are {len(user)} and {len(item)} of them."
        )
    return user, item
