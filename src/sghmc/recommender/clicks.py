"""Implicit feedback: which of all pairs of users and items came up, or how often.

Pairs are in tiles, a block of rows times a block of columns, so that the scores of a tile are one
product of matrices. A tile is one example of a posterior: batches of tiles in shuffled epochs
evaluate all pairs, also those that did not come up, equally often.

New rows given the other side's are a logistic (or Poisson) regression over all of it. Their chain
makes some steps at each draw of the other side, starting from the rows at the draw before.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from sghmc.core.checks import checked_codes, take_rows
from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.gradients import FullBatch, Minibatch
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior
from sghmc.recommender import factor_gibbs
from sghmc.recommender.factor_chain import ChainProblem, Likelihood, Outcome, StepSchedule, counted
from sghmc.recommender.factor_gibbs import SIDES
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.recommender.fold_in import Newcomers, with_rows
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

TILE_SIDE = 64
"""Rows and columns of a tile."""

_BATCHES_PER_PASS, _MIN_BATCH_PAIRS, _MAX_BATCH_PAIRS = 5, 1 << 20, 1 << 24
"""A batch has a fifth of all pairs, within bounds on the cost of a step."""

_NEW_BATCHES_PER_PASS, _NEW_STEP_SIZE, _NEW_MOMENTUM_DECAY = 8, 0.2, 0.2
_NEW_STEPS_PER_DRAW, _NEW_BURNIN_STEPS = 12, 120
"""Settings of the chains of new rows: batches in a pass, ε, α, and numbers of steps."""


def tiled(
    row: np.ndarray, column: np.ndarray, count: np.ndarray, shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Cut a matrix, given by its positive entries, into tiles.

    | array | what |
    | --- | --- |
    | `block` | (tile, 2): numbers of the blocks of rows and columns |
    | `place` | (tile, entry): places of the positive entries in a tile; TILE_SIDE² is none |
    | `count` | (tile, entry): those entries |
    """
    num_blocks = [max(1, -(-size // TILE_SIDE)) for size in shape]
    tile = (row // TILE_SIDE).astype(np.int64) * num_blocks[1] + column // TILE_SIDE
    order = np.argsort(tile, kind="stable")
    counts = np.bincount(tile, minlength=num_blocks[0] * num_blocks[1])
    starts = np.cumsum(counts) - counts
    number = tile[order]
    within = np.arange(len(order)) - starts[number]
    # Some margin, so that a few more entries reuse the compiled program.
    width = int(counts.max(initial=1))
    unit = max(8, 2 ** (width - 1).bit_length() // 8)
    width = -(-width // unit) * unit
    place = np.full((len(counts), width), TILE_SIDE**2, np.int32)
    value = np.zeros((len(counts), width), np.float32)
    place[number, within] = (row % TILE_SIDE * TILE_SIDE + column % TILE_SIDE)[order]
    value[number, within] = count[order]
    blocks = np.stack(np.divmod(np.arange(len(counts)), num_blocks[1]), axis=1)
    return {"block": blocks.astype(np.int32), "place": place, "count": value}


def codes_in(block: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the positions in a block, within bounds, and which of them are real."""
    position = block * TILE_SIDE + jnp.arange(TILE_SIDE)
    return jnp.minimum(position, size - 1), position < size


def log_likelihood(
    score: jax.Array, tile: PyTree, is_real: Sequence[jax.Array], is_count: bool
) -> jax.Array:
    """Log-likelihood of a tile with these scores; `is_real` tells padding from rows and columns.

    Bernoulli with log-odds s, Σ s over positive pairs − Σ log(1 + eˢ) over all; or, for counts,
    Poisson with log-rates s, Σ y s − Σ eˢ.
    """
    entries = jnp.take(score.ravel(), tile["place"], mode="fill", fill_value=0)
    total = jnp.exp(score) if is_count else jax.nn.softplus(score)
    both = is_real[0][:, None] & is_real[1][None]
    return jnp.sum(tile["count"] * entries) - jnp.sum(jnp.where(both, total, 0))


def _tile_log_likelihood(
    tile: PyTree,
    rows_at: Callable[[int, jax.Array], jax.Array],
    sizes: Sequence[jax.Array] | jax.Array,
    offset: jax.Array,
    is_count: bool,
) -> jax.Array:
    """Log-likelihood of a tile with the scores o + u_i·v_j + a_i + b_j.

    `rows_at` looks up the rows u, a (0) or v, b (1) at some positions; there are `sizes` of them.
    """
    positions, is_real = zip(*(codes_in(tile["block"][k], sizes[k]) for k in (0, 1)), strict=True)
    users, items = (rows_at(k, positions[k]) for k in (0, 1))
    products = users[:, :-1] @ items[:, :-1].T
    score = products + users[:, -1:] + items[:, -1][None] + offset
    return log_likelihood(score, tile, is_real, is_count)


class ClickModel(AbstractFactorization):
    """Model which pairs of users and items came up, of all pairs, or how often.

        y_ij ~ Bernoulli(σ(o + u_i·v_j + a_i + b_j))    or, with is_count,
        y_ij ~ Poisson(exp(o + u_i·v_j + a_i + b_j))

    All pairs are data, also those that did not come up: an example is a tile of 64 users times 64
    items. The offset o is a constant. Rows have the priors of `FactorizationModel` with
    prior="dimension".

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `is_count` | whether the data are counts |
    | `features` | {"user": …, "item": …}: their `Features`, if any |

    >>> model = ClickModel(num_users=3, num_items=4, rank=2)
    >>> model.posterior([0, 2], [1, 3], offset=-1.0).num_examples
    1
    """

    is_count: bool = False

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        def rows_at(k: int, position: jax.Array) -> jax.Array:
            code = take_rows(hyper["order"][SIDES[k]], position)
            return take_rows(params, (0, self.num_users)[k] + code)

        sizes, offset = hyper["num_real"], hyper["offset"]
        return _tile_log_likelihood(example, rows_at, sizes, offset, self.is_count)

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
        """Return the posterior given codes of the pairs that came up, and how often they did.

        `num_real` are the numbers of users and items if the table has more rows; further rows
        have the prior as their law. Blocks of tiles are random, by `seed`.
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
                side: jnp.asarray(padded(order, length), jnp.int32)
                for side, order, length in zip(SIDES, orders, lengths, strict=True)
            },
            **constants,
        }
        data = tiled(row, column, count, sizes)
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        return factor_gibbs.update(key, self.sides(params), self.priors, None, None, posterior)

    def precisions(self, hyper: PyTree, counts: PyTree) -> dict[str, jax.Array]:
        # The variances of y, summed over all pairs of a row, are about its number of positive ones.
        return {side: jnp.ones(()) for side in SIDES}


class RowsGivenOthers(eqx.Module):
    """New rows of one side given all rows of the other, under each of many draws.

    | field | meaning |
    | --- | --- |
    | `others` | (draw, row, column): the other side |
    | `mean` | (draw, column), or (draw, row, column) if rows have features |
    | `precision` | (draw, column) |
    | `offset` | o |
    | `num_others` | how many of `others` are real |
    | `is_count` | whether the data are counts |

    The hyperparameter "draw" is the number of the given draw.
    """

    others: jax.Array
    mean: jax.Array
    precision: jax.Array
    offset: jax.Array
    num_others: jax.Array
    is_count: bool

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        tables, sizes = (params, self.others[hyper["draw"]]), (hyper["num_rows"], self.num_others)

        def rows_at(k: int, position: jax.Array) -> jax.Array:
            return take_rows(tables[k], position)

        return _tile_log_likelihood(example, rows_at, sizes, self.offset, self.is_count)

    def log_prior(self, params: jax.Array, hyper: PyTree) -> jax.Array:
        mean = jnp.broadcast_to(self.mean[hyper["draw"]], params.shape)
        return -0.5 * jnp.sum(self.precision[hyper["draw"]][None] * (params - mean) ** 2)

    def posterior(self, row: np.ndarray, other: np.ndarray, count: np.ndarray, num_rows: int):
        """Return the posterior given which pairs of rows and others came up, and how often."""
        data = tiled(row, other, count, (num_rows, int(self.num_others)))
        hyper = {"draw": jnp.int32(0), "num_rows": jnp.asarray(num_rows, jnp.int32)}
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def mass(self, counts: jax.Array, weights: jax.Array) -> jax.Array:
        """Return n_i E[v²] + λ, with the others' squares weighted by how often they came up."""
        squares = jnp.average(self.others[0] ** 2, axis=0, weights=weights).at[-1].set(1.0)
        return counts[:, None] * squares[None] + self.precision[0][None]

    def next_draw(
        self, key: jax.Array, params: jax.Array | np.ndarray, posterior: Posterior
    ) -> PyTree:
        """Go to the next draw of the other side: an update for `Gibbs`."""
        draw = jnp.minimum(posterior.hyper["draw"] + 1, len(self.others) - 1)
        return {**posterior.hyper, "draw": draw}


class Interactions(Likelihood):
    """Whether, or how often, pairs came up; `scale` begins with the score of an average pair."""

    is_count: ClassVar[bool]
    is_rated = False
    schedule = StepSchedule(step_size=0.15, momentum_decay=0.1, thinning=20, num_burnin=400)

    @classmethod
    def of(cls, table):
        if np.any(table.rating < 0):
            row = int(np.argmax(table.rating < 0))
            raise ValueError(
                f"Implicit feedback says how often a pair came up, but the rating in row {row + 1} "
                f"is {table.rating[row]:g}: give numbers from 0."
            )
        total = np.sum(table.rating if cls.is_count else table.rating > 0, dtype=np.float64)
        if total == 0:
            raise ValueError("All ratings are 0: no pair came up, and nothing can be learned.")
        share = float(total) / (table.num_users * table.num_items)
        offset = np.log(share) if cls.is_count else special.logit(min(share, 1 - 1e-6))
        return cls(np.array([float(offset), 1.0]))

    def in_units(self, table):
        table = table.take(np.flatnonzero(table.rating > 0))
        if self.is_count:
            return table
        return dataclasses.replace(table, rating=np.ones_like(table.rating))

    def problem(self, ratings, sizes, rank, features):
        model = ClickModel(*sizes, rank, self.is_count, features=features)
        pairs = ratings.user, ratings.item, ratings.rating
        num_real = ratings.num_users, ratings.num_items
        posterior = model.posterior(*pairs, offset=self.scale[0], num_real=num_real)
        num_tiles = posterior.num_rows
        batch = num_tiles * TILE_SIDE**2 // _BATCHES_PER_PASS
        batch = int(np.clip(batch, _MIN_BATCH_PAIRS, _MAX_BATCH_PAIRS))
        # Padded by tiles of weight 0, so that a few more users reuse the compiled program.
        length = padded_size(num_tiles, 4)
        data = {
            name: jnp.asarray(padded(np.asarray(part), length))
            for name, part in posterior.data.items()
        }
        posterior = counted(eqx.tree_at(lambda p: p.data, posterior, data), num_tiles)
        return ChainProblem(model, posterior, batch, gibbs_every=10, pairs_per_example=TILE_SIDE**2)

    def outcome(self, draws, ratings, clip):
        return ClickOutcome(float(self.scale[0]), self.is_count)

    def fold_in(self, key, new: Newcomers):
        of_users, of_items = jax.random.split(key)
        users = self._with_fresh(of_users, new, "user", new.users, new.draws["item"])
        items = self._with_fresh(of_items, new, "item", new.new_items, users)
        return {**new.draws, "user": users, "item": items}

    def _with_fresh(self, key, new: Newcomers, side, codes, others) -> np.ndarray:
        """Draw the rows with some codes, given their pairs with rows of the other side."""
        ratings, known = new.ratings, new.draws[side]
        if len(codes) == 0:
            return known
        own, other = getattr(ratings, side), ratings.item if side == "user" else ratings.user
        num_rows = getattr(ratings, f"num_{side}s")
        place = np.full(num_rows, -1)
        place[codes] = np.arange(len(codes))
        mine = np.flatnonzero((place[own] >= 0) & (other < others.shape[1]))
        row, partner, amount = place[own[mine]], other[mine], ratings.rating[mine]
        # Blocks of others are random, as in a fit.
        order = np.random.default_rng(0).permutation(others.shape[1])
        prior = new.prior(side, codes)
        length, size = padded_size(len(codes), 4), padded_size(others.shape[1], 8)
        model = RowsGivenOthers(
            jnp.asarray(padded(others[:, order], size, axis=1)),
            jnp.asarray(prior["mean"]),
            jnp.asarray(prior["precision"]),
            jnp.asarray(self.scale[0], jnp.float32),
            jnp.asarray(len(order), jnp.int32),
            self.is_count,
        )
        posterior = model.posterior(row, np.argsort(order)[partner], amount, len(codes))
        often = np.bincount(other, ratings.rating, others.shape[1])[order]
        counts = np.bincount(row, amount, length).astype(np.float32)
        weights = padded(often + 1e-6, size).astype(np.float32)
        mass = model.mass(jnp.asarray(counts), jnp.asarray(weights))
        num_tiles = posterior.num_rows
        batch_size = -(-num_tiles // _NEW_BATCHES_PER_PASS)
        is_all = num_tiles * TILE_SIDE**2 <= _MIN_BATCH_PAIRS
        samples = sample(
            key,
            posterior,
            SGHMC(_NEW_STEP_SIZE, _NEW_MOMENTUM_DECAY * mass / _NEW_STEP_SIZE, mass),
            jnp.broadcast_to(model.mean[0], (length, others.shape[2])),
            gradient=FullBatch() if is_all else Minibatch(batch_size, replacement="epochs"),
            num_samples=len(others),
            num_burnin=_NEW_BURNIN_STEPS // _NEW_STEPS_PER_DRAW,
            thinning=_NEW_STEPS_PER_DRAW,
            gibbs=Gibbs(model.next_draw, _NEW_STEPS_PER_DRAW, _NEW_BURNIN_STEPS),
            info=False,
            progress=False,
        )
        return with_rows(known, codes, samples.positions[0], num_rows)


class Implicit(Interactions):
    """Whether a pair came up, with log-odds of `scale[0]` on average."""

    name, is_count, repeats = "implicit", False, "last"


class Counts(Interactions):
    """How often a pair came up, with a log-rate of `scale[0]` on average."""

    name, is_count, repeats, joins = "counts", True, "sum", "sum"


@dataclasses.dataclass(frozen=True)
class ClickOutcome(Outcome):
    """P(1) = σ(offset + mean); of counts, the rate is exp(offset + mean)."""

    offset: float
    is_count: bool

    @property
    def levels(self):
        return None if self.is_count else np.array([0.0, 1.0])

    def moments(self, draws, users, items):
        first, second = np.zeros(len(users)), np.zeros(len(users))
        for pairs in draws.each(users, items):
            score = self.offset + pairs.mean
            if self.is_count:  # of e^x with x normal: log-normal moments
                rate = np.exp(score + pairs.variance / 2)
                first[pairs.part] += rate
                second[pairs.part] += rate + rate**2 * np.exp(pairs.variance)
            else:  # E σ(x) of a normal x, to 1 % (MacKay 1992)
                first[pairs.part] += special.expit(score / np.sqrt(1 + np.pi / 8 * pairs.variance))
        mean = first / draws.count
        square = second / draws.count if self.is_count else mean
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def probabilities(self, draws, users, items):
        mean, _ = self.moments(draws, users, items)
        return np.stack([1 - mean, mean], axis=1)
