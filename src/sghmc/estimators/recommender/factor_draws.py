"""Posterior draws of factors and biases, and what they say of pairs of users and items."""

import dataclasses
from typing import NamedTuple

import numpy as np

_PAIRS_AT_ONCE = 8192
"""Pairs whose ratings are looked at together, draw after draw: few enough to stay in the cache."""


class Side(NamedTuple):
    """Users, or items: the last column is the bias.

    The code −1 is for those that are unknown: `mean` and `spread`, the prior's means and variances,
    are what is known of them.
    """

    rows: np.ndarray  # (draw, row, column)
    mean: np.ndarray  # (draw, column)
    spread: np.ndarray  # (draw, column)

    def of(self, draw: int, codes: np.ndarray) -> np.ndarray:
        """The rows of some codes under a draw."""
        rows = self.rows[draw][codes]
        rows[codes < 0] = self.mean[draw]
        return rows


@dataclasses.dataclass(frozen=True)
class FactorDraws:
    """What each draw says, in units of the model: centered, of order 1."""

    user: Side
    item: Side
    noise: np.ndarray  # (draw, user): the precision τ of a user's ratings

    @classmethod
    def of(cls, draws: dict[str, np.ndarray]) -> "FactorDraws":
        """From draws by name, each with a leading axis of draws; shares their memory."""
        return cls(_side(draws, "user"), _side(draws, "item"), draws["noise"])

    def ratings(self, draw: int, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The mean rating of each pair under a draw."""
        user, item = self.user.of(draw, users), self.item.of(draw, items)
        return np.einsum("pk,pk->p", user[:, :-1], item[:, :-1]) + user[:, -1] + item[:, -1]

    def moments(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a new rating of each pair of codes."""
        count = len(self.noise)
        total, squares = np.zeros(len(users)), np.zeros(len(users))
        for first in range(0, len(users), _PAIRS_AT_ONCE):
            part = slice(first, first + _PAIRS_AT_ONCE)
            for draw in range(count):
                ratings = self.ratings(draw, users[part], items[part]).astype(np.float64)
                total[part] += ratings
                squares[part] += ratings**2
        mean = total / count
        # Ratings are of order 1: in double precision nothing is lost in this difference.
        variance = np.maximum(squares / count - mean**2, 0.0) * count / max(count - 1, 1)
        variance += self.noise_variance(users)
        is_new = (users < 0) | (items < 0)
        if is_new.any():
            variance[is_new] += self._prior_variance(users[is_new], items[is_new])
        return mean, variance

    def one_draw(self, user: int, generator: np.random.Generator) -> np.ndarray:
        """A user's ratings of all known items under a random draw; an unknown user is drawn too."""
        draw = int(generator.integers(len(self.noise)))
        (row,), items = self.user.of(draw, np.array([user])), self.item.rows[draw]
        if user < 0:
            row = row + generator.normal(size=row.shape) * self.user.spread[draw] ** 0.5
        return items[:, :-1] @ row[:-1] + items[:, -1] + row[-1]

    def similarity(self, item: int) -> np.ndarray:
        """Of an item to all: the correlation of users' tastes for both, averaged over draws.

        Tastes are products with factors of users as they are; so nothing depends on how a draw
        turns the factors' axes.
        """
        total = np.zeros(self.item.rows.shape[1])
        for draw in range(len(self.noise)):
            users, items = (side.rows[draw, :, :-1] for side in (self.user, self.item))
            weighted = items @ np.atleast_2d(np.cov(users, rowvar=False, ddof=0))
            variances = np.sum(weighted * items, axis=1)
            scale = np.sqrt(variances * variances[item])
            total += weighted @ items[item] / np.maximum(scale, np.finfo(float).tiny)
        return total / len(self.noise)

    def noise_variance(self, users: np.ndarray) -> np.ndarray:
        """Of each user's ratings, draws averaged; a stranger rates as the average user does."""
        variances = np.mean(1 / self.noise.astype(np.float64), axis=0)
        return np.where(users < 0, np.mean(variances), variances[users])

    def _prior_variance(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """What not knowing the user's, or the item's, own factors and bias adds."""
        total = np.zeros(len(users))
        for mine, codes, other, others in (
            (self.user, users, self.item, items),
            (self.item, items, self.user, users),
        ):
            is_new = codes < 0
            known, inverse = np.unique(others[is_new], return_inverse=True)
            own = np.zeros(len(known))
            for draw, spread in enumerate(mine.spread):
                squares = other.of(draw, known).astype(np.float64) ** 2
                squares[:, -1] = 1.0  # what a bias is multiplied by
                own += squares @ spread
            total[is_new] += own[inverse] / len(self.noise)
        both = (users < 0) & (items < 0)
        products = self.user.spread[:, :-1] * self.item.spread[:, :-1]
        total[both] += np.mean(np.sum(products, axis=1))
        return total


def _side(draws: dict[str, np.ndarray], name: str) -> Side:
    precision = draws[f"{name}.precision"].astype(np.float64)
    return Side(draws[name], draws[f"{name}.mean"], 1 / precision)
