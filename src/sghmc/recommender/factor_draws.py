"""Posterior draws of factors and biases: means of pairs, similar items, and export to a file."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sghmc.core import files
from sghmc.recommender.ratings import Ratings

_PAIRS_AT_ONCE = 8192
"""Number of pairs evaluated together, draw after draw: few enough to stay in the cache."""


class FactorRows(NamedTuple):
    """Draws of the rows of users, or of items; the last column is the bias.

    An unknown user or item has the code −1, and the prior: its means and variances.
    """

    rows: np.ndarray  # (draw, row, column)
    mean: np.ndarray  # (draw, column)
    variance: np.ndarray  # (draw, column)

    @classmethod
    def of(cls, draws: dict[str, np.ndarray], side: str) -> "FactorRows":
        """Take the draws of one side.

        With features, an unknown row has the mean and the variance of the known rows' centers.
        """
        variance = 1 / draws[f"{side}.precision"].astype(np.float64)
        if f"{side}.typical" not in draws:
            return cls(draws[side], draws[f"{side}.mean"], variance)
        return cls(draws[side], draws[f"{side}.typical"], variance + draws[f"{side}.varied"])

    def under(self, draw: int, codes: np.ndarray) -> np.ndarray:
        """Return the rows with these codes under a draw."""
        rows = self.rows[draw][codes]
        rows[codes < 0] = self.mean[draw]
        return rows


class PairMeans(NamedTuple):
    """Means of some pairs under a draw, and their variance if users or items are unknown."""

    part: slice
    draw: int
    mean: np.ndarray
    variance: np.ndarray


@dataclasses.dataclass(frozen=True)
class FactorDraws:
    """Draws of the means of pairs, in the model's units: centered, of order 1."""

    user: FactorRows
    item: FactorRows

    @classmethod
    def of(cls, draws: dict[str, np.ndarray]) -> "FactorDraws":
        """Take draws by name, each with a leading axis of draws, without a copy."""
        return cls(FactorRows.of(draws, "user"), FactorRows.of(draws, "item"))

    @property
    def count(self) -> int:
        return len(self.user.rows)

    def means(self, draw: int, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return the mean of each pair of codes under a draw."""
        user, item = self.user.under(draw, users), self.item.under(draw, items)
        return np.einsum("pk,pk->p", user[:, :-1], item[:, :-1]) + user[:, -1] + item[:, -1]

    def each(self, users: np.ndarray, items: np.ndarray) -> Iterator[PairMeans]:
        """Yield the means of all pairs of codes under all draws, some pairs at a time."""
        for first in range(0, len(users), _PAIRS_AT_ONCE):
            part = slice(first, first + _PAIRS_AT_ONCE)
            for draw in range(self.count):
                mean = self.means(draw, users[part], items[part]).astype(np.float64)
                yield PairMeans(
                    part, draw, mean, self._prior_variance(draw, users[part], items[part])
                )

    def moments(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean and variance of the mean of each pair of codes."""
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
        """Return a user's means of all items under a random draw; an unknown user is drawn too."""
        draw = int(generator.integers(self.count))
        (row,), items = self.user.under(draw, np.array([user])), self.item.rows[draw]
        if user < 0:
            row = row + generator.normal(size=row.shape) * self.user.variance[draw] ** 0.5
        return items[:, :-1] @ row[:-1] + items[:, -1] + row[-1]

    def similarity(self, item: int) -> np.ndarray:
        """Correlate users' tastes for an item with those for every item, averaged over draws.

        A taste is the product of a user's and an item's factors, so that rotations of the factors,
        which differ between draws, do not matter.
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
        """Variance of pairs' means that comes from unknown users and items, who have the prior."""
        total = np.zeros(len(users))
        for mine, codes, other, others in (
            (self.user, users, self.item, items),
            (self.item, items, self.user, users),
        ):
            is_new = codes < 0
            if not is_new.any():
                continue
            known, inverse = np.unique(others[is_new], return_inverse=True)
            squares = other.under(draw, known).astype(np.float64) ** 2
            squares[:, -1] = 1.0  # a bias is multiplied by 1
            total[is_new] += (squares @ mine.variance[draw])[inverse]
        both = (users < 0) & (items < 0)
        total[both] += np.sum(self.user.variance[draw, :-1] * self.item.variance[draw, :-1])
        return total


# Means and standard deviations of the factors, in a file for other programs.


class Factors(NamedTuple):
    """Mean and standard deviation over draws of each row; the bias is the last column."""

    mean: np.ndarray
    std: np.ndarray


def aligned_factors(draws: dict[str, np.ndarray]) -> dict[str, Factors]:
    """Average the rows of both sides, after rotating each draw's factors onto the last draw's.

    A rotation of all factors changes no product, and it differs between draws: so rows can be
    averaged only after it is undone (the orthogonal Procrustes problem).
    """
    rows = np.concatenate([draws["user"], draws["item"]], axis=1).astype(np.float64)
    last = rows[-1, :, :-1]
    for draw in rows:
        left, _, right = np.linalg.svd(draw[:, :-1].T @ last)
        draw[:, :-1] = draw[:, :-1] @ (left @ right)
    mean, std = rows.mean(axis=0), rows.std(axis=0, ddof=min(1, len(rows) - 1))
    count = draws["user"].shape[1]
    return {
        "user": Factors(mean[:count], std[:count]),
        "item": Factors(mean[count:], std[count:]),
    }


def write(
    path: pathlib.Path, draws: dict[str, np.ndarray], ratings: Ratings, scale: np.ndarray
) -> None:
    """Write an .npz file with arrays of both sides.

    A predicted rating is scale[0] + scale[1] · (user's · item's factors + both biases).
    """
    if path.suffix != ".npz":
        raise ValueError(f"The file of factors must end in .npz, but is {path}.")
    arrays = {"users": ratings.users, "items": ratings.items, "scale": scale}
    for side, (mean, std) in aligned_factors(draws).items():
        arrays |= {f"{side}_factors": mean[:, :-1], f"{side}_factor_stds": std[:, :-1]}
        arrays |= {f"{side}_bias": mean[:, -1], f"{side}_bias_std": std[:, -1]}
    with files.draft(path) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
