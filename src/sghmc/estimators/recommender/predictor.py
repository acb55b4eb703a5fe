"""What a fitted recommender answers, in the units of the ratings."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from sghmc.data.ratings import Ratings, codes_of
from sghmc.estimators.recommender.bulk import Best
from sghmc.estimators.recommender.factor_draws import FactorDraws
from sghmc.estimators.recommender.likelihoods.base import Outcome


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
    """Posterior draws of pairs' means, and how ratings come about given those."""

    ratings: Ratings
    draws: FactorDraws
    outcome: Outcome

    def predict(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of a new rating of each pair of ids."""
        return self.outcome.moments(self.draws, *self._pairs(users, items))

    def probabilities(self, users: Any, items: Any) -> np.ndarray:
        """Of each level of ratings, for each pair of ids."""
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
        """Recommendations for all users, in ids and stars."""
        rating, std = self.outcome.ranked(
            self.draws, best.user, best.item, best.mean, best.variance
        )
        users, items = self.ratings.users[best.user], self.ratings.items[best.item]
        return AllRecommendations(users, best.rank, items, rating, std)

    def similar_items(self, item: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        (code,) = codes_of([item], self.ratings.items)
        if code < 0:
            raise ValueError(f"There is no item {item!r} among the ratings: nothing is like it.")
        similarity = self.draws.similarity(int(code))
        order = np.argsort(-similarity, kind="stable")
        best = order[order != code][:k]
        return self.ratings.items[best], similarity[best]

    def _pairs(self, users: Any, items: Any) -> tuple[np.ndarray, np.ndarray]:
        """Their codes."""
        user, item = (
            codes_of(np.ravel(ids).tolist() if np.ndim(ids) == 0 else ids, known)
            for ids, known in ((users, self.ratings.users), (items, self.ratings.items))
        )
        if len(user) != len(item):
            raise ValueError(
                f"users and items are pairs, but there are {len(user)} and {len(item)} of them."
            )
        return user, item
