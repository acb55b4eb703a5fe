"""Posterior draws of factors and biases, and what they say of pairs of users and items.

Factors of a fitted recommender for other programs: means and spreads, in one file.
"""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sghmc.core import files
from sghmc.core.checks import require
from sghmc.recommender.ratings import Ratings

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


# Factors of a fitted recommender for other programs: means and spreads, in one file.

KINDS = (".npz", ".arrow")


class Factors(NamedTuple):
    """Mean and standard deviation over draws of the rows of a side; the bias is the last column."""

    mean: np.ndarray
    std: np.ndarray


def aligned_factors(draws: dict[str, np.ndarray]) -> dict[str, Factors]:
    """Of both sides, every draw turned so that its factors lie as those of the last.

    Turning the factors of users and items alike changes no product, and a chain does turn them: so
    rows can be averaged only after it was undone (the orthogonal Procrustes problem).
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
    """An .npz with arrays of both sides, or an .arrow file with a row for each user and item.

    A predicted rating is center + spread · (user's · item's factors + both biases).
    """
    if path.suffix not in KINDS:
        raise ValueError(f"{path} must end in one of {', '.join(KINDS)}: its ending is its format.")
    factors = aligned_factors(draws)
    with files.draft(path) as draft:
        if path.suffix == ".npz":
            _write_npz(draft, factors, ratings, scale)
        else:
            _write_arrow(draft, factors, ratings, scale)


def _write_npz(
    path: pathlib.Path, factors: dict[str, Factors], ratings: Ratings, scale: np.ndarray
) -> None:
    arrays = {"users": ratings.users, "items": ratings.items, "scale": scale}
    for side, (mean, std) in factors.items():
        arrays |= {f"{side}_factors": mean[:, :-1], f"{side}_factor_stds": std[:, :-1]}
        arrays |= {f"{side}_bias": mean[:, -1], f"{side}_bias_std": std[:, -1]}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _write_arrow(
    path: pathlib.Path, factors: dict[str, Factors], ratings: Ratings, scale: np.ndarray
) -> None:
    pa = require("pyarrow", extra="data")
    ids = {"user": ratings.users, "item": ratings.items}
    mean, std = (np.concatenate(parts) for parts in zip(*factors.values(), strict=True))

    def lists(values: np.ndarray) -> Any:
        flat = pa.array(values.astype(np.float32).ravel())
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])

    table = pa.table(
        {
            "side": [side for side, known in ids.items() for _ in known],
            "id": [str(each) for known in ids.values() for each in known.tolist()],
            "bias": mean[:, -1].astype(np.float32),
            "bias_std": std[:, -1].astype(np.float32),
            "factors": lists(mean[:, :-1]),
            "factor_stds": lists(std[:, :-1]),
        }
    ).replace_schema_metadata({"center": str(scale[0]), "spread": str(scale[1])})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
