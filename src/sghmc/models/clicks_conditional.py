"""Rows of new users given the items' rows, draw by draw, where pairs came up or not; or of items.

A row given the other side is a logistic (or Poisson) regression over all of it. Chains go along the
draws of the other side: some steps at each, from where the one before has led to.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.models import tiles
from sghmc.models.clicks import scores
from sghmc.models.codes import take_rows
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior
from sghmc.types import PyTree


class RowsGivenOthers(eqx.Module):
    """Some rows of a side given all of the other, under each of many draws.

    | field | meaning |
    | --- | --- |
    | `others` | (draw, row, column): the other side |
    | `mean` | (draw, column), or (draw, row, column) where rows have features |
    | `precision` | (draw, column) |
    | `offset` | o |
    | `num_others` | how many of `others` are real |
    | `is_count` | whether it matters how often a pair came up |

    The hyperparameter "draw" says which draw is given; `gibbs` goes to the next one.
    """

    others: jax.Array
    mean: jax.Array
    precision: jax.Array
    offset: jax.Array
    num_others: jax.Array
    is_count: bool

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        sizes = hyper["num_rows"], self.num_others
        tables = params, self.others[hyper["draw"]]
        rows, are_real = [], []
        for k, table in enumerate(tables):
            position, is_real = tiles.codes_in(example["block"][k], sizes[k])
            rows.append(take_rows(table, position))
            are_real.append(is_real)
        score = scores(rows[0], rows[1], self.offset)
        return tiles.log_likelihood(score, example, (are_real[0], are_real[1]), self.is_count)

    def log_prior(self, params: jax.Array, hyper: PyTree) -> jax.Array:
        mean = jnp.broadcast_to(self.mean[hyper["draw"]], params.shape)
        return -0.5 * jnp.sum(self.precision[hyper["draw"]][None] * (params - mean) ** 2)

    def posterior(self, row: np.ndarray, other: np.ndarray, count: np.ndarray, num_rows: int):
        """Given which pairs of rows and others came up."""
        data = tiles.tiled(row, other, count, (num_rows, int(self.num_others)))
        hyper = {"draw": jnp.int32(0), "num_rows": jnp.asarray(num_rows, jnp.int32)}
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def gibbs(self, every: int, start: int) -> Gibbs:
        """The next draw, every so many steps."""
        return Gibbs(self._next, every, start)

    def start(self, num_rows: int) -> jax.Array:
        """The prior's means under the first draw."""
        return jnp.broadcast_to(self.mean[0], (num_rows, self.precision.shape[1]))

    def mass(self, counts: jax.Array, weights: jax.Array) -> jax.Array:
        """n_i E[v²] + λ, with the others' squares weighted by how often they came up."""
        squares = jnp.average(self.others[0] ** 2, axis=0, weights=weights).at[-1].set(1.0)
        return counts[:, None] * squares[None] + self.precision[0][None]

    def _next(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        draw = jnp.minimum(posterior.hyper["draw"] + 1, len(self.others) - 1)
        return {**posterior.hyper, "draw": draw}
