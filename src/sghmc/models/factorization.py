"""Bayesian matrix factorization of ratings."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.adapt import Adapt
from sghmc.core import random
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.priors import draw_precision
from sghmc.types import PyTree

SIDES = ("user", "item")

_NOISE_SHAPE = 3.0
"""Of the Gamma law of users' rating precisions, whose standard deviation is 1/√3 of their mean."""


class _Normals(NamedTuple):
    """How many centered normal numbers a precision stands behind, their squares, and its prior."""

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    squares: jax.Array
    shape: jax.Array
    rate: jax.Array


class MatrixFactorization(eqx.Module):
    """Ratings as products of user and item factors, plus biases.

        y_ij ~ N(u_i·v_j + a_i + b_j, 1/τ_i)
        noise="shared":     τ_i = τ, one for all, τ ~ Gamma(1, 1)
        noise="user":       τ_i ~ Gamma(3, ρ),  ρ ~ Gamma(1, 1)
        prior="shared":     u ~ N(0, 1/λ_U), v ~ N(0, 1/λ_V), a ~ N(0, 1/λ_a), b ~ N(0, 1/λ_b)
        prior="dimension":  u_ik ~ N(μ_k, 1/λ_k), v likewise; (μ_k, λ_k) normal–gamma

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `prior` | "shared", the paper's; "dimension", a mean and a precision for each dimension |
    | `noise` | "shared", the paper's; "user": some rate more consistently than others |

    The parameters are one array with a row for each user, then one for each item: its factors, then
    its bias; `sides` takes them apart. (One array, since on a GPU each costs launches in a step.)
    All other precisions have Gamma(1, 1) priors, and all are drawn by Gibbs steps, τ from a pass
    over all ratings. Ratings should be centered and of order 1. With prior="dimension" this is BPMF
    (Salakhutdinov & Mnih, ICML 2008) with a diagonal precision.

    >>> import jax
    >>> model = MatrixFactorization(num_users=3, num_items=4, rank=2)
    >>> params = model.init(jax.random.key(0))
    >>> model.predict(params, jax.numpy.array([0, 1]), jax.numpy.array([3, 2])).shape
    (2,)
    """

    num_users: int
    num_items: int
    rank: int
    prior: Literal["shared", "dimension"] = "shared"
    noise: Literal["shared", "user"] = "shared"

    def __check_init__(self):
        for name in ("num_users", "num_items", "rank"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, but is {value!r}.")
        if self.prior not in ("shared", "dimension"):
            raise ValueError(f'prior must be "shared" or "dimension", but is {self.prior!r}.')
        if self.noise not in ("shared", "user"):
            raise ValueError(f'noise must be "shared" or "user", but is {self.noise!r}.')

    def init(self, key: jax.Array, scale: float = 0.03) -> jax.Array:
        """Factors from N(0, scale²), biases 0."""
        factors = jax.random.normal(key, (self.num_users + self.num_items, self.rank))
        return jnp.pad(scale * factors, ((0, 0), (0, 1)))

    def sides(self, params: jax.Array) -> dict[str, jax.Array]:
        """The rows of users and of items, their last column the bias."""
        return {"user": params[: self.num_users], "item": params[self.num_users :]}

    def predict(self, params: jax.Array, users: jax.Array, items: jax.Array) -> jax.Array:
        """Mean ratings of pairs (or of one pair)."""
        user, item = _rows(params, users), _rows(params, self.num_users + items)
        product = jnp.sum(user[..., :-1] * item[..., :-1], axis=-1)
        return product + user[..., -1] + item[..., -1]

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        noise = hyper["noise"]
        if self.noise == "user":
            noise = _rows(noise, example["user"])
        return 0.5 * jnp.log(noise) - 0.5 * noise * self._square_error(params, example)

    def log_prior(self, params: jax.Array, hyper: PyTree) -> jax.Array:
        user, item = (hyper[side] for side in SIDES)
        # A choice row by row, not two slices: their gradients would be padded and added up.
        is_user = (jnp.arange(len(params)) < self.num_users)[:, None]
        mean, precision = (
            jnp.where(is_user, user[part][None], item[part][None]) for part in ("mean", "precision")
        )
        squares = jnp.sum(precision * (params - mean) ** 2)
        logs = [jnp.sum(jnp.log(side["precision"])) for side in (user, item)]
        return 0.5 * (self.num_users * logs[0] + self.num_items * logs[1] - squares)

    def posterior(self, user, item, rating, **constants: jax.Array) -> Posterior:
        """The posterior given codes of users and items, and their ratings.

        Its hyperparameters are the rating precision "noise" (with noise="user" one for each, and
        the "noise_rate" ρ of their law) and, for "user" and "item", the "mean" and the "precision"
        of each column. `constants` join them and never change: the number of a fold, say, where
        posteriors are stacked.
        """
        data = {
            "user": _codes(user, self.num_users, "user"),
            "item": _codes(item, self.num_items, "item"),
            "rating": np.asarray(rating, np.float32),
        }
        if not np.all(np.isfinite(data["rating"])):
            raise ValueError("rating holds NaN or infinite numbers: drop those rows.")
        width = self.rank + 1
        hyper = {side: {"mean": jnp.zeros(width), "precision": jnp.ones(width)} for side in SIDES}
        if self.noise == "user":
            hyper |= {"noise": jnp.ones(self.num_users), "noise_rate": jnp.array(_NOISE_SHAPE)}
        return Posterior(
            self.log_likelihood, self.log_prior, data, {"noise": 1.0, **hyper, **constants}
        )

    def gibbs(self, every: int, start: int = 0) -> Gibbs:
        """Fresh precisions (and means) every so many steps."""
        return Gibbs(self._update, every, start)

    def adapt(
        self, counts: Callable[[PyTree], PyTree], every: int, until: int, start: int = 0
    ) -> Adapt:
        """Masses matched to each row: M_i = τ_i n_i E[v²] + λ, for a user with n_i ratings.

        E[v²] is the mean square of the items' factors in each dimension, weighted by their ratings;
        items likewise, with the mean τ of ratings, and biases with 1 for E[v²]. So all rows have
        the same frequency, where popular items are a thousand times stiffer than rare ones.
        `counts(hyper)` gives the numbers of ratings {"user": …, "item": …}.
        """

        def update(kernel, state, hyper):
            mass = self._mass(state.position, hyper, counts(hyper))
            return kernel.with_mass(state, mass)

        return Adapt(update, every, until, start)

    def _update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        sides = self.sides(params)
        normals = [*(self._spread(sides[side]) for side in SIDES), self._errors(params, posterior)]
        # All in one call: every call compiles a rejection sampler of its own.
        count, squares, shape, rate = (
            jnp.concatenate(parts) for parts in zip(*normals, strict=True)
        )
        *precisions, noise = jnp.split(
            draw_precision(key, shape, rate, count, squares),
            np.cumsum([len(part.count) for part in normals[:-1]]),
        )
        width = self.rank + 1
        # Slots that the precisions' variates never come to: a key of their own takes compiling.
        variates = random.normals(random.words(key), 0, 1, len(SIDES) * width, slot=1 << 31)
        fresh = {
            side: self._with_means(normal, sides[side], precision[self._groups])
            for side, precision, normal in zip(
                SIDES, precisions, variates.reshape(-1, width), strict=True
            )
        }
        return {**posterior.hyper, **fresh, **self._with_rate(noise)}

    def _square_error(self, params: jax.Array, rows: PyTree) -> jax.Array:
        return (self.predict(params, rows["user"], rows["item"]) - rows["rating"]) ** 2

    def _errors(self, params: jax.Array, posterior: Posterior) -> _Normals:
        """What rating precisions are drawn from, by a pass over all ratings.

        With one for each user, another number comes last: Gamma(1 + 3 · users, 1), for ρ.
        """
        if self.noise == "shared":
            squares = posterior.sum_over_data(lambda rows: self._square_error(params, rows))
            count = jnp.asarray(posterior.num_examples, jnp.float32)
            return _Normals(count[None], squares[None], jnp.ones(1), jnp.ones(1))

        def weighted(weights):
            def of_rows(rows):
                error = self._square_error(params, rows)
                terms = jnp.stack([jnp.ones_like(error), error], axis=-1)
                return jnp.sum(_rows(weights, rows["user"]) * terms, axis=-1)

            return posterior.sum_over_data(of_rows)

        # The derivative of a weighted sum by a user's weights is the sum over that user's ratings.
        count, squares = jax.grad(weighted)(jnp.zeros((self.num_users, 2))).T
        rate = jnp.broadcast_to(posterior.hyper["noise_rate"], count.shape)
        return _Normals(
            jnp.append(count, 2 * _NOISE_SHAPE * self.num_users),
            jnp.append(squares, 0.0),
            jnp.append(jnp.full_like(count, _NOISE_SHAPE), 1.0),
            jnp.append(rate, 1.0),
        )

    def _with_rate(self, noise: jax.Array) -> PyTree:
        """Rating precisions, and ρ given them: Gamma(1 + 3 · users, 1 + Σ τ_i)."""
        if self.noise == "shared":
            return {"noise": noise[0]}
        noise, unscaled = noise[:-1], noise[-1]
        return {"noise": noise, "noise_rate": unscaled / (1 + jnp.sum(noise))}

    @property
    def _groups(self) -> np.ndarray:
        """Which of a side's precisions each column has: those of the factors, then the bias's."""
        if self.prior == "shared":
            return np.append(np.zeros(self.rank, np.int32), 1)
        return np.arange(self.rank + 1)

    @property
    def _has_mean(self) -> np.ndarray:
        """Which columns of a side have a mean of their own: biases have none."""
        return (np.arange(self.rank + 1) < self.rank) & (self.prior == "dimension")

    def _spread(self, rows: jax.Array) -> _Normals:
        """What each precision of a side is drawn from.

        With means, λ ~ Gamma(1, 1) and μ | λ ~ N(0, 1/λ): μ is integrated out, which leaves
        Σ(x − x̄)² + n x̄²/(n + 1).
        """
        count, average = len(rows), jnp.mean(rows, axis=0)
        share = np.where(self._has_mean, count / (count + 1), count).astype(np.float32)
        squares = jnp.sum((rows - average[None]) ** 2, axis=0) + share * average**2
        counts = jnp.asarray(count * np.bincount(self._groups), jnp.float32)
        totals = jnp.zeros_like(counts).at[self._groups].add(squares)
        return _Normals(counts, totals, jnp.ones_like(counts), jnp.ones_like(counts))

    def _with_means(self, normal: jax.Array, rows: jax.Array, precision: jax.Array) -> PyTree:
        """Precisions, and means given them: μ | λ ~ N(n x̄/(n + 1), 1/(λ(n + 1)))."""
        count, average = len(rows), jnp.mean(rows, axis=0)
        mean = count / (count + 1) * average + normal / jnp.sqrt(precision * (count + 1))
        return {"mean": jnp.where(self._has_mean, mean, 0.0), "precision": precision}

    def _mass(self, params: jax.Array, hyper: PyTree, counts: PyTree) -> jax.Array:
        sides, mass = self.sides(params), []
        noise = {"user": hyper["noise"], "item": hyper["noise"]}
        if self.noise == "user":
            noise["item"] = jnp.average(hyper["noise"], weights=counts["user"])
        for side, other in zip(SIDES, reversed(SIDES), strict=True):
            squares = jnp.average(sides[other] ** 2, axis=0, weights=counts[other])
            squares = squares.at[-1].set(1.0)  # what a bias is multiplied by
            stiffness = noise[side] * counts[side].astype(jnp.float32)
            mass.append(stiffness[:, None] * squares[None] + hyper[side]["precision"][None])
        return jnp.concatenate(mass)


def _rows(params: jax.Array, codes: jax.Array) -> jax.Array:
    # Codes are checked where data come in: no bounds need to be looked at here.
    return params.at[codes].get(mode="promise_in_bounds")


def _codes(codes, bound: int, name: str) -> np.ndarray:
    codes = np.asarray(codes)
    if codes.ndim != 1 or codes.dtype.kind not in "iu":
        raise TypeError(f"{name} must be a vector of whole numbers, but is {codes.dtype}.")
    if codes.size and (codes.min() < 0 or codes.max() >= bound):
        raise ValueError(
            f"{name} must be codes from 0 to {bound - 1}, but they range from {codes.min()} to "
            f"{codes.max()}."
        )
    return codes.astype(np.int32)
