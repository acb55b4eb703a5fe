"""Likelihoods of ratings: normal around their pair's mean, or levels between cuts.

In both, each user's ratings have a precision of their own.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.factor_chain import ChainProblem, Likelihood, Outcome, StepSchedule, counted
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.factor_gibbs import NOISE_SHAPE
from sghmc.recommender.factor_model import FactorizationModel
from sghmc.recommender.fold_in import Newcomers, draw_items, draw_users, folded_in
from sghmc.recommender.ordinal import LatentRows, OrdinalModel, sweep_items, sweep_users
from sghmc.recommender.ratings import Ratings

RESOLUTION = 0.01
"""Precision to which a rating is known at best, in standard deviations of all ratings.

Far below the noise of ratings by people, and enough that ratings without noise have a proper
posterior.
"""

_MIN_RELATIVE_SPREAD = 1e-6
"""Ratings with a smaller spread, relative to their size, are equal within float32."""

_MIN_BATCH_SIZE, _MAX_BATCHES_PER_PASS = 40_000, 10
"""A batch is a fixed part of the data: its curvature, N/n times that of its ratings, would make a
step of the default size unstable if the part shrank as the data grow."""

GIBBS_EVERY = 50

_START_NOISE_VARIANCE = 0.5
"""Starting variance of the noise, if ratings have a variance of 1."""

_MAX_LEVELS = 50
"""Largest number of different ratings that are treated as levels."""


class NoisyRatings(Likelihood):
    """Ratings with a noise precision for each user; `scale` begins with their center and spread."""

    kept = ("noise", "noise_rate")
    schedule = StepSchedule(step_size=0.05, momentum_decay=0.0125, thinning=50, num_burnin=1000)

    def start(self, num_users: int, last: dict[str, np.ndarray] | None) -> dict[str, Any]:
        if last is None:
            noise = np.full(num_users, 1 / _START_NOISE_VARIANCE, np.float32)
            rate: Any = np.float32(NOISE_SHAPE * _START_NOISE_VARIANCE)
        else:  # new users have the mean precision
            noise, rate = last["noise"], last["noise_rate"]
            noise = np.append(noise, np.full(num_users - len(noise), noise.mean()))
        return {"noise": noise, "noise_rate": rate}


def center_and_spread(rating: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of ratings; the latter is 1 if all are equal."""
    center, spread = float(rating.mean(dtype=np.float64)), float(rating.std(dtype=np.float64))
    return center, spread if spread > _MIN_RELATIVE_SPREAD * abs(center) else 1.0


def padded_columns(ratings: Ratings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, items and ratings, padded so that a few more reuse the compiled program."""
    length = padded_size(len(ratings), 4)
    columns = (ratings.user, ratings.item, ratings.rating)
    user, item, rating = (padded(column, length) for column in columns)
    return user, item, rating


def problem_of(model: Any, posterior: Any, ratings: Ratings) -> ChainProblem:
    """Return the problem of padded ratings, of which only the real ones have weight."""
    batch_size = max(_MIN_BATCH_SIZE, posterior.num_rows // _MAX_BATCHES_PER_PASS)
    return ChainProblem(model, counted(posterior, len(ratings)), batch_size, GIBBS_EVERY)


class GaussianRatings(NoisyRatings):
    """Ratings are normal around the mean of their pair."""

    name = "gaussian"

    @classmethod
    def of(cls, table):
        return cls(np.array(center_and_spread(table.rating)))

    def in_units(self, table):
        center, spread = self.scale
        rating = ((table.rating - center) / spread).astype(np.float32)
        return dataclasses.replace(table, rating=rating)

    def problem(self, ratings, sizes, rank, features):
        model = FactorizationModel(
            *sizes, rank, "dimension", "user", resolution=RESOLUTION, features=features
        )
        return problem_of(model, model.posterior(*padded_columns(ratings)), ratings)

    def outcome(self, draws, ratings, clip):
        given = ratings.rating
        bounds = (float(given.min()), float(given.max())) if clip else (-np.inf, np.inf)
        center, spread = self.scale.tolist()
        return NormalOutcome(center, spread, draws["noise"], bounds, given)

    def fold_in(self, key, new: Newcomers):
        return folded_in(key, new, _users, _items)


def levels_of(rating: np.ndarray) -> np.ndarray | None:
    """Return the different ratings in order, or None if they are too many for levels."""
    levels = np.unique(rating)
    return levels.astype(np.float64) if len(levels) <= _MAX_LEVELS else None


@dataclasses.dataclass(frozen=True)
class NormalOutcome(Outcome):
    """rating = center + spread · (mean + noise), with the precisions `noise` (draw, user)."""

    center: float
    spread: float
    noise: np.ndarray
    bounds: tuple[float, float]
    """Range to which predicted means are clipped."""
    given: np.ndarray
    """Ratings that were learned from."""

    @property
    def levels(self):
        return levels_of(self.given)

    def moments(self, draws, users, items):
        return self.ranked(draws, users, items, *draws.moments(users, items))

    def ranked(self, draws, users, items, means, variances):
        # An unknown user's noise is that of the average user.
        noise = np.mean(1 / self.noise.astype(np.float64), axis=0)
        variance = variances + np.where(users < 0, np.mean(noise), noise[users])
        rating = self.center + self.spread * np.asarray(means, np.float64)
        return np.clip(rating, *self.bounds), self.spread * np.sqrt(variance)

    def probabilities(self, draws, users, items):
        """Average over draws the probability of the numbers that are nearest to each level."""
        assert self.levels is not None
        cuts = ((self.levels[1:] + self.levels[:-1]) / 2 - self.center) / self.spread
        of_draws = np.broadcast_to(cuts, (draws.count, len(cuts)))
        return _between(of_draws, self.noise, draws, users, items)


def _between(
    cuts: np.ndarray,
    noise: np.ndarray,
    draws: FactorDraws,
    users: np.ndarray,
    items: np.ndarray,
) -> np.ndarray:
    """Probability that a noisy mean falls between cuts (draw, cut), averaged over draws."""
    below = np.zeros((len(users), cuts.shape[1]))
    for pairs in draws.each(users, items):
        who, own = users[pairs.part], 1 / noise[pairs.draw].astype(np.float64)
        scale = np.sqrt(np.where(who < 0, own.mean(), own[who]) + pairs.variance)
        gap = cuts[pairs.draw][None].astype(np.float64) - pairs.mean[:, None]
        below[pairs.part] += special.ndtr(gap / scale[:, None])
    edges = np.zeros(len(users)), np.ones(len(users))
    return np.diff(np.column_stack([edges[0], below / draws.count, edges[1]]), axis=1)


@functools.partial(jax.jit, static_argnames=("num_users",))
def _users(key, num_users, blocks, items, prior, noise_rate):
    """Draw users' rows (draw, user, column) and noise precisions (draw, user)."""

    def one(draw):
        key, items, prior, rate = draw
        return draw_users(key, blocks, num_users, items, prior, rate, RESOLUTION)

    return jax.lax.map(one, (jax.random.split(key, len(items)), items, prior, noise_rate))


@functools.partial(jax.jit, static_argnames=("num_items",))
def _items(key, num_items, blocks, users, prior, noise):
    """Draw items' rows (draw, item, column)."""

    def one(draw):
        key, users, noise, prior = draw
        return draw_items(key, blocks, num_items, users, noise, prior)

    return jax.lax.map(one, (jax.random.split(key, len(users)), users, noise, prior))


# Ratings are levels: a hidden number around the pair's mean falls between cuts.

_SWEEPS_PER_DRAW, _FIRST_SWEEPS = 3, 20
"""Gibbs sweeps of new rows at each draw of the other side, and before the first."""


class OrdinalRatings(NoisyRatings):
    """Ratings are levels: `scale` has center and spread of the ratings, then all levels."""

    name = "ordinal"
    kept = ("noise", "noise_rate", "cuts")

    @classmethod
    def of(cls, table):
        rating = table.rating
        levels = levels_of(rating)
        if levels is None or len(levels) < 2:
            count = len(np.unique(rating))
            remedy = "round them" if count > 2 else 'take "implicit" if all are alike'
            raise ValueError(
                f'likelihood="ordinal" needs ratings with a few levels, such as 1 to 5 stars, but '
                f'there are {count:,} different ones. Take "gaussian", or {remedy}.'
            )
        return cls(np.array([*center_and_spread(rating), *levels]))

    @property
    def levels(self) -> np.ndarray:
        return self.scale[2:]

    @property
    def start_cuts(self) -> np.ndarray:
        """Cuts halfway between levels, in units of the ratings' spread."""
        center, spread = self.scale[:2]
        return (((self.levels[1:] + self.levels[:-1]) / 2 - center) / spread).astype(np.float32)

    def in_units(self, table):
        place = np.minimum(np.searchsorted(self.levels, table.rating), len(self.levels) - 1)
        is_level = np.isclose(self.levels[place], table.rating)
        if not is_level.all():
            odd = float(table.rating[~is_level][0])
            raise ValueError(
                f"Ratings are {', '.join(f'{level:g}' for level in self.levels)} here, but {odd:g} "
                f"came: fit again with all levels, or round it to one of these."
            )
        return dataclasses.replace(table, rating=place.astype(np.float32))

    def problem(self, ratings, sizes, rank, features):
        model = OrdinalModel(*sizes, rank, features=features)
        user, item, level = padded_columns(ratings)
        posterior = model.posterior(user, item, level.astype(np.int32), self.start_cuts)
        return problem_of(model, posterior, ratings)

    def start(self, num_users, last):
        cuts = self.start_cuts if last is None else last["cuts"]
        return {**super().start(num_users, last), "cuts": cuts}

    def outcome(self, draws, ratings, clip):
        return OrdinalOutcome(self.levels, draws["noise"], draws["cuts"])

    def fold_in(self, key, new: Newcomers):
        cuts = new.draws["cuts"].astype(np.float32)
        users = functools.partial(_users_of_levels, cuts=cuts)
        return folded_in(key, new, users, functools.partial(_items_of_levels, cuts=cuts))


@dataclasses.dataclass(frozen=True)
class OrdinalOutcome(Outcome):
    """P(level ≤ l) = Φ((t_l − m) √τ), with `noise` τ (draw, user) and `cuts` t (draw, cut)."""

    all_levels: np.ndarray
    noise: np.ndarray
    cuts: np.ndarray

    @property
    def levels(self):
        return self.all_levels

    def probabilities(self, draws, users, items):
        return _between(self.cuts, self.noise, draws, users, items)

    def moments(self, draws, users, items):
        probability = self.probabilities(draws, users, items)
        mean = probability @ self.all_levels
        square = probability @ self.all_levels**2
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


@functools.partial(jax.jit, static_argnames=("num_users",))
def _users_of_levels(key, num_users, blocks, items, prior, noise_rate, cuts):
    """Draw users' rows (draw, user, column) and noise precisions (draw, user)."""

    def sweep(key, state, draw):
        items, prior, rate, cuts = draw
        return sweep_users(key, blocks, state, items, prior, rate, cuts)

    noise = jnp.broadcast_to(NOISE_SHAPE / noise_rate[0], (num_users,))
    return _along_draws(key, sweep, num_users, noise, (items, prior, noise_rate, cuts))


@functools.partial(jax.jit, static_argnames=("num_items",))
def _items_of_levels(key, num_items, blocks, users, prior, noise, cuts):
    """Draw items' rows (draw, item, column)."""

    def sweep(key, state, draw):
        users, prior, noise, cuts = draw
        return sweep_items(key, blocks, state._replace(noise=noise), users, prior, cuts)

    return _along_draws(key, sweep, num_items, noise[0], (users, prior, noise, cuts)).rows


def _along_draws(key: jax.Array, sweep, num_rows: int, noise: jax.Array, draws) -> LatentRows:
    """Run some sweeps at each draw, each starting from the rows at the draw before.

    The first starts from the prior's means.
    """
    of_first, of_rest = jax.random.split(key)

    def sweeps(key, count, state, draw):
        return jax.lax.fori_loop(
            0, count, lambda i, state: sweep(jax.random.fold_in(key, i), state, draw), state
        )

    def one(state, each):
        key, draw = each
        state = sweeps(key, _SWEEPS_PER_DRAW, state, draw)
        return state, state

    prior = draws[1]
    rows = jnp.broadcast_to(prior["mean"][0], (num_rows, prior["precision"].shape[1]))
    first = jax.tree.map(lambda leaf: leaf[0], draws)
    start = sweeps(of_first, _FIRST_SWEEPS, LatentRows(rows, noise), first)
    keys = jax.random.split(of_rest, len(draws[0]))
    return jax.lax.scan(one, start, (keys, draws))[1]
