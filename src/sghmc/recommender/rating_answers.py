"""Predictions, recommendations and scores of a fitted recommender, in the units of the ratings."""

import dataclasses
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
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.rating_likelihoods import GaussianRatings, OrdinalRatings
from sghmc.recommender.rating_scores import (
    mean_by_user,
    ranking_scores,
    rating_scores,
    with_errors,
)
from sghmc.recommender.ratings import Ratings, codes_of, from_table
from sghmc.recommender.top_items import Best, By, best_items

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


@dataclasses.dataclass(frozen=True)
class Predictor:
    """Predictions and recommendations from draws of pairs' means and a likelihood."""

    ratings: Ratings
    draws: FactorDraws
    outcome: Outcome

    def predict(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of a new rating of each pair of ids."""
        return self.outcome.moments(self.draws, *self._pairs(users, items))

    def probabilities(self, users: Any, items: Any) -> np.ndarray:
        """Return the probability of each level for each pair of ids."""
        return self.outcome.probabilities(self.draws, *self._pairs(users, items))

    def recommend(
        self,
        user: Any,
        k: int,
        exclude_seen: bool,
        explore: float,
        generator: np.random.Generator,
    ) -> Recommendations:
        (code,) = codes_of([user], self.ratings.users)
        candidates = np.arange(self.ratings.num_items)
        if exclude_seen and code >= 0:
            candidates = np.setdiff1d(candidates, self.ratings.item[self.ratings.user == code])
        mean, variance = self.draws.moments(np.full(len(candidates), code), candidates)
        score = mean
        if explore > 0:
            drawn = self.draws.one_draw(int(code), generator)[candidates]
            score = mean + explore * (drawn - mean)
        best = np.argsort(-score, kind="stable")[:k]
        chosen = candidates[best]
        rating, std = self.outcome.ranked(
            self.draws, np.full(len(chosen), code), chosen, mean[best], variance[best]
        )
        return Recommendations(self.ratings.items[chosen], rating, std)

    def of_all(self, best: Best) -> AllRecommendations:
        """Convert recommendations for all users to ids and units of ratings."""
        rating, std = self.outcome.ranked(
            self.draws, best.user, best.item, best.mean, best.variance
        )
        users, items = self.ratings.users[best.user], self.ratings.items[best.item]
        return AllRecommendations(users, best.rank, items, rating, std)

    def similar_items(self, item: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        (code,) = codes_of([item], self.ratings.items)
        if code < 0:
            raise ValueError(
                f"The model has no item {item!r}: give one that was rated, or that has features."
            )
        similarity = self.draws.similarity(int(code))
        order = np.argsort(-similarity, kind="stable")
        best = order[order != code][:k]
        return self.ratings.items[best], similarity[best]

    def _pairs(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert users and items of pairs to codes, −1 for an unknown id."""
        user, item = (
            codes_of(np.ravel(ids).tolist() if np.ndim(ids) == 0 else ids, known)
            for ids, known in ((users, self.ratings.users), (items, self.ratings.items))
        )
        if len(user) != len(item):
            raise ValueError(
                f"users and items must be pairs, but there are {len(user)} and {len(item)} of them."
            )
        return user, item


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
        mean, std = self._predictor().predict(users, items)
        return (mean, std) if return_std else mean

    def predict_proba(self, users: Any, items: Any) -> np.ndarray:
        """Predict the probability of each of `levels_` for pairs (users[k], items[k])."""
        predictor = self._predictor()
        if predictor.outcome.levels is None:
            raise ValueError(
                "predict_proba needs ratings with a few levels, but here they can be any number."
            )
        return predictor.probabilities(users, items)

    @property
    def levels_(self) -> np.ndarray | None:
        """The possible ratings, in order; None if they can be any number."""
        return self._predictor().outcome.levels

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
        predictor = self._predictor()
        check_count(k, "k")
        if not np.isfinite(explore) or explore < 0:
            raise ValueError(f"explore must be zero or more, but is {explore!r}.")
        generator = np.random.default_rng(random_state)
        return predictor.recommend(user, k, exclude_seen, explore, generator)

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
        check_is_fitted(self, "draws_")
        check_count(k, "k")
        check_choice(by, "by", get_args(By))
        if not np.isfinite(width) or width < 0:
            raise ValueError(f"width must be zero or more, but is {width!r}.")
        generator = np.random.default_rng(random_state)
        best = best_items(self.draws_, self.ratings_, k, exclude_seen, by, width, generator)
        return self._predictor().of_all(best)

    def export(self, path: str | pathlib.Path) -> None:
        """Write factors and biases with their standard deviations to an .npz or .arrow file.

        The factors of all draws are first rotated onto the last draw's. A rating is scale[0] +
        scale[1] · (product of factors + biases), in an .arrow file center and spread; so is the
        hidden number of a level, the log-odds of "implicit" and the log-rate of "counts".
        """
        check_is_fitted(self, "draws_")
        factor_draws.write(pathlib.Path(path), self.draws_, self.ratings_, self.scale_)

    def similar_items(self, item: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the `k` items that the same users like, and the correlations of users' tastes."""
        predictor = self._predictor()
        check_count(k, "k")
        return predictor.similar_items(item, k)

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
        predictor = self._predictor()
        ks = [k] if isinstance(k, int) else list(k)
        for each in ks:
            check_count(each, "k")
        table = self._read(ratings, self.likelihood_)
        scores: dict[str, Any] = {"num_ratings": len(table)}
        is_wanted = table.rating > 0
        if self._likelihood.is_rated:
            scores |= self._rating_scores(predictor, table)
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
        predictor, table = self._predictor(), self._read(ratings, self.likelihood_)
        levels = predictor.outcome.levels
        if levels is None:
            raise ValueError(
                "log_probabilities needs ratings with a few levels, but here they are any number."
            )
        place = np.searchsorted((levels[1:] + levels[:-1]) / 2, table.rating)
        found = predictor.probabilities(table.users[table.user], table.items[table.item])
        chosen = found[np.arange(len(table)), place]
        return np.log(np.maximum(chosen, np.finfo(float).tiny))

    def _rating_scores(self, predictor: Predictor, table: Ratings) -> dict[str, Any]:
        mean, std = predictor.predict(table.users[table.user], table.items[table.item])
        scores = rating_scores(mean - table.rating, std, table.user)
        if predictor.outcome.levels is not None:
            logs = self.log_probabilities(table)
            scores |= with_errors({"log_probability": mean_by_user(logs, table.user)})
        return scores

    @property
    def _likelihood(self) -> Likelihood:
        return LIKELIHOODS[self.likelihood_](self.scale_)

    def _predictor(self) -> Predictor:
        check_is_fitted(self, "draws_")
        outcome = self._likelihood.outcome(self.draws_, self.ratings_, self.clip)
        return Predictor(self.ratings_, FactorDraws.of(self.draws_), outcome)
