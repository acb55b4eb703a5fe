"""Rows of new users and items given the other side's: exact, one solve for each.

With x_j = (v_j, 1) for the items j that a user rated and r_j = y_j − b_j, a user's row w = (u, a)
is a Bayesian linear regression:

    w | τ ~ N(A⁻¹(τ Σ x_j r_j + Λμ), A⁻¹),  A = τ Σ x_j x_jᵀ + Λ

The user's own precision τ is not known either. With w integrated out, its log has the density

    ℓ(ln τ) = (3 + n/2) ln τ − τ(ρ + ½(|r − Xμ|² + n s²)) − ½ ln det(I + τS) + ½ τ² cᵀ(I + τS)⁻¹c

where S = Λ^−½ XᵀX Λ^−½, c = Λ^−½ Xᵀ(r − Xμ), and s is the resolution. [0 cᵀ; c S] in tridiagonal
form gives both terms for any τ by one recurrence; so τ is drawn from ℓ on a fine grid, then w given
τ. An item's raters have known precisions: its row needs no such draw.

New users and items of a fitted recommender, without a refit: their law given the other side.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.factor_gibbs import NOISE_SHAPE, take_rows
from sghmc.recommender.features import Sides
from sghmc.recommender.ratings import Ratings
from sghmc.types import PyTree

_NUM_CLIMBS = 20
"""Steps to the density's mode; each closes at least half of the way where it matters."""
_NUM_POINTS, _REACH = 65, 6.0
"""Of the grid, and how far it goes from the mode, in standard deviations there."""
_WIDEST = 1.0
"""The largest standard deviation that the grid is laid out for: a Gamma(3)'s is 0.63."""


class Blocks(NamedTuple):
    """Ratings of the rows that are asked for, in blocks of equal length; the rest is padding."""

    owner: jax.Array
    """(block,): the row that a block's ratings belong to."""
    other: jax.Array
    """(block, place): codes of the other side."""
    rating: jax.Array
    is_real: jax.Array
    """Float: 0 for padding."""


class Moments(NamedTuple):
    """What a row's ratings say of it, each rating weighted by its precision over τ."""

    gram: jax.Array  # Σ x xᵀ
    cross: jax.Array  # Σ x (r − xᵀμ)
    squares: jax.Array  # Σ (r − xᵀμ)²
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def moments(
    blocks: Blocks, num_rows: int, others: jax.Array, mean: jax.Array, weights: jax.Array
) -> Moments:
    """Of every row; `others` are rows of the other side, `weights` (block, place).

    `mean` is that of the prior: one for all rows, or one for each.
    """
    rows = take_rows(others, blocks.other)
    # (v, 1, r) of each rating: their products are all that is asked for.
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
    """Rows and precisions of users, from their law given the items' rows and the hyperparameters.

    `prior` has the "mean" (of all, or of each) and the "precision" of the users' columns,
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
    """Rows of items, from their law given the rows and the precisions of all users."""
    found = moments(blocks, num_items, users, prior["mean"], noise[blocks.other])
    return rows_given_noise(jax.random.normal(key, found.cross.shape), found, prior)


def rows_given_noise(normal: jax.Array, found: Moments, prior: PyTree) -> jax.Array:
    """μ + A⁻¹ Σ x (r − xᵀμ) + A^−½ z; the moments are weighted by precisions."""
    root = jnp.linalg.cholesky(found.gram + jnp.diag(prior["precision"])[None])
    half = jax.scipy.linalg.solve_triangular(root, found.cross[..., None], lower=True)
    half += normal[..., None]
    rows = jax.scipy.linalg.solve_triangular(root, half, lower=True, trans=1)
    return jnp.broadcast_to(prior["mean"], rows.shape[:-1]) + rows[..., 0]


class NoiseLaw(NamedTuple):
    """ℓ of the module's text, for many users at once."""

    shape: jax.Array  # 3 + n/2
    rate: jax.Array  # ρ + ½(|r − Xμ|² + n s²)
    diagonal: jax.Array  # (user, column): of S in tridiagonal form, c first
    beside: jax.Array  # (user, column): the squares next to it; the first is |c|²

    @classmethod
    def of(cls, found: Moments, precision: jax.Array, noise_rate: jax.Array) -> "NoiseLaw":
        """Of moments that are not weighted."""
        scale = precision**-0.5
        inner = found.gram * (scale[:, None] * scale[None, :])[None]
        edge = found.cross * scale[None]
        bordered = jnp.pad(inner, ((0, 0), (1, 0), (1, 0)))
        bordered = bordered.at[:, 1:, 0].set(edge).at[:, 0, 1:].set(edge)
        _, diagonal, beside, _ = jax.lax.linalg.tridiagonal(bordered, lower=True)
        shape, rate = NOISE_SHAPE + found.count / 2, noise_rate + found.squares / 2
        return cls(shape, rate, diagonal[:, 1:], beside**2)

    def log_density(self, log_noise: jax.Array) -> jax.Array:
        """Of ln τ, up to a constant; `log_noise` is (point, user).

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
        """Values of ln τ around the mode (point, user), and how far they are apart (user,)."""

        def slope(x):
            return jax.jvp(self.log_density, (x,), (jnp.ones_like(x),))[1]

        # The EM step: ℓ' = shape − τ(ρ + ½E|error|²), so that τ ← shape / (ρ + ½E|error|²).
        def climb(_, x):
            return x - jnp.log1p(-slope(x) / self.shape[None])

        start = jnp.log(self.shape / self.rate)[None]
        mode = jax.lax.fori_loop(0, _NUM_CLIMBS, climb, start)
        curvature = -jax.jvp(slope, (mode,), (jnp.ones_like(mode),))[1][0]
        spread = jnp.maximum(curvature, _WIDEST**-2) ** -0.5
        steps = jnp.linspace(-_REACH, _REACH, _NUM_POINTS)
        return mode + steps[:, None] * spread[None], 2 * _REACH * spread / (_NUM_POINTS - 1)

    def draw(self, uniforms: jax.Array) -> jax.Array:
        """τ of each user, of uniforms (3, user): from the density interpolated on its grid.

        A point of the grid by its density, and around it a triangle as wide as two gaps: linear
        interpolation as a mixture.
        """
        points, gap = self.grid()
        log_density = self.log_density(points)
        weight = jnp.exp(log_density - jnp.max(log_density, axis=0)[None])
        reached = jnp.cumsum(weight, axis=0)
        place = jnp.sum(reached < uniforms[0][None] * reached[-1][None], axis=0)
        chosen = jnp.take_along_axis(points, place[None], axis=0)[0]
        return jnp.exp(chosen + gap * (uniforms[1] + uniforms[2] - 1))


# New users and items of a fitted recommender, without a refit: their law given the other side.

_BLOCK = 64
"""Ratings in a block: somebody who rated much has many, and one program serves all."""


class Known(NamedTuple):
    """How many users and items the draws have rows for."""

    user: int
    item: int


class Newcomers(NamedTuple):
    """Whom to fold in: `users` are the codes of those who get a fresh row, new ones among them.

    `ratings` are all there are, in the model's units.
    """

    draws: dict[str, np.ndarray]
    ratings: Ratings
    known: Known
    users: np.ndarray
    sides: Sides

    def prior(self, side: str, codes: np.ndarray) -> PyTree:
        """Of rows with these codes, draw by draw; padded rows lie around 0."""
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

    blocks: Blocks
    num_rows: int
    """With padding."""
    others: np.ndarray
    """(draw, row, column)."""
    prior: PyTree


def user_task(new: Newcomers) -> Task:
    """Users, given all their ratings of known items."""
    ratings, place = new.ratings, _places(new.users, new.ratings.num_users)
    rows = np.flatnonzero((place[ratings.user] >= 0) & (ratings.item < new.known.item))
    blocks, length = _blocks(
        place[ratings.user[rows]], ratings.item[rows], ratings.rating[rows], len(new.users)
    )
    items = padded(new.draws["item"], padded_size(new.known.item, 8), axis=1)
    return Task(blocks, length, items, new.prior("user", new.users))


def item_task(new: Newcomers, users: dict[str, np.ndarray]) -> tuple[Task, dict[str, np.ndarray]]:
    """New items, given all who rated them; and those users' parts of other draws by user.

    `users` has draws by name with rows for all users.
    """
    ratings = new.ratings
    rows = np.flatnonzero(ratings.item >= new.known.item)
    raters, rater = np.unique(ratings.user[rows], return_inverse=True)
    codes = new.new_items
    blocks, length = _blocks(
        ratings.item[rows] - new.known.item, rater, ratings.rating[rows], len(codes)
    )
    size = padded_size(len(raters), 4)
    parts = {name: padded(part[:, raters], size, axis=1) for name, part in users.items()}
    return Task(blocks, length, parts.pop("user"), new.prior("item", codes)), parts


def on_processor(work: Callable[[], Any]) -> Any:
    """On the CPU, where there is one: the reduction to tridiagonal form has no batches on a GPU."""
    try:
        processor = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        processor = None
    with jax.default_device(processor):
        return work()


def with_rows(known: np.ndarray, codes: np.ndarray, fresh: Any, length: int) -> np.ndarray:
    """Draws (draw, row, …) up to `length` rows, those of `codes` fresh."""
    rows = padded(known, length, axis=1)
    rows[:, codes] = np.asarray(fresh)[:, : len(codes)]
    return rows


def _places(codes: np.ndarray, count: int) -> np.ndarray:
    """The place of each code among some, −1 where it is none of them."""
    places = np.full(count, -1)
    places[codes] = np.arange(len(codes))
    return places


def _blocks(
    owner: np.ndarray, other: np.ndarray, rating: np.ndarray, num_owners: int
) -> tuple[Blocks, int]:
    """Ratings sorted into blocks of their owners, and the number of owners with padding."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=num_owners)
    num_blocks = -(-counts // _BLOCK)
    starts, firsts = (np.cumsum(each) - each for each in (counts, num_blocks))
    sorted_owner = owner[order]
    within = np.arange(len(order)) - starts[sorted_owner]
    block, place = firsts[sorted_owner] + within // _BLOCK, within % _BLOCK
    size = padded_size(max(int(num_blocks.sum()), 1), 4)

    def filled(values: np.ndarray, kind: type) -> jax.Array:
        table = np.zeros((size, _BLOCK), kind)
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
