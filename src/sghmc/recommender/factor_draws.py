"""Posterior draws of factors and biases: means of pairs, the best items of all, and export."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import files, runtime
from sghmc.estimators.weighted_rows import padded, padded_size
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


# The best items of all users: blocked products of factors, one program for all.

By: TypeAlias = Literal["mean", "upper", "lower", "draw"]

_GROUP_SIZE = 128
"""Items in a group. The k best items are in the k groups with the best maxima."""


class UserBlock(NamedTuple):
    """Rows of some users under every draw, and the items that they have rated."""

    users: jax.Array  # (draw, user, column)
    seen: jax.Array  # (pair, 2): place in the block, item; items past the last one are padding


class Top(NamedTuple):
    """Best items of each user, best first, with means and variances of their ratings, and scores.

    If no item is left, the score is −∞.
    """

    item: jax.Array  # (user, k)
    mean: jax.Array
    variance: jax.Array
    score: jax.Array


@functools.partial(jax.jit, static_argnames=("k", "by"))
def top_items(
    block: UserBlock, items: jax.Array, draw: jax.Array, width: jax.Array, *, k: int, by: By
) -> Top:
    """Return the `k` items with the highest score that a user has not rated.

    | by | score |
    | --- | --- |
    | "mean" | the mean over draws |
    | "upper", "lower" | `width` standard deviations over draws above it, or below |
    | "draw" | the mean under one draw, number `draw` |

    A first pass over all items, in bfloat16 on an accelerator for "mean", finds somewhat more than
    twice as many as needed; these are then scored exactly.
    """
    if by == "mean":
        score = _rough_means(block.users, items)
    elif by == "draw":
        score = _ratings(block.users[draw], items[draw])
    else:
        mean, variance = _moments(_ratings, block.users, items)
        score = _bound(mean, variance, width, by)
    places, seen = block.seen.T
    score = score.at[places, seen].set(-jnp.inf, mode="drop")
    rough, candidates = _top(score, min(2 * k + 8, items.shape[1]))

    def of_candidates(user: jax.Array, item: jax.Array) -> jax.Array:
        rows = item[candidates]
        product = jnp.einsum("bk,bck->bc", user[:, :-1], rows[..., :-1])
        return product + user[:, -1:] + rows[..., -1]

    mean, variance = _moments(of_candidates, block.users, items)
    exact = {"draw": rough, "mean": mean}.get(by, _bound(mean, variance, width, by))
    exact = jnp.where(jnp.isfinite(rough), exact, -jnp.inf)
    best, order = jax.lax.top_k(exact, min(k, items.shape[1]))

    def ordered(part: jax.Array) -> jax.Array:
        return jnp.take_along_axis(part, order, axis=1)

    return Top(ordered(candidates), ordered(mean), ordered(variance), best)


def _bound(mean: jax.Array, variance: jax.Array, width: jax.Array, by: By) -> jax.Array:
    return mean + (width if by == "upper" else -width) * jnp.sqrt(variance)


def _ratings(users: jax.Array, items: jax.Array) -> jax.Array:
    """Return the means of all pairs (user, item) under one draw."""
    return users[:, :-1] @ items[:, :-1].T + users[:, -1:] + items[:, -1][None]


def _rough_means(users: jax.Array, items: jax.Array) -> jax.Array:
    """Average over draws by one product, (user, draw · column) by (draw · column, item)."""
    kind = jnp.bfloat16 if runtime.has_accelerator() else users.dtype
    product = jnp.einsum(
        "dbk,dik->bi",
        users[..., :-1].astype(kind),
        items[..., :-1].astype(kind),
        preferred_element_type=users.dtype,
    )
    biases = jnp.mean(users[..., -1], axis=0)[:, None] + jnp.mean(items[..., -1], axis=0)[None]
    return product / len(users) + biases


def _moments(
    ratings: Callable[[jax.Array, jax.Array], jax.Array], users: jax.Array, items: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over draws of ratings given the rows of users and items."""
    # Relative to the first draw: squares of small differences do not cancel.
    first = ratings(users[0], items[0])

    def add(sums, draw):
        difference = ratings(*draw) - first
        return (sums[0] + difference, sums[1] + difference**2), None

    start = (jnp.zeros_like(first), jnp.zeros_like(first))
    (total, squares), _ = jax.lax.scan(add, start, (users, items))
    count = len(users)
    mean = total / count
    variance = jnp.maximum(squares / count - mean**2, 0.0) * count / max(count - 1, 1)
    return first + mean, variance


def _top(score: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Return the k largest values of each row, exactly, and their places."""
    num_rows, length = score.shape
    num_groups = -(-length // _GROUP_SIZE)
    if num_groups <= k:
        values, places = jax.lax.top_k(score, k)
        return values, places
    padding = ((0, 0), (0, num_groups * _GROUP_SIZE - length))
    grouped = jnp.pad(score, padding, constant_values=-jnp.inf)
    grouped = grouped.reshape(num_rows, num_groups, _GROUP_SIZE)
    _, groups = jax.lax.top_k(jnp.max(grouped, axis=2), k)
    inside = jnp.take_along_axis(grouped, groups[..., None], axis=1).reshape(num_rows, -1)
    best, place = jax.lax.top_k(inside, k)
    group = jnp.take_along_axis(groups, place // _GROUP_SIZE, axis=1)
    # If no item is left, padding may be chosen: its code must still be an item's.
    return best, jnp.minimum(group * _GROUP_SIZE + place % _GROUP_SIZE, length - 1)


_MAX_BLOCK_PAIRS, _MAX_BLOCK_USERS = 1 << 25, 1024
"""Most pairs of users and items, and users, in a block: 128 MiB of scores."""


class Best(NamedTuple):
    """Recommendations in codes and the model's units: user after user, best first."""

    user: np.ndarray
    item: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """Place of each recommendation among its user's, from 1."""
        count = np.bincount(self.user)
        return np.arange(len(self.user)) - np.repeat(np.cumsum(count) - count, count) + 1


def best_items(
    draws: dict[str, np.ndarray],
    ratings: Ratings,
    k: int,
    exclude_seen: bool,
    by: By,
    width: float,
    generator: np.random.Generator,
) -> Best:
    """Return the k best items of every user, or all that are left.

    With "draw" each user's order is that of a random draw. The variance is that of the posterior,
    without the noise of ratings.
    """
    from scipy import sparse

    users, items = draws["user"], jnp.asarray(draws["item"])
    seen_ratings = ratings if exclude_seen else ratings.take(np.arange(0))
    entries = (np.ones(len(seen_ratings), bool), (seen_ratings.user, seen_ratings.item))
    is_seen = sparse.csr_array(entries, (ratings.num_users, ratings.num_items))
    size = min(_MAX_BLOCK_USERS, max(8, _MAX_BLOCK_PAIRS // ratings.num_items))
    batches = list(_batches(ratings.num_users, len(users), size, by, generator))
    # All blocks have the shape of the largest: one program.
    length = padded_size(max(len(codes) for codes, _ in batches), 1)
    num_pairs = padded_size(max(is_seen[codes].nnz for codes, _ in batches), 1)
    found: list[Best] = []
    pending: tuple[np.ndarray, Top] | None = None
    for codes, draw in batches:
        seen = np.stack(is_seen[codes].nonzero(), axis=1)
        pairs = np.full((num_pairs, 2), ratings.num_items, np.int32)
        pairs[: len(seen)] = seen
        rows = padded(users[:, codes], length, axis=1)
        block = UserBlock(jnp.asarray(rows), jnp.asarray(pairs))
        top = top_items(block, items, jnp.asarray(draw), jnp.asarray(width), k=k, by=by)
        # Fetched only now: the device worked on it while the host prepared this one.
        found += [] if pending is None else [_fetched(*pending)]
        pending = codes, top
    assert pending is not None
    found.append(_fetched(*pending))
    whole = Best(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    order = np.argsort(whole.user, kind="stable")
    return Best(*(part[order] for part in whole))


def _fetched(codes: np.ndarray, top: Top) -> Best:
    """Fetch the recommendations of a block, without padding and items that are not left."""
    item, mean, variance, score = (part[: len(codes)] for part in jax.device_get(top))
    is_left = np.isfinite(score)
    owner = np.broadcast_to(codes[:, None], item.shape)
    return Best(*(part[is_left] for part in (owner, item, mean, variance)))


def _batches(
    num_users: int, num_draws: int, size: int, by: By, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield codes of users in blocks, and the number of the draw that orders their items."""
    if by != "draw":
        for first in range(0, num_users, size):
            yield np.arange(first, min(first + size, num_users)), 0
        return
    draw = generator.integers(num_draws, size=num_users)
    for each in range(num_draws):
        mine = np.flatnonzero(draw == each)
        for first in range(0, len(mine), size):
            yield mine[first : first + size], each


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
