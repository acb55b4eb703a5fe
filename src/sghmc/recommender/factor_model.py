"""Bayesian matrix factorization: rows of users and items, their priors and masses, and ratings."""

import abc
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.adapt import Adapt
from sghmc.core.checks import check_choice, check_count, checked_codes, take_rows
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior
from sghmc.recommender import factor_gibbs
from sghmc.recommender.factor_gibbs import (
    SIDES,
    ColumnPrior,
    Features,
    Noise,
    SharedNoise,
    SidePrior,
    UserNoise,
)
from sghmc.types import PyTree


class AbstractFactorization(eqx.Module):
    """Model of pairs by a row for each user and item: its factors, then its bias.

        m_ij = u_i·v_j + a_i + b_j

    The parameters are one array with a row for each user, then one for each item; `sides` splits
    it. (One array, since on a GPU each array costs kernel launches in a step.) If users or items
    have `features`, the prior means of their rows are linear in those (`factor_gibbs`).
    """

    num_users: int
    num_items: int
    rank: int
    features: dict[str, Features] = eqx.field(
        default_factory=dict, converter=lambda features: features or {}, kw_only=True
    )

    def __check_init__(self):
        for name in ("num_users", "num_items", "rank"):
            check_count(getattr(self, name), name)
        if unknown := set(self.features) - set(SIDES):
            raise ValueError(f"features must be of {SIDES}, but some are of {sorted(unknown)}.")

    @abc.abstractmethod
    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        """Return the log-likelihood of one example."""

    @abc.abstractmethod
    def update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        """Draw hyperparameters given the parameters."""

    @abc.abstractmethod
    def precisions(self, hyper: PyTree, counts: PyTree) -> dict[str, jax.Array]:
        """Approximate precision of an example's information about its mean, by users and items.

        `counts` are the numbers of examples of each user and item.
        """

    @property
    def columns(self) -> ColumnPrior:
        """Prior of the columns of either side: unless overridden, one for each dimension."""
        return ColumnPrior.by_dimension(self.rank)

    def init(self, key: jax.Array, scale: float = 0.03) -> jax.Array:
        """Draw factors from N(0, scale²); biases are 0."""
        factors = jax.random.normal(key, (self.num_users + self.num_items, self.rank))
        return jnp.pad(scale * factors, ((0, 0), (0, 1)))

    def sides(self, params: jax.Array) -> dict[str, jax.Array]:
        """Split the rows of users from those of items; their last column is the bias."""
        return {"user": params[: self.num_users], "item": params[self.num_users :]}

    def predict(self, params: jax.Array, users: jax.Array, items: jax.Array) -> jax.Array:
        """Return the means of pairs (or of one pair)."""
        user, item = take_rows(params, users), take_rows(params, self.num_users + items)
        product = jnp.sum(user[..., :-1] * item[..., :-1], axis=-1)
        return product + user[..., -1] + item[..., -1]

    def log_prior(self, params: jax.Array, hyper: PyTree) -> jax.Array:
        user, item = (hyper[side] for side in SIDES)
        # A choice row by row, since gradients of two slices would be padded and added up.
        is_user = (jnp.arange(len(params)) < self.num_users)[:, None]

        def of_rows(part: str) -> jax.Array:
            return jnp.where(is_user, user[part][None], item[part][None])

        mean, precision = of_rows("mean"), of_rows("precision")
        if self.features:
            mean = self._centers(hyper)
        squares = jnp.sum(precision * (params - mean) ** 2)
        logs = [jnp.sum(jnp.log(side["precision"])) for side in (user, item)]
        return 0.5 * (self.num_users * logs[0] + self.num_items * logs[1] - squares)

    def prior_start(self) -> PyTree:
        """Return starting hyperparameters of rows: means of 0, precisions of 1, weights of 0."""
        width = self.rank + 1
        hyper = {side: {"mean": jnp.zeros(width), "precision": jnp.ones(width)} for side in SIDES}
        for side, size in self._sizes.items():
            if side in self.features:
                hyper[side] |= self.features[side].start(size, width)
        return hyper

    @property
    def priors(self) -> dict[str, SidePrior]:
        return {side: SidePrior(self.columns, self.features.get(side)) for side in SIDES}

    def gibbs(self, every: int, start: int = 0) -> Gibbs:
        """Return a Gibbs update of precisions (and means) every so many steps."""
        return Gibbs(self.update, every, start)

    def adapt(
        self, counts: Callable[[PyTree], PyTree], every: int, until: int, start: int = 0
    ) -> Adapt:
        """Match the mass of each row: M_i = τ_i n_i E[v²] + λ, for a user with n_i ratings.

        E[v²] is the mean square of the items' factors in each dimension, weighted by their ratings;
        items likewise, with the mean τ of ratings, and biases with 1 for E[v²]. So all rows have
        the same frequency, although popular items can be a thousand times stiffer than rare ones.
        `counts(hyper)` gives the numbers of ratings {"user": …, "item": …}.
        """
        return Adapt(MatchedMass(self, counts), every, until, start)

    def mass(self, params: jax.Array, hyper: PyTree, counts: PyTree) -> jax.Array:
        """Return the masses of all rows, by the formula of `adapt`."""
        sides, mass = self.sides(params), []
        precision = self.precisions(hyper, counts)
        for side, other in zip(SIDES, reversed(SIDES), strict=True):
            squares = jnp.average(sides[other] ** 2, axis=0, weights=counts[other])
            squares = squares.at[-1].set(1.0)  # a bias is multiplied by 1
            stiffness = precision[side] * counts[side].astype(jnp.float32)
            mass.append(stiffness[:, None] * squares[None] + hyper[side]["precision"][None])
        return jnp.concatenate(mass)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"user": self.num_users, "item": self.num_items}

    def _centers(self, hyper: PyTree) -> jax.Array:
        """Return the prior mean of each row: the mean of its side, plus features times weights."""
        return jnp.concatenate(
            [
                hyper[side]["center"]
                if side in self.features
                else jnp.broadcast_to(hyper[side]["mean"][None], (size, self.rank + 1))
                for side, size in self._sizes.items()
            ]
        )


class MatchedMass(eqx.Module):
    """Update of `adapt`; an object, so that a model with other numbers reuses the program."""

    model: AbstractFactorization
    counts: Callable[[PyTree], PyTree]

    def __call__(self, kernel: Any, state: Any, hyper: PyTree) -> tuple[Any, Any]:
        mass = self.model.mass(state.position, hyper, self.counts(hyper))
        return kernel.with_mass(state, mass)


class FactorizationModel(AbstractFactorization):
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
    | `noise` | "shared", the paper's; "user", since some users rate more consistently |
    | `resolution` | s, the rounding of ratings: a squared error e² counts as e² + s² |
    | `features` | {"user": …, "item": …}: their `Features`, if any |

    The parameters are one array with a row for each user, then one for each item: its factors, then
    its bias; `sides` splits it. All other precisions have Gamma(1, 1) priors, and all are
    drawn by Gibbs steps, τ from a pass over all ratings. Ratings should be centered and of order 1.
    Ratings that the factors fit exactly would make τ_i grow without bound; the resolution prevents
    that. With prior="dimension" this is BPMF (Salakhutdinov & Mnih, ICML 2008) with a
    diagonal precision.

    >>> import jax
    >>> model = FactorizationModel(num_users=3, num_items=4, rank=2)
    >>> params = model.init(jax.random.key(0))
    >>> model.predict(params, jax.numpy.array([0, 1]), jax.numpy.array([3, 2])).shape
    (2,)
    """

    prior: Literal["shared", "dimension"] = "shared"
    noise: Literal["shared", "user"] = "shared"
    resolution: float = 0.0

    def __check_init__(self):
        check_choice(self.prior, "prior", ("shared", "dimension"))
        check_choice(self.noise, "noise", ("shared", "user"))
        if not 0 <= self.resolution < np.inf:
            raise ValueError(f"resolution must be 0 or more, but is {self.resolution!r}.")

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        noise = self._noise.of_users(hyper, example["user"])
        return 0.5 * jnp.log(noise) - 0.5 * noise * self._square_error(params, example)

    def posterior(self, user, item, rating, **constants: jax.Array) -> Posterior:
        """Return the posterior given codes of users and items, and their ratings.

        Its hyperparameters are the rating precision "noise" (with noise="user" one for each, and
        the "noise_rate" ρ of their law) and, for "user" and "item", the "mean" and the "precision"
        of each column. `constants` join them and never change: for example the number of a fold,
        if posteriors are stacked.
        """
        data = {
            "user": checked_codes(user, self.num_users, "user").astype(np.int32),
            "item": checked_codes(item, self.num_items, "item").astype(np.int32),
            "rating": np.asarray(rating, np.float32),
        }
        if not np.all(np.isfinite(data["rating"])):
            raise ValueError("rating holds NaN or infinite numbers: drop those rows.")
        hyper = {**self.prior_start(), **self._noise.start(), **constants}
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        return factor_gibbs.update(
            key,
            self.sides(params),
            self.priors,
            self._noise,
            lambda rows: self._square_error(params, rows),
            posterior,
        )

    def precisions(self, hyper: PyTree, counts: PyTree) -> dict[str, jax.Array]:
        return {"user": hyper["noise"], "item": self._noise.average(hyper, counts["user"])}

    @property
    def columns(self) -> ColumnPrior:
        kind = ColumnPrior.shared if self.prior == "shared" else ColumnPrior.by_dimension
        return kind(self.rank)

    @property
    def _noise(self) -> Noise:
        return SharedNoise() if self.noise == "shared" else UserNoise(self.num_users)

    def _square_error(self, params: jax.Array, rows: PyTree) -> jax.Array:
        error = self.predict(params, rows["user"], rows["item"]) - rows["rating"]
        return error**2 + self.resolution**2
