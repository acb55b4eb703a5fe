"""Ratings are normal around their pair's mean, each user's with a precision of their own.

Ratings are levels: a hidden number around the pair's mean falls between cuts.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from sghmc.estimators.weighted_rows import padded, padded_size
from sghmc.recommender.factor_gibbs import NOISE_SHAPE
from sghmc.recommender.factor_model import FactorizationModel
from sghmc.recommender.fold_in import (
    Newcomers,
    draw_items,
    draw_users,
    item_task,
    on_processor,
    user_task,
    with_rows,
)
from sghmc.recommender.likelihood import Likelihood, Outcome, Problem, Schedule, counted
from sghmc.recommender.ordinal import OrdinalModel, Rows, sweep_items, sweep_users
from sghmc.types import PyTree

RESOLUTION = 0.01
"""In standard deviations of the ratings: so exactly is a rating known at best. Far below the noise
of ratings by people, and enough that ratings without noise have a proper posterior."""

_SAME = 1e-6
"""Ratings that spread less than this, relative to their size, are equal: float32 tells no more."""

_SMALLEST_BATCH, _MOST_BATCHES = 40_000, 10
"""A batch is a part of the data that does not shrink as they grow: its curvature, N/n times that of
its ratings, would shake a step of this size too much."""

GIBBS_EVERY = 50

_START_NOISE = 0.5
"""The variance of the noise that a chain starts from, of ratings whose variance is 1."""

_MOST_LEVELS = 50
"""Different ratings that are told apart as levels."""


class Gaussian(Likelihood):
    kept = ("noise", "noise_rate")
    schedule = Schedule(step_size=0.05, momentum_decay=0.0125, thinning=50, num_burnin=1000)

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
        length = padded_size(len(ratings), 4)
        user, item, rating = (
            padded(column, length) for column in (ratings.user, ratings.item, ratings.rating)
        )
        posterior = counted(model.posterior(user, item, rating), len(ratings))
        return Problem(model, posterior, batch_of(length), GIBBS_EVERY)

    def start(self, problem):
        return start_noise(problem.model.num_users)

    def resumed(self, hyper, problem):
        return resumed_noise(hyper, problem.model.num_users)

    def outcome(self, draws, ratings, clip):
        given = ratings.rating
        bounds = (float(given.min()), float(given.max())) if clip else (-np.inf, np.inf)
        center, spread = self.scale.tolist()
        return NormalOutcome(center, spread, draws["noise"], bounds, given)

    def fold_in(self, key, new: Newcomers):
        return on_processor(lambda: _folded_in(key, new))


def center_and_spread(rating: np.ndarray) -> tuple[float, float]:
    """Of ratings; what does not vary keeps its scale."""
    center, spread = float(rating.mean(dtype=np.float64)), float(rating.std(dtype=np.float64))
    return center, spread if spread > _SAME * abs(center) else 1.0


def batch_of(num_ratings: int) -> int:
    """Ratings that a step looks at."""
    return max(_SMALLEST_BATCH, num_ratings // _MOST_BATCHES)


def start_noise(num_users: int) -> PyTree:
    """Precisions of users, and the rate of their law, that a chain starts from."""
    noise = np.full(num_users, 1 / _START_NOISE, np.float32)
    return {"noise": noise, "noise_rate": np.float32(NOISE_SHAPE * _START_NOISE)}


def resumed_noise(hyper: PyTree, num_users: int) -> PyTree:
    """Those of a chain; new users have the mean."""
    noise = hyper["noise"]
    new = np.full(num_users - len(noise), noise.mean())
    return {"noise": np.append(noise, new), "noise_rate": hyper["noise_rate"]}


def noise_variance(noise: np.ndarray, users: np.ndarray) -> np.ndarray:
    """Of each user's ratings, draws averaged; a stranger rates as the average user does."""
    variances = np.mean(1 / noise.astype(np.float64), axis=0)
    return np.where(users < 0, np.mean(variances), variances[users])


def levels_of(rating: np.ndarray) -> np.ndarray | None:
    """The ratings that there are, where they are few."""
    levels = np.unique(rating)
    return levels.astype(np.float64) if len(levels) <= _MOST_LEVELS else None


@dataclasses.dataclass(frozen=True)
class NormalOutcome(Outcome):
    """rating = center + spread · (mean + noise), with the precisions `noise` (draw, user)."""

    center: float
    spread: float
    noise: np.ndarray
    bounds: tuple[float, float]
    """Where predicted means are clipped to."""
    given: np.ndarray
    """Ratings that were learned from."""

    @property
    def levels(self):
        return levels_of(self.given)

    def moments(self, draws, users, items):
        return self.ranked(draws, users, items, *draws.moments(users, items))

    def ranked(self, draws, users, items, means, variances):
        variance = variances + noise_variance(self.noise, users)
        rating = self.center + self.spread * np.asarray(means, np.float64)
        return np.clip(rating, *self.bounds), self.spread * np.sqrt(variance)

    def probabilities(self, draws, users, items):
        """Mixed over draws; a rating is the level that it lies nearest to."""
        assert self.levels is not None
        cuts = ((self.levels[1:] + self.levels[:-1]) / 2 - self.center) / self.spread
        below = np.zeros((len(users), len(cuts)))
        for seen in draws.each(users, items):
            scale = scale_of(self.noise[seen.draw], users[seen.part], seen.variance)
            below[seen.part] += special.ndtr((cuts - seen.mean[:, None]) / scale[:, None])
        return between(below / draws.count)


def scale_of(noise: np.ndarray, users: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The standard deviation of users' hidden ratings under a draw, around means that vary, too."""
    own = 1 / noise.astype(np.float64)
    return np.sqrt(np.where(users < 0, own.mean(), own[users]) + variance)


def between(below: np.ndarray) -> np.ndarray:
    """Probabilities of levels, from those of being below each cut."""
    edges = np.zeros(len(below)), np.ones(len(below))
    return np.diff(np.column_stack([edges[0], below, edges[1]]), axis=1)


def _folded_in(key: jax.Array, new: Newcomers) -> dict[str, np.ndarray]:
    of_users, of_items = jax.random.split(key)
    num_users, draws = new.ratings.num_users, new.draws
    blocks, length, items, prior = user_task(new)
    fresh, noise = _users(of_users, length, blocks, items, prior, draws["noise_rate"])
    found = {
        "user": with_rows(draws["user"], new.users, fresh, num_users),
        "noise": with_rows(draws["noise"], new.users, noise, num_users),
    }
    if len(new.new_items):
        (blocks, length, users, prior), rest = item_task(new, found)
        fresh = _items(of_items, length, blocks, users, rest["noise"], prior)
        found["item"] = with_rows(draws["item"], new.new_items, fresh, new.ratings.num_items)
    return {**draws, **found}


@functools.partial(jax.jit, static_argnames=("num_users",))
def _users(key, num_users, blocks, items, prior, noise_rate):
    """(draw, user, column) and (draw, user)."""

    def one(draw):
        key, items, prior, rate = draw
        return draw_users(key, blocks, num_users, items, prior, rate, RESOLUTION)

    keys = jax.random.split(key, len(items))
    return jax.lax.map(one, (keys, items, prior, jnp.asarray(noise_rate, jnp.float32)))


@functools.partial(jax.jit, static_argnames=("num_items",))
def _items(key, num_items, blocks, users, noise, prior):
    """(draw, item, column)."""

    def one(draw):
        key, users, noise, prior = draw
        return draw_items(key, blocks, num_items, users, noise, prior)

    keys = jax.random.split(key, len(users))
    return jax.lax.map(one, (keys, users, jnp.asarray(noise, jnp.float32), prior))


# Ratings are levels: a hidden number around the pair's mean falls between cuts.

_NUM_SWEEPS, _FIRST_SWEEPS = 3, 20
"""Of a short chain: at each draw of the other side, and before the first."""


class Ordinal(Likelihood):
    """`scale` has center and spread of the ratings, then all levels."""

    kept = ("noise", "noise_rate", "cuts")
    schedule = Schedule(step_size=0.05, momentum_decay=0.0125, thinning=50, num_burnin=1000)

    @classmethod
    def of(cls, table):
        rating = table.rating
        levels = levels_of(rating)
        if levels is None or len(levels) < 2:
            count = len(np.unique(rating))
            remedy = "round them" if count > 2 else 'take "implicit" where all are alike'
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
        """Halfway between levels, in units of the ratings' spread."""
        center, spread = self.scale[:2]
        return (((self.levels[1:] + self.levels[:-1]) / 2 - center) / spread).astype(np.float32)

    def in_units(self, table):
        place = np.minimum(np.searchsorted(self.levels, table.rating), len(self.levels) - 1)
        is_level = np.isclose(self.levels[place], table.rating)
        if not is_level.all():
            odd = float(table.rating[~is_level][0])
            raise ValueError(
                f"Ratings are {', '.join(f'{level:g}' for level in self.levels)} here, but {odd:g} "
                f"came: fit anew with all levels, or round it to one of these."
            )
        return dataclasses.replace(table, rating=place.astype(np.float32))

    def problem(self, ratings, sizes, rank, features):
        model = OrdinalModel(*sizes, rank, features)
        length = padded_size(len(ratings), 4)
        user, item, level = (
            padded(column, length)
            for column in (ratings.user, ratings.item, ratings.rating.astype(np.int32))
        )
        posterior = model.posterior(user, item, level, self.start_cuts)
        return Problem(model, counted(posterior, len(ratings)), batch_of(length), GIBBS_EVERY)

    def start(self, problem):
        return {**start_noise(problem.model.num_users), "cuts": self.start_cuts}

    def resumed(self, hyper, problem):
        return {**resumed_noise(hyper, problem.model.num_users), "cuts": hyper["cuts"]}

    def outcome(self, draws, ratings, clip):
        return OrdinalOutcome(self.levels, draws["noise"], draws["cuts"])

    def fold_in(self, key, new: Newcomers):
        return on_processor(lambda: _folded_in_levels(key, new))


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
        below = np.zeros((len(users), self.cuts.shape[1]))
        for seen in draws.each(users, items):
            scale = scale_of(self.noise[seen.draw], users[seen.part], seen.variance)
            cuts = self.cuts[seen.draw][None].astype(np.float64)
            below[seen.part] += special.ndtr((cuts - seen.mean[:, None]) / scale[:, None])
        return between(below / draws.count)

    def moments(self, draws, users, items):
        probability = self.probabilities(draws, users, items)
        mean = probability @ self.all_levels
        square = probability @ self.all_levels**2
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def ranked(self, draws, users, items, means, variances):
        return self.moments(draws, users, items)


def _folded_in_levels(key: jax.Array, new: Newcomers) -> dict[str, np.ndarray]:
    of_users, of_items = jax.random.split(key)
    num_users, draws = new.ratings.num_users, new.draws
    cuts = draws["cuts"].astype(np.float32)
    blocks, length, items, prior = user_task(new)
    rate = draws["noise_rate"].astype(np.float32)
    fresh, noise = _users_of_levels(of_users, length, blocks, items, prior, rate, cuts)
    found = {
        "user": with_rows(draws["user"], new.users, fresh, num_users),
        "noise": with_rows(draws["noise"], new.users, noise, num_users),
    }
    if len(new.new_items):
        (blocks, length, users, prior), rest = item_task(new, found)
        # A padded user has rated nothing, but a precision of 0 would be a division by it.
        precision = np.maximum(rest["noise"], np.finfo(np.float32).tiny).astype(np.float32)
        fresh = _items_of_levels(of_items, length, blocks, users, precision, prior, cuts)
        found["item"] = with_rows(draws["item"], new.new_items, fresh, new.ratings.num_items)
    return {**draws, **found}


@functools.partial(jax.jit, static_argnames=("num_users",))
def _users_of_levels(key, num_users, blocks, items, prior, noise_rate, cuts):
    """(draw, user, column) and (draw, user)."""

    def sweep(key, state, draw):
        items, prior, rate, cuts = draw
        return sweep_users(key, blocks, state, items, prior, rate, cuts)

    draws = (items, prior, noise_rate, cuts)
    noise = jnp.broadcast_to(NOISE_SHAPE / noise_rate[0], (num_users,))
    return _along_draws(key, sweep, Rows(_start(prior, num_users), noise), draws)


@functools.partial(jax.jit, static_argnames=("num_items",))
def _items_of_levels(key, num_items, blocks, users, noise, prior, cuts):
    """(draw, item, column)."""

    def sweep(key, state, draw):
        users, noise, prior, cuts = draw
        return sweep_items(key, blocks, state._replace(noise=noise), users, prior, cuts)

    draws = (users, noise, prior, cuts)
    return _along_draws(key, sweep, Rows(_start(prior, num_items), noise[0]), draws).rows


def _along_draws(key: jax.Array, sweep, start: Rows, draws) -> Rows:
    """States after some sweeps at each draw, from where the one before has led to."""
    of_first, of_rest = jax.random.split(key)

    def sweeps(key, count, state, draw):
        return jax.lax.fori_loop(
            0, count, lambda i, state: sweep(jax.random.fold_in(key, i), state, draw), state
        )

    def one(state, each):
        key, draw = each
        state = sweeps(key, _NUM_SWEEPS, state, draw)
        return state, state

    start = sweeps(of_first, _FIRST_SWEEPS, start, jax.tree.map(lambda leaf: leaf[0], draws))
    keys = jax.random.split(of_rest, len(draws[0]))
    return jax.lax.scan(one, start, (keys, draws))[1]


def _start(prior, num_rows: int) -> jax.Array:
    """The prior's means under the first draw."""
    return jnp.broadcast_to(prior["mean"][0], (num_rows, prior["precision"].shape[1]))
