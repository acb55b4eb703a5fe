"""Side information as priors: rows of users or items lie around what their features say.

    w_ik ~ N(μ_k + Σ_f F_if B_fk, 1/λ_k),  B_fk ~ N(0, 1/(λ_k γ_gk)),  γ ~ Gamma(1, 1)

with one γ for the factors and one for the bias of each group g of features: an age's, say, or all
genres'. (Macau, Simm et al. 2017, with groups.) Means and weights (μ, B) are drawn together given
the rows: with X = (1 F) the regression of each column k has the precision λ_k(XᵀX + D), and

    (XᵀX + D) x = Xᵀ(w + λ^−½ z) + D^½ λ^−½ z',   z, z' standard normal,

has its exact law. F is sparse, and the system is solved by conjugate gradients: thousands of
categories cost as many products as one.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.models.codes import take_rows
from sghmc.types import PyTree

_TOLERANCE, _MOST_ITERATIONS = 1e-5, 1000
"""Of the residual against the right-hand side, both in units of the diagonal: float32's reach."""


class Features(NamedTuple):
    """A sparse matrix with a row for each user or item: entry by entry, in any order.

    Entries of value 0 are padding. Columns are features; those of a group share their γ.
    """

    row: Any
    column: Any
    value: Any
    group: Any
    """(column,): the number of each feature's group."""
    group_size: Any
    """(group,): how many features each group has."""

    def times(self, weights: jax.Array, num_rows: int) -> jax.Array:
        """F B, for B of (feature, column)."""
        terms = self.value[:, None] * take_rows(weights, self.column)
        return jax.ops.segment_sum(terms, self.row, num_rows)

    def transposed_times(self, rows: jax.Array) -> jax.Array:
        """Fᵀ W, for W of (row, column)."""
        terms = self.value[:, None] * take_rows(rows, self.row)
        return jax.ops.segment_sum(terms, self.column, len(self.group))

    def squares(self) -> jax.Array:
        """The diagonal of FᵀF."""
        return jax.ops.segment_sum(self.value**2, self.column, len(self.group))

    def start(self, num_rows: int, width: int) -> PyTree:
        """Weights of 0, and what goes with them."""
        return {
            "weights": jnp.zeros((len(self.group), width)),
            "weight_scale": jnp.ones((len(self.group_size), 2)),
            "center": jnp.zeros((num_rows, width)),
        }

    def relative_precision(self, scale: jax.Array, width: int) -> jax.Array:
        """γ of every weight: (feature, column), of γ of (group, factors or bias)."""
        return take_rows(scale, self.group)[:, _kinds(width)]

    def scale_shape(self, width: int) -> jax.Array:
        """How many weights each γ stands behind: (group, factors or bias)."""
        return self.group_size[:, None] * np.bincount(_kinds(width))[None].astype(np.float32)

    def scale_squares(self, weights: jax.Array, precision: jax.Array) -> jax.Array:
        """Σ λ B² over the weights behind each γ."""
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
        """Means, weights and the rows' centers from their law given the rows, λ and γ.

        `normals` are (rows + 1 + features, column). A column that has no mean has 0.
        """
        num_rows, width = rows.shape
        is_free = jnp.asarray(has_mean, rows.dtype)[None]
        relative = self.relative_precision(scale, width)

        def center(x):
            return is_free * x[:1] + self.times(x[1:], num_rows)

        def spread_out(rows):
            return jnp.concatenate(
                [is_free * jnp.sum(rows, axis=0)[None], self.transposed_times(rows)]
            )

        diagonal = jnp.concatenate([jnp.ones_like(is_free), relative])
        noise = normals * precision[None] ** -0.5
        of_rows, of_weights = noise[:num_rows], noise[num_rows:]
        right = spread_out(rows + of_rows) + jnp.sqrt(diagonal) * of_weights
        right = right.at[:1].multiply(is_free)
        whole = jnp.concatenate([num_rows * is_free, self.squares()[:, None] + 0 * relative])
        x = solve(lambda x: spread_out(center(x)) + diagonal * x, right, whole + diagonal)
        return {"mean": x[0], "weights": x[1:], "center": center(x)}


def solve(multiply, right: jax.Array, diagonal: jax.Array) -> jax.Array:
    """x with multiply(x) = right, column by column: conjugate gradients, scaled by the diagonal."""

    def one(state):
        i, x, residual, direction, size = state
        image = multiply(direction)
        # A column that is solved has nothing left to move by.
        length = size / jnp.maximum(jnp.sum(direction * image, axis=0), _TINY)
        x, residual = x + length[None] * direction, residual - length[None] * image
        scaled = residual / diagonal
        now = jnp.sum(residual * scaled, axis=0)
        direction = scaled + (now / jnp.maximum(size, _TINY))[None] * direction
        return i + 1, x, residual, direction, now

    first = right / diagonal
    size = jnp.sum(right * first, axis=0)

    def is_open(state):
        return (state[0] < _MOST_ITERATIONS) & jnp.any(state[-1] > _TOLERANCE**2 * size)

    start = (jnp.int32(0), jnp.zeros_like(right), right, first, size)
    return jax.lax.while_loop(is_open, one, start)[1]


_TINY = np.finfo(np.float32).tiny


def _kinds(width: int) -> np.ndarray:
    """Of each column: 0 for a factor, 1 for the bias, which is the last."""
    return (np.arange(width) == width - 1).astype(np.int64)
