"""Implicit feedback: which pairs came up, or how often, of all that could have."""

import abc
import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.minibatch import Minibatch
from sghmc.recommender import clicks
from sghmc.recommender.clicks import ClickModel, RowsGivenOthers
from sghmc.recommender.fold_in import Newcomers, with_rows
from sghmc.recommender.likelihood import Likelihood, Outcome, Problem, Schedule, counted
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample

_PARTS, _FEWEST_PAIRS, _MOST_PAIRS = 5, 1 << 20, 1 << 24
"""A step looks at a fifth of all pairs, but for bounds on what that costs."""

_NEW_PARTS = 8
_NEW_STEP, _NEW_DECAY, _STEPS_A_DRAW, _FIRST_STEPS = 0.2, 0.2, 12, 120
"""Of the chains of newcomers: the share of pairs that a step sees, ε, α, and steps."""


class Interactions(Likelihood):
    """`scale` has the offset: the log-odds, or the log-rate, of an average pair."""

    is_count: ClassVar[bool]
    is_rated = False
    schedule = Schedule(step_size=0.15, momentum_decay=0.1, thinning=20, num_burnin=400)

    @classmethod
    @abc.abstractmethod
    def average(cls, share: float) -> float:
        """The offset, of how often an average pair came up."""

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
        return cls(np.array([cls.average(share), 1.0]))

    def in_units(self, table):
        table = table.take(np.flatnonzero(table.rating > 0))
        if self.is_count:
            return table
        return dataclasses.replace(table, rating=np.ones_like(table.rating))

    def problem(self, ratings, sizes, rank, features):
        model = ClickModel(*sizes, rank, self.is_count, features)
        posterior = model.posterior(
            ratings.user,
            ratings.item,
            ratings.rating,
            offset=self.scale[0],
            num_real=(ratings.num_users, ratings.num_items),
        )
        num_tiles = posterior.num_rows
        pairs = num_tiles * clicks.SIDE**2
        batch = int(np.clip(pairs // _PARTS, _FEWEST_PAIRS, _MOST_PAIRS))
        return Problem(model, _padded(posterior), batch, gibbs_every=10, pairs_per_example=_TILE)

    def weight(self, ratings):
        return ratings.rating

    def start(self, problem):
        return {}

    def resumed(self, hyper, problem):
        return {}

    def outcome(self, draws, ratings, clip):
        return ClickOutcome(float(self.scale[0]), self.is_count)

    def fold_in(self, key, new: Newcomers):
        of_users, of_items = jax.random.split(key)
        ratings, known = new.ratings, new.known
        is_known = ratings.item < known.item
        draws = dict(new.draws)
        rows = self._rows(of_users, new, "user", new.users, draws["item"], is_known)
        draws["user"] = with_rows(draws["user"], new.users, rows, ratings.num_users)
        if len(new.new_items):
            everybody = np.ones(len(ratings), bool)
            rows = self._rows(of_items, new, "item", new.new_items, draws["user"], everybody)
            draws["item"] = with_rows(draws["item"], new.new_items, rows, ratings.num_items)
        return draws

    def _rows(self, key, new: Newcomers, side, codes, others, is_seen) -> np.ndarray:
        """Draws of the rows of some codes, given those of the other side and what they did."""
        if len(codes) == 0:
            return np.zeros((len(others), 0, others.shape[2]), np.float32)
        ratings, other = new.ratings, {"user": "item", "item": "user"}[side]
        place = np.full(getattr(ratings, f"num_{side}s"), -1)
        place[codes] = np.arange(len(codes))
        mine = np.flatnonzero((place[getattr(ratings, side)] >= 0) & is_seen)
        row, partner = place[getattr(ratings, side)[mine]], getattr(ratings, other)[mine]
        # Blocks of others are random ones, as in a fit.
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
        amount = ratings.rating[mine]
        posterior = model.posterior(row, np.argsort(order)[partner], amount, len(codes))
        often = np.bincount(getattr(ratings, other), ratings.rating, others.shape[1])[order]
        counts = np.bincount(row, amount, length).astype(np.float32)
        weights = padded(often + 1e-6, size).astype(np.float32)
        mass = model.mass(jnp.asarray(counts), jnp.asarray(weights))
        return _along_draws(key, model, posterior, mass, length)[:, : len(codes)]


class Implicit(Interactions):
    is_count, repeats = False, "last"

    @classmethod
    def average(cls, share):
        return float(special.logit(min(share, 1 - 1e-6)))


class Counts(Interactions):
    is_count, repeats, joins = True, "sum", "sum"

    @classmethod
    def average(cls, share):
        return float(np.log(share))


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
        for seen in draws.each(users, items):
            score = self.offset + seen.mean
            if self.is_count:  # of e^x with x normal: log-normal moments
                rate = np.exp(score + seen.variance / 2)
                first[seen.part] += rate
                second[seen.part] += rate + rate**2 * np.exp(seen.variance)
            else:  # E σ(x) of a normal x, to 1 % (MacKay 1992)
                first[seen.part] += special.expit(score / np.sqrt(1 + np.pi / 8 * seen.variance))
        mean = first / draws.count
        square = second / draws.count if self.is_count else mean
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def ranked(self, draws, users, items, means, variances):
        return self.moments(draws, users, items)

    def probabilities(self, draws, users, items):
        mean, _ = self.moments(draws, users, items)
        return np.stack([1 - mean, mean], axis=1)


_TILE = clicks.SIDE**2


def _padded(posterior):
    """With tiles that do not count, so that a few more users find their program compiled."""
    count = posterior.num_rows
    length = padded_size(count, 4)
    data = jax.tree.map(lambda part: jnp.asarray(padded(np.asarray(part), length)), posterior.data)
    return counted(eqx.tree_at(lambda p: p.data, posterior, data), count)


def _along_draws(key, model: RowsGivenOthers, posterior, mass, length: int) -> np.ndarray:
    """(draw, row, column): the rows after some steps at each draw."""
    num_draws, num_tiles = len(model.others), posterior.num_rows
    size = -(-num_tiles // _NEW_PARTS)
    is_all = num_tiles * _TILE <= _FEWEST_PAIRS
    samples = sample(
        key,
        posterior,
        SGHMC(_NEW_STEP, _NEW_DECAY * mass / _NEW_STEP, mass),
        model.start(length),
        gradient=FullBatch() if is_all else Minibatch(size, replacement="epochs"),
        num_samples=num_draws,
        num_burnin=_FIRST_STEPS // _STEPS_A_DRAW,
        thinning=_STEPS_A_DRAW,
        gibbs=model.gibbs(_STEPS_A_DRAW, start=_FIRST_STEPS),
        info=False,
        progress=False,
    )
    return np.asarray(samples.positions[0])
