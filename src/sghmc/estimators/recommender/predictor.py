"""What a fitted recommender answers, in the units of the ratings."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from sghmc.data.ratings import Ratings, codes_of
from sghmc.estimators.recommender.bulk import Best
from sghmc.estimators.recommender.factor_draws import FactorDraws


class Recommendations(NamedTuple):
    """Items, best first, with the predicted rating and the standard deviation of a new one."""

    items: np.ndarray
    ratings: np.ndarray
    stds: np.ndarray


class AllRecommendations(NamedTuple):
    """Rows of a table: user after user, best first; `rank` counts from 1."""

    user: np.ndarray
    rank: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    std: np.ndarray


@dataclasses.dataclass(frozen=True)
class Predictor:
    """Posterior draws of standardized ratings, and how to bring them back: center + spread · r."""

    ratings: Ratings
    center: float
    spread: float
    draws: FactorDraws
    is_clipped: bool

    def predict(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of a new rating of each pair of ids."""
        user, item = (
            codes_of(np.ravel(ids).tolist() if np.ndim(ids) == 0 else ids, known)
            for ids, known in ((users, self.ratings.users), (items, self.ratings.items))
        )
        if len(user) != len(item):
            raise ValueError(
                f"users and items are pairs, but there are {len(user)} and {len(item)} of them."
            )
        mean, variance = self.draws.moments(user, item)
        return self._rating(mean), self.spread * np.sqrt(variance)

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
        return Recommendations(
            self.ratings.items[candidates[best]],
            self._rating(mean[best]),
            self.spread * np.sqrt(variance[best]),
        )

    def of_all(self, best: Best) -> AllRecommendations:
        """Recommendations for all users, in ids and stars."""
        variance = best.variance + self.draws.noise_variance(best.user)
        return AllRecommendations(
            self.ratings.users[best.user],
            best.rank,
            self.ratings.items[best.item],
            self._rating(best.mean.astype(np.float64)),
            self.spread * np.sqrt(variance),
        )

    def similar_items(self, item: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        (code,) = codes_of([item], self.ratings.items)
        if code < 0:
            raise ValueError(f"There is no item {item!r} among the ratings: nothing is like it.")
        similarity = self.draws.similarity(int(code))
        order = np.argsort(-similarity, kind="stable")
        best = order[order != code][:k]
        return self.ratings.items[best], similarity[best]

    def _rating(self, mean: np.ndarray) -> np.ndarray:
        """A standardized mean as a rating, within those that were given if it is to be clipped."""
        rating, given = self.center + self.spread * mean, self.ratings.rating
        if not self.is_clipped:
            return rating
        return np.clip(rating, float(given.min()), float(given.max()))
