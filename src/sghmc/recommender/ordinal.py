"""Bayesian matrix factorization of ratings that are levels: stars are not metres.

Rows of new users and items given the other side's, where ratings are levels: a short chain.

Given hidden numbers z a row has the law of `factor_conditional`; given the row, hidden numbers are
normal between their cuts. Draw after draw of the other side the rows go on from where they are: a
few sweeps each, since one draw is much like the one before.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from sghmc.core import random
from sghmc.core.checks import checked_codes, take_rows
from sghmc.core.random import gammas
from sghmc.posterior.posterior import Posterior
from sghmc.recommender import factor_gibbs
from sghmc.recommender.factor_gibbs import NOISE_SHAPE, ColumnPrior, Features, UserNoise
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.recommender.fold_in import Blocks, moments, rows_given_noise
from sghmc.types import PyTree

_FAR = 1e4
"""Beyond the first and the last cut: so far that nothing lies outside."""
_TAIL = -10.0
"""Below this a normal law's own quantile function runs out of float32."""
_STEP = 2.0
"""Of proposed cuts, in units of what their levels' ratings can tell."""


class OrdinalModel(AbstractFactorization):
    """Ratings are levels 0, …, K − 1: a hidden number falls between two cuts.

        z_ij ~ N(u_i·v_j + a_i + b_j, 1/τ_i),   level l  ⇔  t_{l−1} < z_ij ≤ t_l
        τ_i ~ Gamma(3, ρ),  ρ ~ Gamma(1, 1),  cuts t_0 < … < t_{K−2} uniform

    The first and the last cut stay where they are, which fixes the units; t_{−1} and t_{K−1} are
    infinite. Rows have the priors of `FactorizationModel` with prior="dimension". The likelihood,
    Φ(√τ_i(t_l − m)) − Φ(√τ_i(t_{l−1} − m)), is what steps see. A Gibbs update moves the other cuts
    by Metropolis steps, every second one at a time, each accepted by its own levels' ratings; then
    it draws hidden numbers (Albert & Chib 1993), given which precisions have gamma laws.

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `features` | {"user": …, "item": …}: what is known of them, see `factor_features` |

    >>> model = OrdinalModel(num_users=3, num_items=4, rank=2)
    >>> posterior = model.posterior([0, 2], [1, 3], [0, 4], cuts=[-1.5, -0.5, 0.5, 1.5])
    >>> sorted(posterior.hyper)
    ['cuts', 'item', 'level_counts', 'noise', 'noise_rate', 'user']
    """

    num_users: int
    num_items: int
    rank: int
    features: dict[str, Features]

    def __init__(self, num_users: int, num_items: int, rank: int, features=None):
        self.num_users, self.num_items, self.rank = num_users, num_items, rank
        self.features = features or {}

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        return log_interval(*self._bounds(params, example, hyper, hyper["cuts"]))

    def posterior(self, user, item, level, cuts, **constants: jax.Array) -> Posterior:
        """The posterior given codes of users and items, levels, and where the cuts start."""
        cuts = np.asarray(cuts, np.float32)
        if cuts.ndim != 1 or len(cuts) < 1 or np.any(np.diff(cuts) <= 0):
            raise ValueError(f"cuts must be a vector of increasing numbers, but are {cuts}.")
        level = checked_codes(level, len(cuts) + 1, "level").astype(np.int32)
        data = {
            "user": checked_codes(user, self.num_users, "user").astype(np.int32),
            "item": checked_codes(item, self.num_items, "item").astype(np.int32),
            "level": level,
            "number": np.arange(len(level), dtype=np.int32),
        }
        hyper = {
            **self.prior_start(),
            **self._noise.start(),
            "cuts": cuts,
            "level_counts": np.bincount(level, minlength=len(cuts) + 1).astype(np.float32),
            **constants,
        }
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        of_cuts, of_latents, of_rest = jax.random.split(key, 3)
        cuts = self._fresh_cuts(of_cuts, params, posterior)
        posterior = posterior.with_hyper({**posterior.hyper, "cuts": cuts})
        words = random.words(of_latents)

        def squares(rows: PyTree) -> jax.Array:
            """(z − m)² of hidden numbers z given the levels."""
            uniform = random.uniforms_at(words, rows["number"])
            bounds = self._bounds(params, rows, posterior.hyper, cuts)
            noise = self._noise.of_users(posterior.hyper, rows["user"])
            return draw_inside(uniform, *bounds) ** 2 / noise

        return factor_gibbs.update(
            of_rest, self.sides(params), self.priors, self._noise, squares, posterior
        )

    def precisions(self, hyper: PyTree, counts: PyTree) -> dict[str, jax.Array]:
        return {"user": hyper["noise"], "item": self._noise.average(hyper, counts["user"])}

    @property
    def columns(self) -> ColumnPrior:
        return ColumnPrior.by_dimension(self.rank)

    @property
    def _noise(self) -> UserNoise:
        return UserNoise(self.num_users)

    def _bounds(
        self, params: jax.Array, rows: PyTree, hyper: PyTree, cuts: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Of √τ(z − m), given levels."""
        mean = self.predict(params, rows["user"], rows["item"])
        noise = self._noise.of_users(hyper, rows["user"])
        return bounds_of(rows["level"], mean, noise, cuts)

    def _fresh_cuts(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> jax.Array:
        """One Metropolis step of each cut but the first and the last, hidden numbers left out."""
        hyper = posterior.hyper
        cuts, counts = hyper["cuts"], hyper["level_counts"]
        count = len(cuts)
        scale = _STEP * (jnp.mean(hyper["noise"]) * (counts[1:] + counts[:-1]) + 1) ** -0.5
        of_moves, of_choices = jax.random.split(key)
        move = scale * jax.random.normal(of_moves, (count,))
        log_uniform = jnp.log1p(-jax.random.uniform(of_choices, (count,)))
        number = np.arange(count)
        is_free = (number > 0) & (number < count - 1)
        for parity in (0, 1):
            is_moved = is_free & (number % 2 == parity)
            if not is_moved.any():
                continue
            proposed = jnp.where(is_moved, cuts + move, cuts)
            is_ordered = (proposed > jnp.roll(proposed, 1)) & (proposed < jnp.roll(proposed, -1))
            proposed = jnp.where(is_moved & ~is_ordered, cuts, proposed)

            def gains(rows: PyTree, cuts=cuts, proposed=proposed, is_moved=is_moved) -> jax.Array:
                """(row, cut): a level has at most one cut that moves."""
                new, old = (
                    log_interval(*self._bounds(params, rows, hyper, each))
                    for each in (proposed, cuts)
                )
                level = rows["level"][:, None]
                is_near = (level == number[None]) | (level == number[None] + 1)
                is_near = is_near & is_moved[None]
                return jnp.where(is_near, (new - old)[:, None], 0)

            gain = posterior.sum_over_data(gains)
            cuts = jnp.where(is_ordered & (log_uniform < gain), proposed, cuts)
        return cuts


def bounds_of(
    level: jax.Array, mean: jax.Array, noise: jax.Array, cuts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Where √τ(z − m) lies between, given levels."""
    far = jnp.full(1, _FAR, cuts.dtype)
    edges = jnp.concatenate([-far, cuts, far])
    root = jnp.sqrt(noise)
    return tuple((take_rows(edges, level + end) - mean) * root for end in (0, 1))  # pyright: ignore


@jax.custom_jvp
def log_interval(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """log(Φ(upper) − Φ(lower)), in either tail."""
    low, high, _ = _on_the_left(lower, upper)
    top = special.log_ndtr(high)
    return top + jnp.log(-jnp.expm1(special.log_ndtr(low) - top))


@log_interval.defjvp
def _log_interval_jvp(primals, tangents):
    value = log_interval(*primals)
    low, high = (jnp.exp(-0.5 * x**2 - _HALF_LOG_TAU - value) for x in primals)
    return value, high * tangents[1] - low * tangents[0]


_HALF_LOG_TAU = float(0.5 * np.log(2 * np.pi))


def draw_inside(uniform: jax.Array, lower: jax.Array, upper: jax.Array) -> jax.Array:
    """A standard normal number between two, by inversion.

    Far out in a tail P(x < z) is about φ(z)/|z|, of which the exponential decides.
    """
    low, high, is_turned = _on_the_left(lower, upper)
    top = special.log_ndtr(high)
    ratio = jnp.exp(special.log_ndtr(low) - top)
    log_share = jnp.log(ratio + (1 - uniform) * (1 - ratio))
    near = special.ndtri(jnp.exp(jnp.maximum(top + log_share, -80.0)))
    far = -jnp.sqrt(high**2 - 2 * log_share)
    drawn = jnp.clip(jnp.where(high < _TAIL, far, near), low, high)
    return jnp.where(is_turned, -drawn, drawn)


def _on_the_left(lower: jax.Array, upper: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The interval, turned around 0 where more of it lies on the right; and whether it was."""
    is_turned = lower + upper > 0
    low = jnp.where(is_turned, -upper, lower)
    return low, jnp.where(is_turned, -lower, upper), is_turned


# Rows of new users and items given the other side's, where ratings are levels: a short chain.


class Rows(NamedTuple):
    """Rows that are drawn, and the precisions of users: their own, or their raters'."""

    rows: jax.Array
    noise: jax.Array


def sweep_users(
    key: jax.Array,
    blocks: Blocks,
    state: Rows,
    items: jax.Array,
    prior: PyTree,
    noise_rate: jax.Array,
    cuts: jax.Array,
) -> Rows:
    """Hidden numbers, rows and precisions of users, each given the rest; ratings are levels."""
    of_hidden, of_rows, of_noise = jax.random.split(key, 3)
    owned = state.noise[blocks.owner][:, None]
    hidden = _hidden(of_hidden, blocks, state.rows, items, owned, cuts)
    found = moments(hidden, len(state.rows), items, prior["mean"], jnp.ones_like(blocks.rating))
    weighted = found._replace(
        gram=state.noise[:, None, None] * found.gram, cross=state.noise[:, None] * found.cross
    )
    normal = jax.random.normal(of_rows, found.cross.shape)
    rows = rows_given_noise(normal, weighted, prior)
    error = hidden.rating - _means(blocks, rows, items)
    squares = jax.ops.segment_sum(
        jnp.sum(blocks.is_real * error**2, axis=1), blocks.owner, len(rows)
    )
    gamma = gammas(random.words(of_noise), NOISE_SHAPE + found.count / 2)
    return Rows(rows, gamma / (noise_rate + squares / 2))


def sweep_items(
    key: jax.Array,
    blocks: Blocks,
    state: Rows,
    users: jax.Array,
    prior: PyTree,
    cuts: jax.Array,
) -> Rows:
    """Hidden numbers and rows of items; `state.noise` has the precisions of all who rated them."""
    of_hidden, of_rows = jax.random.split(key)
    noise = state.noise[blocks.other]
    hidden = _hidden(of_hidden, blocks, state.rows, users, noise, cuts)
    found = moments(hidden, len(state.rows), users, prior["mean"], noise)
    normal = jax.random.normal(of_rows, found.cross.shape)
    return Rows(rows_given_noise(normal, found, prior), state.noise)


def _hidden(
    key: jax.Array,
    blocks: Blocks,
    rows: jax.Array,
    others: jax.Array,
    noise: jax.Array,
    cuts: jax.Array,
) -> Blocks:
    """The blocks with hidden numbers in the place of levels."""
    mean = _means(blocks, rows, others)
    bounds = bounds_of(blocks.rating.astype(jnp.int32), mean, noise, cuts)
    inside = draw_inside(jax.random.uniform(key, mean.shape), *bounds)
    return blocks._replace(rating=mean + inside / jnp.sqrt(noise))


def _means(blocks: Blocks, rows: jax.Array, others: jax.Array) -> jax.Array:
    """Of the pairs in blocks: (block, place)."""
    mine, other = rows[blocks.owner], take_rows(others, blocks.other)
    product = jnp.einsum("bk,bnk->bn", mine[:, :-1], other[..., :-1])
    return product + mine[:, -1:] + other[..., -1]
