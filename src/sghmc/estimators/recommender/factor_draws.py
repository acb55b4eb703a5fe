"""Posterior draws of factors and biases, and what they say of pairs of users and items."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_PAIRS_AT_ONCE = 8192
"""Pairs whose means are looked at together, draw after draw: few enough to stay in the cache."""


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


class Seen(NamedTuple):
    """Some pairs under a draw: their means, and what not knowing users or items adds to them."""

    part: slice
    draw: int
    mean: np.ndarray
    variance: np.ndarray


@dataclasses.dataclass(frozen=True)
class FactorDraws:
    """What each draw says of a pair's mean, in units of the model: centered, of order 1."""

    user: Side
    item: Side

    @classmethod
    def of(cls, draws: dict[str, np.ndarray]) -> "FactorDraws":
        """From draws by name, each with a leading axis of draws; shares their memory."""
        return cls(_side(draws, "user"), _side(draws, "item"))

    @property
    def count(self) -> int:
        return len(self.user.rows)

    def means(self, draw: int, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Of each pair under a draw."""
        user, item = self.user.of(draw, users), self.item.of(draw, items)
        return np.einsum("pk,pk->p", user[:, :-1], item[:, :-1]) + user[:, -1] + item[:, -1]

    def each(self, users: np.ndarray, items: np.ndarray) -> Iterator[Seen]:
        """All pairs of codes under all draws, some pairs at a time."""
        for first in range(0, len(users), _PAIRS_AT_ONCE):
            part = slice(first, first + _PAIRS_AT_ONCE)
            for draw in range(self.count):
                mean = self.means(draw, users[part], items[part]).astype(np.float64)
                yield Seen(part, draw, mean, self._prior_variance(draw, users[part], items[part]))

    def moments(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the mean of each pair of codes."""
        total, squares, added = (np.zeros(len(users)) for _ in range(3))
        for seen in self.each(users, items):
            total[seen.part] += seen.mean
            squares[seen.part] += seen.mean**2
            added[seen.part] += seen.variance
        mean = total / self.count
        # Means are of order 1: in double precision nothing is lost in this difference.
        variance = np.maximum(squares / self.count - mean**2, 0.0)
        return mean, variance * self.count / max(self.count - 1, 1) + added / self.count

    def one_draw(self, user: int, generator: np.random.Generator) -> np.ndarray:
        """A user's means of all known items under a random draw; an unknown user is drawn too."""
        draw = int(generator.integers(self.count))
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
        for draw in range(self.count):
            users, items = (side.rows[draw, :, :-1] for side in (self.user, self.item))
            weighted = items @ np.atleast_2d(np.cov(users, rowvar=False, ddof=0))
            variances = np.sum(weighted * items, axis=1)
            scale = np.sqrt(variances * variances[item])
            total += weighted @ items[item] / np.maximum(scale, np.finfo(float).tiny)
        return total / self.count

    def _prior_variance(self, draw: int, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """What not knowing the user's, or the item's, own factors and bias adds."""
        total = np.zeros(len(users))
        for mine, codes, other, others in (
            (self.user, users, self.item, items),
            (self.item, items, self.user, users),
        ):
            is_new = codes < 0
            if not is_new.any():
                continue
            known, inverse = np.unique(others[is_new], return_inverse=True)
            squares = other.of(draw, known).astype(np.float64) ** 2
            squares[:, -1] = 1.0  # what a bias is multiplied by
            total[is_new] += (squares @ mine.spread[draw])[inverse]
        both = (users < 0) & (items < 0)
        total[both] += np.sum(self.user.spread[draw, :-1] * self.item.spread[draw, :-1])
        return total


def _side(draws: dict[str, np.ndarray], name: str) -> Side:
    """With features somebody unknown may be anybody: the mean of the others, as far as they lie."""
    spread = 1 / draws[f"{name}.precision"].astype(np.float64)
    if f"{name}.typical" not in draws:
        return Side(draws[name], draws[f"{name}.mean"], spread)
    return Side(draws[name], draws[f"{name}.typical"], spread + draws[f"{name}.varied"])
