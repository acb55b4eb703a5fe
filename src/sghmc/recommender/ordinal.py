"""Bayesian matrix factorization for ordinal ratings (cumulative probit).

New rows given the other side's are drawn by Gibbs sweeps: given hidden numbers z, a row has the law
of `fold_in`; given the row, hidden numbers are normal between their cuts.
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
from sghmc.recommender.factor_gibbs import NOISE_SHAPE, UserNoise
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.recommender.fold_in import Blocks, moments, rows_given_noise
from sghmc.types import PyTree

_OUTERMOST_CUT = 1e4
"""Stands for infinity beyond the first and the last cut."""
_MIN_QUANTILE = -10.0
"""Below this number float32 does not hold the normal distribution function."""
_CUT_STEP_FACTOR = 2.0
"""Step of proposed cuts, over the standard error that their levels' ratings allow."""


class OrdinalModel(AbstractFactorization):
    """Ratings are levels 0, …, K − 1: a hidden number falls between two cuts.

        z_ij ~ N(u_i·v_j + a_i + b_j, 1/τ_i),   level l  ⇔  t_{l−1} < z_ij ≤ t_l
        τ_i ~ Gamma(3, ρ),  ρ ~ Gamma(1, 1),  cuts t_0 < … < t_{K−2} uniform

    The first and the last cut stay where they are, which fixes the units; t_{−1} and t_{K−1} are
    infinite. Rows have the priors of `FactorizationModel` with prior="dimension". The likelihood,
    Φ(√τ_i(t_l − m)) − Φ(√τ_i(t_{l−1} − m)), has no hidden numbers. A Gibbs update moves the other
    cuts by Metropolis steps, every second one at a time, each accepted by its own levels' ratings;
    then it draws hidden numbers (Albert & Chib 1993), given which precisions have gamma laws.

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `features` | {"user": …, "item": …}: their `Features`, if any |

    >>> model = OrdinalModel(num_users=3, num_items=4, rank=2)
    >>> posterior = model.posterior([0, 2], [1, 3], [0, 4], cuts=[-1.5, -0.5, 0.5, 1.5])
    >>> sorted(posterior.hyper)
    ['cuts', 'item', 'level_counts', 'noise', 'noise_rate', 'user']
    """

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        return log_interval(*self._bounds(params, example, hyper, hyper["cuts"]))

    def posterior(self, user, item, level, cuts, **constants: jax.Array) -> Posterior:
        """Return the posterior given codes of users and items, levels, and starting cuts."""
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
            """Draw hidden numbers z given the levels, and return (z − m)²."""
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
    def _noise(self) -> UserNoise:
        return UserNoise(self.num_users)

    def _bounds(
        self, params: jax.Array, rows: PyTree, hyper: PyTree, cuts: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Bounds of √τ(z − m), given levels."""
        mean = self.predict(params, rows["user"], rows["item"])
        noise = self._noise.of_users(hyper, rows["user"])
        return bounds_of(rows["level"], mean, noise, cuts)

    def _fresh_cuts(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> jax.Array:
        """Move each cut but the first and the last by a Metropolis step without hidden numbers."""
        hyper = posterior.hyper
        cuts, counts = hyper["cuts"], hyper["level_counts"]
        count = len(cuts)
        scale = (
            _CUT_STEP_FACTOR * (jnp.mean(hyper["noise"]) * (counts[1:] + counts[:-1]) + 1) ** -0.5
        )
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
                """Gain of log-likelihood (row, cut); at most one cut of a level moves."""
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
    """Return the bounds of √τ(z − m), given levels."""
    far = jnp.full(1, _OUTERMOST_CUT, cuts.dtype)
    edges = jnp.concatenate([-far, cuts, far])
    root = jnp.sqrt(noise)
    return tuple((take_rows(edges, level + end) - mean) * root for end in (0, 1))  # pyright: ignore


@jax.custom_jvp
def log_interval(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Return log(Φ(upper) − Φ(lower)), accurate in either tail."""
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
    """Draw a standard normal number between two bounds, by inversion.

    Far in the tail, P(x < z) ≈ φ(z)/|z| is inverted by its exponential alone.
    """
    low, high, is_turned = _on_the_left(lower, upper)
    top = special.log_ndtr(high)
    ratio = jnp.exp(special.log_ndtr(low) - top)
    log_share = jnp.log(ratio + (1 - uniform) * (1 - ratio))
    near = special.ndtri(jnp.exp(jnp.maximum(top + log_share, -80.0)))
    far = -jnp.sqrt(high**2 - 2 * log_share)
    drawn = jnp.clip(jnp.where(high < _MIN_QUANTILE, far, near), low, high)
    return jnp.where(is_turned, -drawn, drawn)


def _on_the_left(lower: jax.Array, upper: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mirror an interval at 0 if most of it is positive, where Φ would round to 1.

    Returns its ends, and whether they were mirrored.
    """
    is_turned = lower + upper > 0
    low = jnp.where(is_turned, -upper, lower)
    return low, jnp.where(is_turned, -lower, upper), is_turned


# Rows of new users and items given the other side's.


class LatentRows(NamedTuple):
    """Rows that sweeps draw, and noise precisions: of the users, or of the items' raters."""

    rows: jax.Array
    noise: jax.Array


def sweep_users(
    key: jax.Array,
    blocks: Blocks,
    state: LatentRows,
    items: jax.Array,
    prior: PyTree,
    noise_rate: jax.Array,
    cuts: jax.Array,
) -> LatentRows:
    """Draw hidden numbers, rows and precisions of users, each given the rest."""
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
    return LatentRows(rows, gamma / (noise_rate + squares / 2))


def sweep_items(
    key: jax.Array,
    blocks: Blocks,
    state: LatentRows,
    users: jax.Array,
    prior: PyTree,
    cuts: jax.Array,
) -> LatentRows:
    """Draw hidden numbers and rows of items; `state.noise` has the precisions of their raters."""
    of_hidden, of_rows = jax.random.split(key)
    noise = state.noise[blocks.other]
    hidden = _hidden(of_hidden, blocks, state.rows, users, noise, cuts)
    found = moments(hidden, len(state.rows), users, prior["mean"], noise)
    normal = jax.random.normal(of_rows, found.cross.shape)
    return LatentRows(rows_given_noise(normal, found, prior), state.noise)


def _hidden(
    key: jax.Array,
    blocks: Blocks,
    rows: jax.Array,
    others: jax.Array,
    noise: jax.Array,
    cuts: jax.Array,
) -> Blocks:
    """Return the blocks with hidden numbers in place of levels."""
    mean = _means(blocks, rows, others)
    bounds = bounds_of(blocks.rating.astype(jnp.int32), mean, noise, cuts)
    inside = draw_inside(jax.random.uniform(key, mean.shape), *bounds)
    return blocks._replace(rating=mean + inside / jnp.sqrt(noise))


def _means(blocks: Blocks, rows: jax.Array, others: jax.Array) -> jax.Array:
    """Return the means of the pairs in blocks: (block, place)."""
    mine, other = rows[blocks.owner], take_rows(others, blocks.other)
    product = jnp.einsum("bk,bnk->bn", mine[:, :-1], other[..., :-1])
    return product + mine[:, -1:] + other[..., -1]
