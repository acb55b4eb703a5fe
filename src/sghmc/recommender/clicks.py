"""All pairs of users and items in tiles, and the likelihood of which of them came up.

A tile is a block of rows times a block of columns: dense, so that its pairs are one product of
matrices, whether they came up or not. It is one example of a posterior: batches of tiles in
shuffled epochs see every pair equally often, and nothing is said of pairs by sampling them.

Bayesian matrix factorization of implicit feedback: which pairs came up, or how often.

Rows of new users given the items' rows, draw by draw, where pairs came up or not; or of items.

A row given the other side is a logistic (or Poisson) regression over all of it. Chains go along the
draws of the other side: some steps at each, from where the one before has led to.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.checks import checked_codes, take_rows
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior
from sghmc.recommender import factor_gibbs
from sghmc.recommender.factor_gibbs import SIDES, ColumnPrior, Features
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.types import PyTree

SIDE = 64
"""Rows and columns of a tile."""


def tiled(
    row: np.ndarray, column: np.ndarray, count: np.ndarray, shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Tiles of all pairs of a matrix, of whose entries some are positive.

    | array | what |
    | --- | --- |
    | `block` | (tile, 2): numbers of the blocks of rows and columns |
    | `place` | (tile, entry): where its positive entries are; SIDE² stands for no entry |
    | `count` | (tile, entry): those entries |
    """
    num_blocks = [max(1, -(-size // SIDE)) for size in shape]
    tile = (row // SIDE).astype(np.int64) * num_blocks[1] + column // SIDE
    order = np.argsort(tile, kind="stable")
    counts = np.bincount(tile, minlength=num_blocks[0] * num_blocks[1])
    starts = np.cumsum(counts) - counts
    number = tile[order]
    within = np.arange(len(order)) - starts[number]
    width = padded_width(int(counts.max(initial=1)))
    place = np.full((len(counts), width), SIDE**2, np.int32)
    value = np.zeros((len(counts), width), np.float32)
    place[number, within] = (row % SIDE * SIDE + column % SIDE)[order]
    value[number, within] = count[order]
    blocks = np.stack(np.divmod(np.arange(len(counts)), num_blocks[1]), axis=1)
    return {"block": blocks.astype(np.int32), "place": place, "count": value}


def padded_width(size: int) -> int:
    """Entries of the fullest tile with some room, so that a few more find their program."""
    unit = max(8, 2 ** (size - 1).bit_length() // 8)
    return -(-size // unit) * unit


def codes_in(block: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positions that a block has, within bounds, and which of them are real."""
    position = block * SIDE + jnp.arange(SIDE)
    return jnp.minimum(position, size - 1), position < size


def log_likelihood(
    score: jax.Array, tile: PyTree, is_real: tuple[jax.Array, jax.Array], is_count: bool
) -> jax.Array:
    """Of a tile, given the scores of its pairs; of rows and columns some are not real.

    Bernoulli with log-odds s, Σ s over positive pairs − Σ log(1 + eˢ) over all; or, for counts,
    Poisson with log-rates s, Σ y s − Σ eˢ.
    """
    entries = jnp.take(score.ravel(), tile["place"], mode="fill", fill_value=0)
    total = jnp.exp(score) if is_count else jax.nn.softplus(score)
    both = is_real[0][:, None] & is_real[1][None]
    return jnp.sum(tile["count"] * entries) - jnp.sum(jnp.where(both, total, 0))


# Bayesian matrix factorization of implicit feedback: which pairs came up, or how often.


class ClickModel(AbstractFactorization):
    """Which pairs of users and items came up, of all that could have; or how often.

        y_ij ~ Bernoulli(σ(o + u_i·v_j + a_i + b_j))    or, with is_count,
        y_ij ~ Poisson(exp(o + u_i·v_j + a_i + b_j))

    Pairs that did not come up are data too, all of them: an example of the posterior is a tile of
    64 users times 64 items (`sghmc.recommender.clicks`). The offset o stays as it is. Rows have the
    priors of `FactorizationModel` with prior="dimension".

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `is_count` | whether it matters how often |
    | `features` | {"user": …, "item": …}: what is known of them, see `factor_features` |

    >>> model = ClickModel(num_users=3, num_items=4, rank=2)
    >>> model.posterior([0, 2], [1, 3], offset=-1.0).num_examples
    1
    """

    num_users: int
    num_items: int
    rank: int
    is_count: bool
    features: dict[str, Features]

    def __init__(
        self, num_users: int, num_items: int, rank: int, is_count: bool = False, features=None
    ):
        self.num_users, self.num_items, self.rank = num_users, num_items, rank
        self.is_count, self.features = is_count, features or {}

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        """Of one tile."""
        sizes, firsts = hyper["num_real"], (0, self.num_users)
        rows, are_real = [], []
        for k, side in enumerate(SIDES):
            position, is_real = codes_in(example["block"][k], sizes[k])
            code = take_rows(hyper["order"][side], position)
            rows.append(take_rows(params, firsts[k] + code))
            are_real.append(is_real)
        score = scores(rows[0], rows[1], hyper["offset"])
        return log_likelihood(score, example, (are_real[0], are_real[1]), self.is_count)

    def posterior(
        self,
        user,
        item,
        count=None,
        *,
        offset: float,
        num_real: tuple[int, int] | None = None,
        seed: int = 0,
        **constants: jax.Array,
    ) -> Posterior:
        """The posterior given codes of the pairs that came up, and how often they did.

        `num_real` says how many users and items there are, where the table has more rows; those
        have the prior as their law. Blocks of tiles are random ones: `seed` says which.
        """
        user = checked_codes(user, self.num_users, "user")
        item = checked_codes(item, self.num_items, "item")
        count = np.ones(len(user)) if count is None else np.asarray(count, np.float32)
        if np.any(count <= 0) or not np.all(np.isfinite(count)):
            raise ValueError(
                "count must be positive numbers: leave out pairs that did not come up."
            )
        sizes = (self.num_users, self.num_items) if num_real is None else num_real
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(size) for size in sizes]
        row, column = np.argsort(orders[0])[user], np.argsort(orders[1])[item]
        lengths = (self.num_users, self.num_items)
        hyper = {
            **self.prior_start(),
            "offset": jnp.asarray(offset, jnp.float32),
            "num_real": jnp.asarray(sizes, jnp.int32),
            "order": {
                side: jnp.asarray(np.append(order, np.zeros(length - len(order))), jnp.int32)
                for side, order, length in zip(SIDES, orders, lengths, strict=True)
            },
            **constants,
        }
        data = tiled(row, column, count, sizes)
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        return factor_gibbs.update(key, self.sides(params), self.priors, None, None, posterior)

    def precisions(self, hyper: PyTree, counts: PyTree) -> dict[str, jax.Array]:
        """1: the variances of y, summed over all pairs of a row, are about its positive ones."""
        return {side: jnp.ones(()) for side in SIDES}

    @property
    def columns(self) -> ColumnPrior:
        return ColumnPrior.by_dimension(self.rank)


def scores(users: jax.Array, items: jax.Array, offset: jax.Array) -> jax.Array:
    """o + u_i·v_j + a_i + b_j of all pairs of some rows."""
    products = users[:, :-1] @ items[:, :-1].T
    return products + users[:, -1:] + items[:, -1][None] + offset


# Rows of new users given the items' rows, draw by draw, where pairs came up or not; or of items.


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
            position, is_real = codes_in(example["block"][k], sizes[k])
            rows.append(take_rows(table, position))
            are_real.append(is_real)
        score = scores(rows[0], rows[1], self.offset)
        return log_likelihood(score, example, (are_real[0], are_real[1]), self.is_count)

    def log_prior(self, params: jax.Array, hyper: PyTree) -> jax.Array:
        mean = jnp.broadcast_to(self.mean[hyper["draw"]], params.shape)
        return -0.5 * jnp.sum(self.precision[hyper["draw"]][None] * (params - mean) ** 2)

    def posterior(self, row: np.ndarray, other: np.ndarray, count: np.ndarray, num_rows: int):
        """Given which pairs of rows and others came up."""
        data = tiled(row, other, count, (num_rows, int(self.num_others)))
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
