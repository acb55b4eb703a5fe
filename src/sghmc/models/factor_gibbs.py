"""Gibbs updates of a matrix factorization: means and precisions of its priors, and its noise.

Every precision λ stands behind some centered normal numbers x and has a gamma prior:

    λ ~ Gamma(a, b),  x_i ~ N(0, 1/λ)   ⇒   λ | x ~ Gamma(a + n/2, b + Σx²/2)

`Evidence` holds n, Σx², a and b.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import random
from sghmc.models.codes import take_rows
from sghmc.models.factor_features import Features
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.priors import draw_precision
from sghmc.types import PyTree

SIDES = ("user", "item")

NOISE_SHAPE = 3.0
"""Of the gamma law of users' rating precisions: their standard deviation is 1/√3 of their mean."""

_SLOT_OF_MEANS = 1 << 31
"""Where the variates of means begin; those of precisions never come so far. (A second key would
have to be compiled.)"""


class Evidence(NamedTuple):
    """For each precision: how many numbers it stands behind, their squares, and its prior."""

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    squares: jax.Array
    shape: jax.Array
    rate: jax.Array


class ColumnPrior(NamedTuple):
    """The prior of the columns of a side: its factors, then its bias.

    x_ik ~ N(μ_k, 1/λ_k),  λ_k ~ Gamma(1, 1),  μ_k | λ_k ~ N(0, 1/λ_k) or μ_k = 0
    """

    groups: np.ndarray
    """The number of each column's precision."""
    has_mean: np.ndarray
    """Whether a column has a mean of its own."""

    @classmethod
    def shared(cls, rank: int) -> "ColumnPrior":
        """One precision for all factors and one for the bias; no means."""
        return cls(np.append(np.zeros(rank, np.int32), 1), np.zeros(rank + 1, bool))

    @classmethod
    def by_dimension(cls, rank: int) -> "ColumnPrior":
        """A precision for every column, and a mean for every factor."""
        return cls(np.arange(rank + 1), np.arange(rank + 1) < rank)

    def evidence(self, rows: jax.Array, weights: "WeightEvidence | None" = None) -> Evidence:
        """What the precisions are drawn from.

        A mean is integrated out, which leaves Σ(x − x̄)² + n x̄²/(n + 1). With side information
        `rows` are what features leave unexplained, and weights count, too.
        """
        count, average = len(rows), jnp.mean(rows, axis=0)
        share = np.where(self.has_mean, count / (count + 1), count).astype(np.float32)
        squares = jnp.sum((rows - average[None]) ** 2, axis=0) + share * average**2
        if weights is not None:
            count, squares = count + weights.count, squares + weights.squares
        counts = jnp.asarray(count * np.bincount(self.groups), jnp.float32)
        totals = jnp.zeros_like(counts).at[self.groups].add(squares)
        return Evidence(counts, totals, jnp.ones_like(counts), jnp.ones_like(counts))

    def with_means(self, normal: jax.Array, rows: jax.Array, drawn: jax.Array) -> PyTree:
        """The precision of each column, and its mean: μ | λ ~ N(n x̄/(n + 1), 1/(λ(n + 1)))."""
        precision = drawn[self.groups]
        count, average = len(rows), jnp.mean(rows, axis=0)
        mean = count / (count + 1) * average + normal / jnp.sqrt(precision * (count + 1))
        return {"mean": jnp.where(self.has_mean, mean, 0.0), "precision": precision}


class WeightEvidence(NamedTuple):
    """What the weights of features say of the columns' precisions: their number, and Σγ B²."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    squares: jax.Array


class SidePrior(NamedTuple):
    """The prior of a side's rows: of its columns and, where there are any, of its features."""

    columns: ColumnPrior
    features: Features | None

    def evidence(self, rows: jax.Array, hyper: PyTree) -> list[Evidence]:
        """Of the columns' precisions; with features also, without squares, of their scales γ."""
        if self.features is None:
            return [self.columns.evidence(rows)]
        width, weights = rows.shape[1], hyper["weights"]
        relative = self.features.relative_precision(hyper["weight_scale"], width)
        of_weights = WeightEvidence(len(weights), jnp.sum(relative * weights**2, axis=0))
        unexplained = rows - hyper["center"] + hyper["mean"][None]
        count = self.features.scale_shape(width).ravel()
        unscaled = Evidence(
            count, jnp.zeros_like(count), jnp.ones_like(count), jnp.ones_like(count)
        )
        return [self.columns.evidence(unexplained, of_weights), unscaled]

    def fresh(
        self,
        key: jax.Array,
        normal: jax.Array,
        rows: jax.Array,
        hyper: PyTree,
        drawn: list[jax.Array],
    ) -> PyTree:
        """Precisions and means; with features then γ given λ, and (μ, B) given both."""
        if self.features is None:
            return self.columns.with_means(normal, rows, *drawn)
        precision = drawn[0][self.columns.groups]
        squares = self.features.scale_squares(hyper["weights"], precision)
        scale = drawn[1].reshape(squares.shape) / (1 + squares / 2)
        num_rows, width = rows.shape
        count = num_rows + 1 + len(hyper["weights"])
        normals = random.normals(random.words(key), 0, 1, count * width).reshape(count, width)
        found = self.features.draw(normals, rows, precision, scale, self.columns.has_mean)
        return {"precision": precision, "weight_scale": scale, **found}


class SharedNoise(NamedTuple):
    """All ratings have one precision: τ ~ Gamma(1, 1)."""

    def start(self) -> PyTree:
        return {"noise": 1.0}

    def of_users(self, hyper: PyTree, users: jax.Array) -> jax.Array:
        """The precision of ratings by these users."""
        return hyper["noise"]

    def evidence(self, squares: Callable[[PyTree], jax.Array], posterior: Posterior) -> Evidence:
        """What τ is drawn from; `squares` gives the squared errors of some rows."""
        total = posterior.sum_over_data(squares)
        count = jnp.asarray(posterior.num_examples, jnp.float32)
        return Evidence(count[None], total[None], jnp.ones(1), jnp.ones(1))

    def fresh(self, drawn: jax.Array) -> PyTree:
        return {"noise": drawn[0]}

    def average(self, hyper: PyTree, num_ratings: jax.Array) -> jax.Array:
        """The mean precision of all ratings, given how many each user has."""
        return hyper["noise"]


class UserNoise(NamedTuple):
    """Every user's ratings have a precision of their own: τ_i ~ Gamma(3, ρ), ρ ~ Gamma(1, 1)."""

    num_users: int

    def start(self) -> PyTree:
        return {"noise": jnp.ones(self.num_users), "noise_rate": jnp.array(NOISE_SHAPE)}

    def of_users(self, hyper: PyTree, users: jax.Array) -> jax.Array:
        return take_rows(hyper["noise"], users)

    def evidence(self, squares: Callable[[PyTree], jax.Array], posterior: Posterior) -> Evidence:
        """What each τ_i is drawn from, and last a Gamma(1 + 3 · users, 1) for ρ."""

        def weighted(weights):
            def of_rows(rows):
                error = squares(rows)
                terms = jnp.stack([jnp.ones_like(error), error], axis=-1)
                return jnp.sum(take_rows(weights, rows["user"]) * terms, axis=-1)

            return posterior.sum_over_data(of_rows)

        # The derivative of a weighted sum by a user's weights is the sum over that user's ratings.
        count, total = jax.grad(weighted)(jnp.zeros((self.num_users, 2))).T
        rate = jnp.broadcast_to(posterior.hyper["noise_rate"], count.shape)
        return Evidence(
            jnp.append(count, 2 * NOISE_SHAPE * self.num_users),
            jnp.append(total, 0.0),
            jnp.append(jnp.full_like(count, NOISE_SHAPE), 1.0),
            jnp.append(rate, 1.0),
        )

    def fresh(self, drawn: jax.Array) -> PyTree:
        """All τ_i, and ρ given them: Gamma(1 + 3 · users, 1 + Σ τ_i)."""
        noise, unscaled = drawn[:-1], drawn[-1]
        return {"noise": noise, "noise_rate": unscaled / (1 + jnp.sum(noise))}

    def average(self, hyper: PyTree, num_ratings: jax.Array) -> jax.Array:
        return jnp.average(hyper["noise"], weights=num_ratings)


Noise: TypeAlias = SharedNoise | UserNoise


def update(
    key: jax.Array,
    sides: dict[str, jax.Array],
    priors: dict[str, SidePrior],
    noise: Noise | None,
    squares: Callable[[PyTree], jax.Array] | None,
    posterior: Posterior,
) -> PyTree:
    """All hyperparameters, fresh from their law given the rows of both sides."""
    hyper = posterior.hyper
    parts = {side: priors[side].evidence(sides[side], hyper[side]) for side in SIDES}
    if noise is not None and squares is not None:
        parts["noise"] = [noise.evidence(squares, posterior)]
    flat = [each for part in parts.values() for each in part]
    # All in one call: every call compiles a rejection sampler of its own.
    count, total, shape, rate = (jnp.concatenate(part) for part in zip(*flat, strict=True))
    drawn = iter(
        jnp.split(
            draw_precision(key, shape, rate, count, total),
            np.cumsum([len(part.count) for part in flat[:-1]]),
        )
    )
    found = {name: [next(drawn) for _ in part] for name, part in parts.items()}
    width = sides[SIDES[0]].shape[1]
    normals = random.normals(random.words(key), 0, 1, len(SIDES) * width, slot=_SLOT_OF_MEANS)
    fresh = {
        side: priors[side].fresh(
            jax.random.fold_in(key, number), normal, sides[side], hyper[side], found[side]
        )
        for number, (side, normal) in enumerate(zip(SIDES, normals.reshape(-1, width), strict=True))
    }
    of_noise = {} if noise is None or squares is None else noise.fresh(*found["noise"])
    return {**hyper, **fresh, **of_noise}
