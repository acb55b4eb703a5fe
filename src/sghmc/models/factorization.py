"""Bayesian matrix factorization of ratings."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.models import factor_gibbs
from sghmc.models.codes import checked_codes
from sghmc.models.factor_features import Features
from sghmc.models.factor_gibbs import ColumnPrior, Noise, SharedNoise, UserNoise
from sghmc.models.factor_model import AbstractFactorization
from sghmc.posterior.posterior import Posterior
from sghmc.types import PyTree


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
    | `noise` | "shared", the paper's; "user": some rate more consistently than others |
    | `resolution` | s: a rating is known no better, e² counts as e² + s² in its log-density |
    | `features` | {"user": …, "item": …}: what is known of them, see `factor_features` |

    The parameters are one array with a row for each user, then one for each item: its factors, then
    its bias; `sides` takes them apart. All other precisions have Gamma(1, 1) priors, and all are
    drawn by Gibbs steps, τ from a pass over all ratings. Ratings should be centered and of order 1.
    Ratings that the factors can meet exactly would make τ_i grow without end, were it not for the
    resolution. With prior="dimension" this is BPMF (Salakhutdinov & Mnih, ICML 2008) with a
    diagonal precision.

    >>> import jax
    >>> model = FactorizationModel(num_users=3, num_items=4, rank=2)
    >>> params = model.init(jax.random.key(0))
    >>> model.predict(params, jax.numpy.array([0, 1]), jax.numpy.array([3, 2])).shape
    (2,)
    """

    num_users: int
    num_items: int
    rank: int
    prior: Literal["shared", "dimension"]
    noise: Literal["shared", "user"]
    resolution: float
    features: dict[str, Features]

    # Written out for readers of types, who put the fields of the base class first.
    def __init__(
        self,
        num_users: int,
        num_items: int,
        rank: int,
        prior: Literal["shared", "dimension"] = "shared",
        noise: Literal["shared", "user"] = "shared",
        resolution: float = 0.0,
        features: dict[str, Features] | None = None,
    ):
        self.num_users, self.num_items, self.rank = num_users, num_items, rank
        self.prior, self.noise, self.resolution = prior, noise, resolution
        self.features = features or {}

    def __check_init__(self):
        if self.prior not in ("shared", "dimension"):
            raise ValueError(f'prior must be "shared" or "dimension", but is {self.prior!r}.')
        if self.noise not in ("shared", "user"):
            raise ValueError(f'noise must be "shared" or "user", but is {self.noise!r}.')
        if not 0 <= self.resolution < np.inf:
            raise ValueError(f"resolution must be 0 or more, but is {self.resolution!r}.")

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        noise = self._noise.of_users(hyper, example["user"])
        return 0.5 * jnp.log(noise) - 0.5 * noise * self._square_error(params, example)

    def posterior(self, user, item, rating, **constants: jax.Array) -> Posterior:
        """The posterior given codes of users and items, and their ratings.

        Its hyperparameters are the rating precision "noise" (with noise="user" one for each, and
        the "noise_rate" ρ of their law) and, for "user" and "item", the "mean" and the "precision"
        of each column. `constants` join them and never change: the number of a fold, say, where
        posteriors are stacked.
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
