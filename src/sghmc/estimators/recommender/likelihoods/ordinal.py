"""Ratings are levels: a hidden number around the pair's mean falls between cuts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from sghmc.estimators.recommender.fold_in import (
    Newcomers,
    item_task,
    on_processor,
    user_task,
    with_rows,
)
from sghmc.estimators.recommender.likelihoods.base import (
    Likelihood,
    Outcome,
    Problem,
    Schedule,
    counted,
)
from sghmc.estimators.recommender.likelihoods.gaussian import (
    GIBBS_EVERY,
    batch_of,
    between,
    center_and_spread,
    levels_of,
    resumed_noise,
    scale_of,
    start_noise,
)
from sghmc.estimators.rows import padded, padded_size
from sghmc.models.factor_gibbs import NOISE_SHAPE
from sghmc.models.ordinal import OrdinalModel
from sghmc.models.ordinal_conditional import Rows, sweep_items, sweep_users

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
        return on_processor(lambda: _folded_in(key, new))


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


def _folded_in(key: jax.Array, new: Newcomers) -> dict[str, np.ndarray]:
    of_users, of_items = jax.random.split(key)
    num_users, draws = new.ratings.num_users, new.draws
    cuts = draws["cuts"].astype(np.float32)
    blocks, length, items, prior = user_task(new)
    rate = draws["noise_rate"].astype(np.float32)
    fresh, noise = _users(of_users, length, blocks, items, prior, rate, cuts)
    found = {
        "user": with_rows(draws["user"], new.users, fresh, num_users),
        "noise": with_rows(draws["noise"], new.users, noise, num_users),
    }
    if len(new.new_items):
        (blocks, length, users, prior), rest = item_task(new, found)
        # A padded user has rated nothing, but a precision of 0 would be a division by it.
        precision = np.maximum(rest["noise"], np.finfo(np.float32).tiny).astype(np.float32)
        fresh = _items(of_items, length, blocks, users, precision, prior, cuts)
        found["item"] = with_rows(draws["item"], new.new_items, fresh, new.ratings.num_items)
    return {**draws, **found}


@functools.partial(jax.jit, static_argnames=("num_users",))
def _users(key, num_users, blocks, items, prior, noise_rate, cuts):
    """(draw, user, column) and (draw, user)."""

    def sweep(key, state, draw):
        items, prior, rate, cuts = draw
        return sweep_users(key, blocks, state, items, prior, rate, cuts)

    draws = (items, prior, noise_rate, cuts)
    noise = jnp.broadcast_to(NOISE_SHAPE / noise_rate[0], (num_users,))
    return _along_draws(key, sweep, Rows(_start(prior, num_users), noise), draws)


@functools.partial(jax.jit, static_argnames=("num_items",))
def _items(key, num_items, blocks, users, noise, prior, cuts):
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
