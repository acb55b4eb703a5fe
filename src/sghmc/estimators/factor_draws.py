"""Posterior draws of factors and biases, and what they say of pairs of users and items."""

import dataclasses
from typing import NamedTuple

import numpy as np

_PAIRS_AT_ONCE = 1024
"""Pairs whose draws are looked at together: few enough to stay in the cache."""


class Side(NamedTuple):
    """Users, or items: one more row than there are, the last for those that are unknown.

    Its code is −1, its factors and bias are the prior's means; `spread` has the prior's variances
    around them. The last column is the bias.
    """

    rows: np.ndarray  # (row, draw, column)
    spread: np.ndarray  # (draw, column)

    @property
    def factors(self) -> np.ndarray:
        return self.rows[..., :-1]


@dataclasses.dataclass(frozen=True)
class FactorDraws:
    """What each draw says, in units of the model: centered, of order 1."""

    user: Side
    item: Side
    noise: np.ndarray  # (draw,): the rating precision τ

    @classmethod
    def of(cls, draws: dict[str, np.ndarray]) -> "FactorDraws":
        """From draws by name, each with a leading axis of draws."""
        return cls(_side(draws, "user"), _side(draws, "item"), draws["noise"])

    def ratings(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The mean rating of each pair under each draw: (pair, draw)."""
        user, item = self.user.rows[users], self.item.rows[items]
        product = np.einsum("psk,psk->ps", user[..., :-1], item[..., :-1])
        return product + user[..., -1] + item[..., -1]

    def moments(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a new rating of each pair of codes."""
        mean, variance = np.empty(len(users)), np.empty(len(users))
        for first in range(0, len(users), _PAIRS_AT_ONCE):
            part = slice(first, first + _PAIRS_AT_ONCE)
            ratings = self.ratings(users[part], items[part]).astype(np.float64)
            mean[part] = ratings.mean(axis=1)
            variance[part] = ratings.var(axis=1, ddof=min(1, ratings.shape[1] - 1))
        variance += np.mean(1 / self.noise.astype(np.float64))
        is_new = (users < 0) | (items < 0)
        if is_new.any():
            variance[is_new] += self._prior_variance(users[is_new], items[is_new])
        return mean, variance

    def one_draw(self, draw: int, user: int, generator: np.random.Generator) -> np.ndarray:
        """One posterior draw of a user's ratings of all known items; an unknown user's own draw."""
        row, items = self.user.rows[user, draw], self.item.rows[:-1, draw]
        if user < 0:
            row = row + generator.normal(size=row.shape) * self.user.spread[draw] ** 0.5
        return items[:, :-1] @ row[:-1] + items[:, -1] + row[-1]

    def similarity(self, item: int) -> np.ndarray:
        """Of an item to all: the correlation of users' tastes for both, averaged over draws.

        Tastes are products with factors of users as they are; so nothing depends on how a draw
        turns the factors' axes.
        """
        total = np.zeros(len(self.item.rows) - 1)
        for draw in range(len(self.noise)):
            users, items = (side.factors[:-1, draw] for side in (self.user, self.item))
            weighted = items @ np.atleast_2d(np.cov(users, rowvar=False, ddof=0))
            variances = np.sum(weighted * items, axis=1)
            scale = np.sqrt(variances * variances[item])
            total += weighted @ items[item] / np.maximum(scale, np.finfo(float).tiny)
        return total / len(self.noise)

    def _prior_variance(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """What not knowing the user's, or the item's, own factors and bias adds."""
        total = np.zeros(len(users))
        for mine, codes, other, others in (
            (self.user, users, self.item, items),
            (self.item, items, self.user, users),
        ):
            is_new = codes < 0
            known, inverse = np.unique(others[is_new], return_inverse=True)
            squares = other.rows[known].astype(np.float64) ** 2
            squares[..., -1] = 1.0  # what a bias is multiplied by
            own = np.einsum("psk,sk->ps", squares, mine.spread)
            total[is_new] += own.mean(axis=1)[inverse]
        both = (users < 0) & (items < 0)
        products = self.user.spread[:, :-1] * self.item.spread[:, :-1]
        total[both] += np.mean(np.sum(products, axis=1))
        return total


def _side(draws: dict[str, np.ndarray], name: str) -> Side:
    rows = np.concatenate([np.moveaxis(draws[name], 0, 1), draws[f"{name}.mean"][None]])
    return Side(np.ascontiguousarray(rows), 1 / draws[f"{name}.precision"].astype(np.float64))
