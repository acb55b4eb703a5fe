"""Bayesian matrix factorization of ratings."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.adapt import Adapt
from sghmc.gibbs import Gibbs
from sghmc.posterior import Posterior
from sghmc.priors import draw_precision
from sghmc.types import PyTree


class MatrixFactorization(eqx.Module):
    """Ratings as products of user and item factors, plus biases.

        y_ij ~ N(u_i·v_j + a_i + b_j, 1/τ),  τ ~ Gamma(1, 1)
        prior="shared":     u ~ N(0, 1/λ_U), v ~ N(0, 1/λ_V), a ~ N(0, 1/λ_a), b ~ N(0, 1/λ_b)
        prior="dimension":  u_ik ~ N(μ_k, 1/λ_k), v likewise; (μ_k, λ_k) normal–gamma

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `prior` | "shared", the paper's; "dimension", a mean and a precision for each dimension |

    All precisions have Gamma(1, 1) priors and are drawn by Gibbs steps, τ from a pass over all
    ratings. Ratings should be centered and of order 1. With prior="dimension" this is BPMF
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

    def __check_init__(self):
        for name in ("num_users", "num_items", "rank"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, but is {value!r}.")
        if self.prior not in ("shared", "dimension"):
            raise ValueError(f'prior must be "shared" or "dimension", but is {self.prior!r}.')

    def init(self, key: jax.Array, scale: float = 0.03) -> PyTree:
        """Factors from N(0, scale²), biases 0."""
        of_users, of_items = jax.random.split(key)
        return {
            "user": scale * jax.random.normal(of_users, (self.num_users, self.rank)),
            "item": scale * jax.random.normal(of_items, (self.num_items, self.rank)),
            "user_bias": jnp.zeros(self.num_users),
            "item_bias": jnp.zeros(self.num_items),
        }

    def predict(self, params: PyTree, users: jax.Array, items: jax.Array) -> jax.Array:
        """Mean ratings of pairs (or of one pair)."""
        product = jnp.sum(_rows(params["user"], users) * _rows(params["item"], items), axis=-1)
        return product + _rows(params["user_bias"], users) + _rows(params["item_bias"], items)

    def log_likelihood(self, params: PyTree, example: PyTree, hyper: PyTree) -> jax.Array:
        error = self.predict(params, example["user"], example["item"]) - example["rating"]
        return 0.5 * jnp.log(hyper["noise"]) - 0.5 * hyper["noise"] * error**2

    def log_prior(self, params: PyTree, hyper: PyTree) -> jax.Array:
        return sum(
            (_log_normal(leaf, *_moments(hyper[name])) for name, leaf in params.items()),
            start=jnp.zeros(()),
        )

    def posterior(self, user, item, rating, **constants: jax.Array) -> Posterior:
        """The posterior given codes of users and items, and their ratings.

        `constants` join the hyperparameters and never change: the number of a fold, say, where
        posteriors are stacked.
        """
        data = {
            "user": _codes(user, self.num_users, "user"),
            "item": _codes(item, self.num_items, "item"),
            "rating": np.asarray(rating, np.float32),
        }
        if not np.all(np.isfinite(data["rating"])):
            raise ValueError("rating holds NaN or infinite numbers: drop those rows.")
        hyper = {name: self._start(name) for name in ("user", "item", "user_bias", "item_bias")}
        return Posterior(
            self.log_likelihood,
            self.log_prior,
            data,
            {"noise": 1.0, **hyper, **constants},
        )

    def gibbs(self, every: int, start: int = 0) -> Gibbs:
        """Fresh precisions (and means) every so many steps."""
        return Gibbs(self._update, every, start)

    def adapt(
        self, counts: Callable[[PyTree], PyTree], every: int, until: int, start: int = 0
    ) -> Adapt:
        """Masses matched to each row: M_i = τ n_i E[v²] + λ, for a user with n_i ratings.

        E[v²] is the mean square of the items' factors in each dimension, weighted by their ratings;
        items likewise, and biases with 1 for E[v²]. So all rows have the same frequency, where
        popular items are a thousand times stiffer than rare ones. `counts(hyper)` gives the numbers
        of ratings {"user": …, "item": …}.
        """

        def update(kernel, state, hyper):
            mass = self._mass(state.position, hyper, counts(hyper))
            return kernel.with_mass(state, mass)

        return Adapt(update, every, until, start)

    def _start(self, name: str) -> PyTree:
        """Unit precisions, zero means."""
        if self._has_means(name):
            return {"mean": jnp.zeros(self.rank), "precision": jnp.ones(self.rank)}
        return {"precision": jnp.ones(())}

    def _update(self, key: jax.Array, params: PyTree, posterior: Posterior) -> PyTree:
        squares = posterior.sum_over_data(
            lambda rows: (self.predict(params, rows["user"], rows["item"]) - rows["rating"]) ** 2
        )
        spreads = {name: self._spread(leaf, name) for name, leaf in params.items()}
        spreads["noise"] = (jnp.asarray(posterior.num_examples, jnp.float32)[None], squares[None])
        of_precisions, of_means = jax.random.split(key)
        # All in one call: every call compiles a rejection sampler of its own.
        counts, totals = (jnp.concatenate(column) for column in zip(*spreads.values(), strict=True))
        drawn = draw_precision(of_precisions, 1.0, 1.0, counts, totals)
        lengths = np.cumsum([len(count) for count, _ in spreads.values()])[:-1]
        precisions = dict(zip(spreads, jnp.split(drawn, lengths), strict=True))
        fresh: dict[str, PyTree] = {"noise": precisions.pop("noise")[0]}
        keys = jax.random.split(of_means, len(precisions))
        for of_mean, (name, precision) in zip(keys, precisions.items(), strict=True):
            if self._has_means(name):
                mean = _draw_mean(of_mean, params[name], precision)
                fresh[name] = {"mean": mean, "precision": precision}
            else:
                fresh[name] = {"precision": precision[0]}
        return {**posterior.hyper, **fresh}

    def _has_means(self, name: str) -> bool:
        return self.prior == "dimension" and name in ("user", "item")

    def _spread(self, leaf: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
        """Numbers of entries and sums of squares that each precision of `leaf` is drawn from.

        With means, λ ~ Gamma(1, 1) and μ | λ ~ N(0, 1/λ): μ is integrated out, which leaves
        Σ(x − x̄)² + n x̄²/(n + 1).
        """
        if not self._has_means(name):
            return jnp.full(1, leaf.size, jnp.float32), jnp.sum(leaf**2)[None]
        count, average = len(leaf), jnp.mean(leaf, axis=0)
        spread = jnp.sum((leaf - average[None]) ** 2, axis=0) + count / (count + 1) * average**2
        return jnp.full(leaf.shape[1], count, jnp.float32), spread

    def _mass(self, params: PyTree, hyper: PyTree, counts: PyTree) -> PyTree:
        mass = {}
        for name, other in (("user", "item"), ("item", "user")):
            ratings = counts[name].astype(jnp.float32)
            squares = jnp.average(params[other] ** 2, axis=0, weights=counts[other])
            stiffness = hyper["noise"] * ratings
            prior = jnp.broadcast_to(hyper[name]["precision"], (self.rank,))
            mass[name] = stiffness[:, None] * squares[None] + prior[None]
            mass[f"{name}_bias"] = stiffness + hyper[f"{name}_bias"]["precision"]
        return mass


def _rows(leaf: jax.Array, codes: jax.Array) -> jax.Array:
    # Codes are checked where data come in: no bounds need to be looked at here.
    return leaf.at[codes].get(mode="promise_in_bounds")


def _moments(hyper: PyTree) -> tuple[jax.Array, jax.Array]:
    precision = hyper["precision"]
    return hyper.get("mean", jnp.zeros_like(precision)), precision


def _log_normal(leaf: jax.Array, mean: jax.Array, precision: jax.Array) -> jax.Array:
    """Σ log N(x; mean, 1/precision), the parameters shared by the rows of `leaf`."""
    rows = leaf.reshape(len(leaf), -1)
    errors = rows - jnp.broadcast_to(mean, rows.shape[1:])[None]
    precisions = jnp.broadcast_to(precision, rows.shape[1:])
    squares = jnp.sum(precisions[None] * errors**2)
    return 0.5 * len(rows) * jnp.sum(jnp.log(precisions)) - 0.5 * squares


def _draw_mean(key: jax.Array, leaf: jax.Array, precision: jax.Array) -> jax.Array:
    """μ | λ and the columns of `leaf`: N(n x̄/(n + 1), 1/(λ(n + 1)))."""
    count, average = len(leaf), jnp.mean(leaf, axis=0)
    normal = jax.random.normal(key, average.shape)
    return count / (count + 1) * average + normal / jnp.sqrt(precision * (count + 1))


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
