"""Draw the rows of new users and items given the other side's: exactly, one solve for each.

With x_j = (v_j, 1) for the items j that a user rated and r_j = y_j − b_j, a user's row w = (u, a)
is a Bayesian linear regression:

    w | τ ~ N(A⁻¹(τ Σ x_j r_j + Λμ), A⁻¹),  A = τ Σ x_j x_jᵀ + Λ

The user's own precision τ is not known either. With w integrated out, its log has the density

    ℓ(ln τ) = (3 + n/2) ln τ − τ(ρ + ½(|r − Xμ|² + n s²)) − ½ ln det(I + τS) + ½ τ² cᵀ(I + τS)⁻¹c

where S = Λ^−½ XᵀX Λ^−½, c = Λ^−½ Xᵀ(r − Xμ), and s is the resolution. [0 cᵀ; c S] in tridiagonal
form gives both terms for any τ by one recurrence; so τ is drawn from ℓ on a fine grid, then w given
τ. An item's raters have known precisions: its row needs no such draw.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.factor_gibbs import NOISE_SHAPE, take_rows
from sghmc.recommender.ratings import Ratings, Sizes
from sghmc.recommender.side_information import Sides
from sghmc.types import PyTree

_NUM_CLIMBS = 20
"""Steps to the density's mode; each at least halves a distance that matters."""
_NUM_GRID_POINTS, _GRID_REACH = 65, 6.0
"""Points of the grid, and its reach from the mode, in standard deviations there."""
_MAX_LOG_NOISE_STD = 1.0
"""Largest standard deviation that the grid allows for; that of the log of a Gamma(3) is 0.63."""


class Blocks(NamedTuple):
    """Ratings of the rows to draw, in blocks of equal length; the rest is padding."""

    owner: jax.Array
    """Number of the row that a block's ratings belong to: (block,)."""
    other: jax.Array
    """Codes of the other side: (block, place)."""
    rating: jax.Array
    is_real: jax.Array
    """Weight of each place: 1.0 for a rating, 0.0 for padding."""


class Moments(NamedTuple):
    """Moments of each row's ratings, each weighted by its precision over τ."""

    gram: jax.Array  # Σ x xᵀ
    cross: jax.Array  # Σ x (r − xᵀμ)
    squares: jax.Array  # Σ (r − xᵀμ)²
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def moments(
    blocks: Blocks, num_rows: int, others: jax.Array, mean: jax.Array, weights: jax.Array
) -> Moments:
    """Sum up the ratings of each row, given the rows of the other side, `others`.

    `mean` is that of the prior, one for all rows or one for each; `weights` are (block, place).
    """
    rows = take_rows(others, blocks.other)
    # With (v, 1, r) of each rating, one product gives all moments.
    ends = jnp.stack([jnp.ones_like(blocks.rating), blocks.rating - rows[..., -1]], axis=-1)
    scale = blocks.is_real * jnp.sqrt(weights)
    parts = jnp.concatenate([rows[..., :-1], ends], axis=-1) * scale[..., None]
    products = jnp.einsum("bni,bnj->bij", parts, parts)
    products, count = (
        jax.ops.segment_sum(each, blocks.owner, num_rows)
        for each in (products, jnp.sum(blocks.is_real, axis=1))
    )
    gram, cross = products[:, :-1, :-1], products[:, :-1, -1]
    mean = jnp.broadcast_to(mean, cross.shape)
    moved = jnp.einsum("nij,nj->ni", gram, mean)
    squares = products[:, -1, -1] - jnp.sum((2 * cross - moved) * mean, axis=1)
    return Moments(gram, cross - moved, squares, count)


def draw_users(
    key: jax.Array,
    blocks: Blocks,
    num_users: int,
    items: jax.Array,
    prior: PyTree,
    noise_rate: jax.Array,
    resolution: float,
) -> tuple[jax.Array, jax.Array]:
    """Draw rows and noise precisions of users given the items' rows and the hyperparameters.

    `prior` has the "mean" (of all, or of each) and the "precision" of the users' columns;
    `noise_rate` is ρ.
    """
    of_noise, of_rows = jax.random.split(key)
    found = moments(blocks, num_users, items, prior["mean"], jnp.ones_like(blocks.rating))
    squares = found.squares + resolution**2 * found.count
    law = NoiseLaw.of(found._replace(squares=squares), prior["precision"], noise_rate)
    noise = law.draw(jax.random.uniform(of_noise, (3, num_users)))
    scaled = found._replace(
        gram=noise[:, None, None] * found.gram, cross=noise[:, None] * found.cross
    )
    normal = jax.random.normal(of_rows, found.cross.shape)
    return rows_given_noise(normal, scaled, prior), noise


def draw_items(
    key: jax.Array,
    blocks: Blocks,
    num_items: int,
    users: jax.Array,
    noise: jax.Array,
    prior: PyTree,
) -> jax.Array:
    """Draw rows of items given the rows and the noise precisions of all users."""
    found = moments(blocks, num_items, users, prior["mean"], noise[blocks.other])
    return rows_given_noise(jax.random.normal(key, found.cross.shape), found, prior)


def rows_given_noise(normal: jax.Array, found: Moments, prior: PyTree) -> jax.Array:
    """Return μ + A⁻¹ Σ x (r − xᵀμ) + A^−½ z; the moments are weighted by precisions."""
    root = jnp.linalg.cholesky(found.gram + jnp.diag(prior["precision"])[None])
    half = jax.scipy.linalg.solve_triangular(root, found.cross[..., None], lower=True)
    half += normal[..., None]
    rows = jax.scipy.linalg.solve_triangular(root, half, lower=True, trans=1)
    return jnp.broadcast_to(prior["mean"], rows.shape[:-1]) + rows[..., 0]


class NoiseLaw(NamedTuple):
    """Density ℓ of ln τ in the docstring of this module, for many users at once."""

    shape: jax.Array  # 3 + n/2
    rate: jax.Array  # ρ + ½(|r − Xμ|² + n s²)
    diagonal: jax.Array  # (user, column): of S in tridiagonal form, c first
    beside: jax.Array  # (user, column): the squares next to it; the first is |c|²

    @classmethod
    def of(cls, found: Moments, precision: jax.Array, noise_rate: jax.Array) -> "NoiseLaw":
        """Return the density given unweighted moments."""
        scale = precision**-0.5
        inner = found.gram * (scale[:, None] * scale[None, :])[None]
        edge = found.cross * scale[None]
        bordered = jnp.pad(inner, ((0, 0), (1, 0), (1, 0)))
        bordered = bordered.at[:, 1:, 0].set(edge).at[:, 0, 1:].set(edge)
        _, diagonal, beside, _ = jax.lax.linalg.tridiagonal(bordered, lower=True)
        shape, rate = NOISE_SHAPE + found.count / 2, noise_rate + found.squares / 2
        return cls(shape, rate, diagonal[:, 1:], beside**2)

    def log_density(self, log_noise: jax.Array) -> jax.Array:
        """Return ℓ(ln τ), up to a constant; `log_noise` is (point, user).

        Pivots of I + τT from the last to the first: p_j = 1 + τ T_jj − τ² T_{j,j+1}² / p_{j+1}.
        """
        noise = jnp.exp(log_noise)

        def pivot(carry, column):
            log_det, below = carry
            diagonal, beside = column
            value = 1 + noise * diagonal[None] - below
            return (log_det + jnp.log(value), noise**2 * beside[None] / value), None

        start = (jnp.zeros_like(noise), jnp.zeros_like(noise))
        columns = (self.diagonal.T, self.beside.T)
        (log_det, explained), _ = jax.lax.scan(pivot, start, columns, reverse=True)
        return (
            self.shape[None] * log_noise - noise * self.rate[None] - 0.5 * log_det + 0.5 * explained
        )

    def grid(self) -> tuple[jax.Array, jax.Array]:
        """Return values of ln τ around the mode (point, user), and their distances (user,)."""

        def slope(x):
            return jax.jvp(self.log_density, (x,), (jnp.ones_like(x),))[1]

        # The EM step: ℓ' = shape − τ(ρ + ½E|error|²), so that τ ← shape / (ρ + ½E|error|²).
        def climb(_, x):
            return x - jnp.log1p(-slope(x) / self.shape[None])

        start = jnp.log(self.shape / self.rate)[None]
        mode = jax.lax.fori_loop(0, _NUM_CLIMBS, climb, start)
        curvature = -jax.jvp(slope, (mode,), (jnp.ones_like(mode),))[1][0]
        std = jnp.maximum(curvature, _MAX_LOG_NOISE_STD**-2) ** -0.5
        steps = jnp.linspace(-_GRID_REACH, _GRID_REACH, _NUM_GRID_POINTS)
        return mode + steps[:, None] * std[None], 2 * _GRID_REACH * std / (_NUM_GRID_POINTS - 1)

    def draw(self, uniforms: jax.Array) -> jax.Array:
        """Draw τ of each user with uniforms (3, user), from the density interpolated on its grid.

        A point of the grid is drawn by its density, then a number from a triangle around it as wide
        as two gaps: that is linear interpolation, as a mixture.
        """
        points, gap = self.grid()
        log_density = self.log_density(points)
        weight = jnp.exp(log_density - jnp.max(log_density, axis=0)[None])
        reached = jnp.cumsum(weight, axis=0)
        place = jnp.sum(reached < uniforms[0][None] * reached[-1][None], axis=0)
        chosen = jnp.take_along_axis(points, place[None], axis=0)[0]
        return jnp.exp(chosen + gap * (uniforms[1] + uniforms[2] - 1))


# New users and items of a fitted recommender, without a new fit.

_BLOCK_SIZE = 64
"""Ratings in a block. A row has as many blocks as it needs, so that one program serves all."""


class Newcomers(NamedTuple):
    """Users and items to fold in: `users` are the codes that get a fresh row, new ones among them.

    `ratings` are all ratings, in the model's units; `known` counts the rows that draws have.
    """

    draws: dict[str, np.ndarray]
    ratings: Ratings
    known: Sizes
    users: np.ndarray
    sides: Sides

    def prior(self, side: str, codes: np.ndarray) -> PyTree:
        """Return the prior of the rows with these codes under each draw; padding has mean 0."""
        precision = self.draws[f"{side}.precision"].astype(np.float32)
        if side in self.sides:
            centers = self.sides[side].centers(self.draws, side, codes).astype(np.float32)
            mean = padded(centers, padded_size(len(codes), 4), axis=1)
        else:
            mean = self.draws[f"{side}.mean"].astype(np.float32)
        return {"mean": mean, "precision": precision}

    @property
    def new_items(self) -> np.ndarray:
        return np.arange(self.known.item, self.ratings.num_items)


class Task(NamedTuple):
    """Rows to draw: their ratings in blocks, the other side's rows, and their prior."""

    num_rows: int
    """Number of rows, padding included."""
    blocks: Blocks
    others: np.ndarray
    """Rows of the other side: (draw, row, column)."""
    prior: PyTree


def folded_in(
    key: jax.Array, new: Newcomers, draw_users: Callable[..., Any], draw_items: Callable[..., Any]
) -> dict[str, np.ndarray]:
    """Return draws by name with fresh rows of `new.users` and of all new items.

    Users are drawn given their ratings of known items, `draw_users(key, *task, noise_rate)` →
    rows, noise precisions. New items are then drawn given all their ratings,
    `draw_items(key, *task, noise)` → rows.
    """
    of_users, of_items = jax.random.split(key)
    draws, num_users = new.draws, new.ratings.num_users
    # On the CPU if possible: the tridiagonal form has no batches on a GPU.
    try:
        processor = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        processor = None
    with jax.default_device(processor):
        rate = draws["noise_rate"].astype(np.float32)
        fresh, noise = draw_users(of_users, *_user_task(new), rate)
        found = {
            "user": with_rows(draws["user"], new.users, fresh, num_users),
            "noise": with_rows(draws["noise"], new.users, noise, num_users),
        }
        if len(new.new_items):
            task, noise = _item_task(new, found)
            fresh = draw_items(of_items, *task, noise)
            found["item"] = with_rows(draws["item"], new.new_items, fresh, new.ratings.num_items)
    return {**draws, **found}


def _user_task(new: Newcomers) -> Task:
    """Describe the rows of users, given all their ratings of known items."""
    ratings = new.ratings
    place = np.full(ratings.num_users, -1)
    place[new.users] = np.arange(len(new.users))
    rows = np.flatnonzero((place[ratings.user] >= 0) & (ratings.item < new.known.item))
    blocks, length = _blocks(
        place[ratings.user[rows]], ratings.item[rows], ratings.rating[rows], len(new.users)
    )
    items = padded(new.draws["item"], padded_size(new.known.item, 8), axis=1)
    return Task(length, blocks, items, new.prior("user", new.users))


def _item_task(new: Newcomers, found: dict[str, np.ndarray]) -> tuple[Task, np.ndarray]:
    """Describe the rows of new items given all who rated them, and those users' precisions.

    `found` has the draws of the rows and of the noise precisions of all users.
    """
    ratings = new.ratings
    rows = np.flatnonzero(ratings.item >= new.known.item)
    raters, rater = np.unique(ratings.user[rows], return_inverse=True)
    codes = new.new_items
    blocks, length = _blocks(
        ratings.item[rows] - new.known.item, rater, ratings.rating[rows], len(codes)
    )
    size = padded_size(len(raters), 4)
    users, noise = (padded(found[name][:, raters], size, axis=1) for name in ("user", "noise"))
    # A padded user has no ratings, but a precision of 0 would lead to a division by 0.
    noise = np.maximum(noise, np.finfo(np.float32).tiny).astype(np.float32)
    return Task(length, blocks, users, new.prior("item", codes)), noise


def with_rows(known: np.ndarray, codes: np.ndarray, fresh: Any, length: int) -> np.ndarray:
    """Extend draws (draw, row, …) to `length` rows, and replace those of `codes` by fresh ones."""
    rows = padded(known, length, axis=1)
    rows[:, codes] = np.asarray(fresh)[:, : len(codes)]
    return rows


def _blocks(
    owner: np.ndarray, other: np.ndarray, rating: np.ndarray, num_owners: int
) -> tuple[Blocks, int]:
    """Sort ratings into blocks of one owner, and return the padded number of owners, too."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=num_owners)
    num_blocks = -(-counts // _BLOCK_SIZE)
    starts, firsts = (np.cumsum(each) - each for each in (counts, num_blocks))
    sorted_owner = owner[order]
    within = np.arange(len(order)) - starts[sorted_owner]
    block, place = firsts[sorted_owner] + within // _BLOCK_SIZE, within % _BLOCK_SIZE
    size = padded_size(max(int(num_blocks.sum()), 1), 4)

    def filled(values: np.ndarray, kind: type) -> jax.Array:
        table = np.zeros((size, _BLOCK_SIZE), kind)
        table[block, place] = values
        return jnp.asarray(table)

    owners = np.repeat(np.arange(num_owners, dtype=np.int32), num_blocks)
    blocks = Blocks(
        jnp.asarray(padded(owners, size)),
        filled(other[order], np.int32),
        filled(rating[order], np.float32),
        filled(np.ones(len(order)), np.float32),
    )
    return blocks, padded_size(num_owners, 4)
