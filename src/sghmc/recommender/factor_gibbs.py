"""Gibbs updates of a matrix factorization: priors of rows, weights of features, and noise.

Every precision λ has a gamma prior, and some centered normal numbers x:

    λ ~ Gamma(a, b),  x_i ~ N(0, 1/λ)   ⇒   λ | x ~ Gamma(a + n/2, b + Σx²/2)

`Evidence` holds n, Σx², a and b. With side information a row's mean is linear in its features:

    w_ik ~ N(μ_k + Σ_f F_if B_fk, 1/λ_k),  B_fk ~ N(0, 1/(λ_k γ_gk)),  γ ~ Gamma(1, 1)

with one γ for the factors and one for the bias of each group g of features: an age's, say, or all
genres'. (Macau, Simm et al. 2017, with groups.) Means and weights (μ, B) are drawn together given
the rows: with X = (1 F) the regression of each column k has the precision λ_k(XᵀX + D), and

    (XᵀX + D) x = Xᵀ(w + λ^−½ z) + D^½ λ^−½ z',   z, z' standard normal,

has its exact law. F is sparse, and the system is solved by conjugate gradients, whose cost grows
with the entries of F, not with the number of categories.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import random
from sghmc.core.checks import take_rows
from sghmc.posterior.gibbs import draw_precision
from sghmc.posterior.posterior import Posterior
from sghmc.types import PyTree

_RESIDUAL_TOLERANCE, _MAX_ITERATIONS = 1e-5, 1000
"""Largest residual, relative to the right-hand side in units of the diagonal: float32's limit."""


class Features(NamedTuple):
    """Sparse matrix with a row for each user or item, entry by entry in any order.

    Entries of value 0 are padding. Columns are features; those of a group share their γ.
    """

    row: Any
    column: Any
    value: Any
    group: Any
    """Number of each feature's group: (column,)."""
    group_size: Any
    """Number of features in each group: (group,)."""

    def times(self, weights: jax.Array, num_rows: int) -> jax.Array:
        """Return F B, for B of (feature, column)."""
        terms = self.value[:, None] * take_rows(weights, self.column)
        return jax.ops.segment_sum(terms, self.row, num_rows)

    def transposed_times(self, rows: jax.Array) -> jax.Array:
        """Return Fᵀ W, for W of (row, column)."""
        terms = self.value[:, None] * take_rows(rows, self.row)
        return jax.ops.segment_sum(terms, self.column, len(self.group))

    def squares(self) -> jax.Array:
        """Return the sums of squared entries, which precondition the solver like a diagonal."""
        return jax.ops.segment_sum(self.value**2, self.column, len(self.group))

    def start(self, num_rows: int, width: int) -> PyTree:
        """Return the starting hyperparameters: weights and centers of 0, scales of 1."""
        return {
            "weights": jnp.zeros((len(self.group), width)),
            "weight_scale": jnp.ones((len(self.group_size), 2)),
            "center": jnp.zeros((num_rows, width)),
        }

    def relative_precision(self, scale: jax.Array, width: int) -> jax.Array:
        """Return γ of every weight (feature, column), given γ of (group, factors or bias)."""
        return take_rows(scale, self.group)[:, _kinds(width)]

    def scale_shape(self, width: int) -> jax.Array:
        """Number of weights that share each γ: (group, factors or bias)."""
        return self.group_size[:, None] * np.bincount(_kinds(width))[None].astype(np.float32)

    def scale_squares(self, weights: jax.Array, precision: jax.Array) -> jax.Array:
        """Return Σ λ B² over the weights that share each γ."""
        totals = jax.ops.segment_sum(precision[None] * weights**2, self.group, len(self.group_size))
        return jnp.stack([jnp.sum(totals[:, :-1], axis=1), totals[:, -1]], axis=1)

    def draw(
        self,
        normals: jax.Array,
        rows: jax.Array,
        precision: jax.Array,
        scale: jax.Array,
        has_mean: np.ndarray,
    ) -> PyTree:
        """Draw means, weights and the rows' centers given the rows, λ and γ.

        `normals` are (rows + 1 + features, column). A column without a mean has the mean 0.
        """
        num_rows, width = rows.shape
        is_free = jnp.asarray(has_mean, rows.dtype)[None]
        relative = self.relative_precision(scale, width)

        def center(x):
            return is_free * x[:1] + self.times(x[1:], num_rows)

        def transposed(rows):
            return jnp.concatenate(
                [is_free * jnp.sum(rows, axis=0)[None], self.transposed_times(rows)]
            )

        diagonal = jnp.concatenate([jnp.ones_like(is_free), relative])
        noise = normals * precision[None] ** -0.5
        of_rows, of_weights = noise[:num_rows], noise[num_rows:]
        right = transposed(rows + of_rows) + jnp.sqrt(diagonal) * of_weights
        right = right.at[:1].multiply(is_free)
        whole = jnp.concatenate([num_rows * is_free, self.squares()[:, None] + 0 * relative])
        x = solve(lambda x: transposed(center(x)) + diagonal * x, right, whole + diagonal)
        return {"mean": x[0], "weights": x[1:], "center": center(x)}


def solve(multiply, right: jax.Array, diagonal: jax.Array) -> jax.Array:
    """Solve multiply(x) = right column by column, by conjugate gradients scaled by the diagonal."""

    def one(state):
        i, x, residual, direction, size = state
        image = multiply(direction)
        # Both are 0 in a column that is solved exactly.
        length = size / jnp.maximum(jnp.sum(direction * image, axis=0), _TINY)
        x, residual = x + length[None] * direction, residual - length[None] * image
        scaled = residual / diagonal
        now = jnp.sum(residual * scaled, axis=0)
        direction = scaled + (now / jnp.maximum(size, _TINY))[None] * direction
        return i + 1, x, residual, direction, now

    first = right / diagonal
    size = jnp.sum(right * first, axis=0)

    def is_open(state):
        return (state[0] < _MAX_ITERATIONS) & jnp.any(state[-1] > _RESIDUAL_TOLERANCE**2 * size)

    start = (jnp.int32(0), jnp.zeros_like(right), right, first, size)
    return jax.lax.while_loop(is_open, one, start)[1]


_TINY = np.finfo(np.float32).tiny


def _kinds(width: int) -> np.ndarray:
    """Return the kind of each column: 0 for a factor, 1 for the bias, which is the last."""
    return (np.arange(width) == width - 1).astype(np.int64)


# Priors of rows, and noise.

SIDES = ("user", "item")

NOISE_SHAPE = 3.0
"""Shape of the gamma law of users' noise precisions: their standard deviation is mean/√3."""

_MEANS_SLOT = 1 << 31
"""First slot of the variates of means; precisions never use so many. A second key would be
compiled, too."""


class Evidence(NamedTuple):
    """Count n and Σx² of the numbers with each precision, and shape a and rate b of its prior."""

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    squares: jax.Array
    shape: jax.Array
    rate: jax.Array

    @classmethod
    def of(cls, count: jax.Array, squares: jax.Array | None = None) -> "Evidence":
        """Evidence with the prior Gamma(1, 1); squares of None are 0."""
        one = jnp.ones_like(count)
        return cls(count, jnp.zeros_like(count) if squares is None else squares, one, one)


class ColumnPrior(NamedTuple):
    """Prior of the columns of a side: its factors, then its bias.

    x_ik ~ N(μ_k, 1/λ_k),  λ_k ~ Gamma(1, 1),  μ_k | λ_k ~ N(0, 1/λ_k) or μ_k = 0
    """

    groups: np.ndarray
    """Number of each column's precision."""
    has_mean: np.ndarray
    """Whether a column has a mean of its own."""

    @classmethod
    def shared(cls, rank: int) -> "ColumnPrior":
        """Share one precision among all factors, with another for the bias; no means."""
        return cls(np.append(np.zeros(rank, np.int32), 1), np.zeros(rank + 1, bool))

    @classmethod
    def by_dimension(cls, rank: int) -> "ColumnPrior":
        """Give every column a precision, and every factor a mean."""
        return cls(np.arange(rank + 1), np.arange(rank + 1) < rank)

    def evidence(
        self, rows: jax.Array, num_weights: int = 0, weight_squares: jax.Array | float = 0.0
    ) -> Evidence:
        """Return the evidence about the precisions, given rows less the part that features explain.

        A mean is integrated out, which leaves Σ(x − x̄)² + n x̄²/(n + 1). Weights of features have
        the precision, too: their number, and Σγ B².
        """
        count, average = len(rows), jnp.mean(rows, axis=0)
        share = np.where(self.has_mean, count / (count + 1), count).astype(np.float32)
        squares = jnp.sum((rows - average[None]) ** 2, axis=0) + share * average**2
        count, squares = count + num_weights, squares + weight_squares
        counts = jnp.asarray(count * np.bincount(self.groups), jnp.float32)
        totals = jnp.zeros_like(counts).at[self.groups].add(squares)
        return Evidence.of(counts, totals)

    def with_means(self, normal: jax.Array, rows: jax.Array, drawn: jax.Array) -> PyTree:
        """Return each column's precision and mean: μ | λ ~ N(n x̄/(n + 1), 1/(λ(n + 1)))."""
        precision = drawn[self.groups]
        count, average = len(rows), jnp.mean(rows, axis=0)
        mean = count / (count + 1) * average + normal / jnp.sqrt(precision * (count + 1))
        return {"mean": jnp.where(self.has_mean, mean, 0.0), "precision": precision}


class SidePrior(NamedTuple):
    """Prior of a side's rows: of its columns and, if there are any, of its features' weights."""

    columns: ColumnPrior
    features: Features | None

    def evidence(self, rows: jax.Array, hyper: PyTree) -> list[Evidence]:
        """Return the evidence about the columns' precisions, and with features about the scales γ.

        That about γ is without squares, which depend on the precisions drawn first.
        """
        if self.features is None:
            return [self.columns.evidence(rows)]
        width, weights = rows.shape[1], hyper["weights"]
        relative = self.features.relative_precision(hyper["weight_scale"], width)
        squares = jnp.sum(relative * weights**2, axis=0)
        unexplained = rows - hyper["center"] + hyper["mean"][None]
        of_scales = Evidence.of(self.features.scale_shape(width).ravel())
        return [self.columns.evidence(unexplained, len(weights), squares), of_scales]

    def fresh(
        self,
        key: jax.Array,
        normal: jax.Array,
        rows: jax.Array,
        hyper: PyTree,
        drawn: list[jax.Array],
    ) -> PyTree:
        """Draw precisions and means; with features then γ given λ, and (μ, B) given both."""
        if self.features is None:
            return self.columns.with_means(normal, rows, *drawn)
        precision = drawn[0][self.columns.groups]
        squares = self.features.scale_squares(hyper["weights"], precision)
        scale = drawn[1].reshape(squares.shape) / (1 + squares / 2)
        num_rows, width = rows.shape
        count = num_rows + 1 + len(hyper["weights"])
        normals = random.normals(random.words(key), 0, 1, count * width).reshape(count, width)
        found = self.features.draw(normals, rows, precision, scale, self.columns.has_mean)
        return {"precision": precision, "weight_scale": scale, **found}


class SharedNoise(NamedTuple):
    """All ratings have one precision: τ ~ Gamma(1, 1)."""

    def start(self) -> PyTree:
        return {"noise": 1.0}

    def of_users(self, hyper: PyTree, users: jax.Array) -> jax.Array:
        """Return the precision of ratings by these users."""
        return hyper["noise"]

    def evidence(self, squares: Callable[[PyTree], jax.Array], posterior: Posterior) -> Evidence:
        """Return the evidence about τ; `squares` gives the squared errors of some rows."""
        total = posterior.sum_over_data(squares)
        count = jnp.asarray(posterior.num_examples, jnp.float32)
        return Evidence.of(count[None], total[None])

    def fresh(self, drawn: jax.Array) -> PyTree:
        return {"noise": drawn[0]}

    def average(self, hyper: PyTree, num_ratings: jax.Array) -> jax.Array:
        """Return the mean precision of all ratings, given how many each user has."""
        return hyper["noise"]


class UserNoise(NamedTuple):
    """Each user's ratings have their own precision: τ_i ~ Gamma(3, ρ), ρ ~ Gamma(1, 1)."""

    num_users: int

    def start(self) -> PyTree:
        return {"noise": jnp.ones(self.num_users), "noise_rate": jnp.array(NOISE_SHAPE)}

    def of_users(self, hyper: PyTree, users: jax.Array) -> jax.Array:
        return take_rows(hyper["noise"], users)

    def evidence(self, squares: Callable[[PyTree], jax.Array], posterior: Posterior) -> Evidence:
        """Return the evidence about each τ_i, and last about ρ: Gamma(1 + 3 · users, 1)."""

        def weighted(weights):
            def of_rows(rows):
                error = squares(rows)
                terms = jnp.stack([jnp.ones_like(error), error], axis=-1)
                return jnp.sum(take_rows(weights, rows["user"]) * terms, axis=-1)

            return posterior.sum_over_data(of_rows)

        # The derivative of a weighted sum by a user's weights is the sum over that user's ratings.
        count, total = jax.grad(weighted)(jnp.zeros((self.num_users, 2))).T
        rate = jnp.broadcast_to(posterior.hyper["noise_rate"], count.shape)
        return Evidence(
            jnp.append(count, 2 * NOISE_SHAPE * self.num_users),
            jnp.append(total, 0.0),
            jnp.append(jnp.full_like(count, NOISE_SHAPE), 1.0),
            jnp.append(rate, 1.0),
        )

    def fresh(self, drawn: jax.Array) -> PyTree:
        """Return all τ_i, and ρ given them: Gamma(1 + 3 · users, 1 + Σ τ_i)."""
        noise, unscaled = drawn[:-1], drawn[-1]
        return {"noise": noise, "noise_rate": unscaled / (1 + jnp.sum(noise))}

    def average(self, hyper: PyTree, num_ratings: jax.Array) -> jax.Array:
        return jnp.average(hyper["noise"], weights=num_ratings)


Noise: TypeAlias = SharedNoise | UserNoise


def update(
    key: jax.Array,
    sides: dict[str, jax.Array],
    priors: dict[str, SidePrior],
    noise: Noise | None,
    squares: Callable[[PyTree], jax.Array] | None,
    posterior: Posterior,
) -> PyTree:
    """Draw all hyperparameters from their law given the rows of both sides."""
    hyper = posterior.hyper
    parts = {side: priors[side].evidence(sides[side], hyper[side]) for side in SIDES}
    if noise is not None and squares is not None:
        parts["noise"] = [noise.evidence(squares, posterior)]
    flat = [each for part in parts.values() for each in part]
    # All in one call, since each call compiles a rejection sampler.
    count, total, shape, rate = (jnp.concatenate(part) for part in zip(*flat, strict=True))
    drawn = iter(
        jnp.split(
            draw_precision(key, shape, rate, count, total),
            np.cumsum([len(part.count) for part in flat[:-1]]),
        )
    )
    found = {name: [next(drawn) for _ in part] for name, part in parts.items()}
    width = sides[SIDES[0]].shape[1]
    normals = random.normals(random.words(key), 0, 1, len(SIDES) * width, slot=_MEANS_SLOT)
    fresh = {
        side: priors[side].fresh(
            jax.random.fold_in(key, number), normal, sides[side], hyper[side], found[side]
        )
        for number, (side, normal) in enumerate(zip(SIDES, normals.reshape(-1, width), strict=True))
    }
    of_noise = {} if noise is None or squares is None else noise.fresh(*found["noise"])
    return {**hyper, **fresh, **of_noise}
