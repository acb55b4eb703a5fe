"""Bayesian multilayer perceptrons for classification and regression."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.checks import checked_codes
from sghmc.posterior.gibbs import GaussianPrior, Gibbs, draw_precision
from sghmc.posterior.posterior import Posterior
from sghmc.types import PyTree


class MLP(eqx.Module):
    """A multilayer perceptron with Gaussian priors whose precisions are learned.

        f(x) = W_L σ(… σ(W_1 x + b_1) …) + b_L
        "categorical":  y ~ softmax(f(x))      "gaussian":  y ~ N(f(x), λ_y⁻¹)
        W_l, b_l ~ N(0, λ⁻¹), each with its own λ ~ Gamma(1, 1); λ_y ~ Gamma(1, 1)

    | field | meaning |
    | --- | --- |
    | `sizes` | (inputs, hidden, …, outputs) |
    | `activation` | σ, default the paper's sigmoid |
    | `likelihood` | "categorical" (labels 0, 1, …) or "gaussian" (an array of `outputs` numbers) |
    | `prior` | prior of the weights and of their precisions |

    The paper's network is `MLP((784, 100, 10))`.

    >>> import jax
    >>> model = MLP((4, 8, 3))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, jax.numpy.ones(4)).shape
    (3,)
    """

    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array] = jax.nn.sigmoid
    likelihood: Literal["categorical", "gaussian"] = "categorical"
    prior: GaussianPrior = GaussianPrior()

    def __check_init__(self):
        if len(self.sizes) < 2 or any(size < 1 for size in self.sizes):
            raise ValueError(
                f"sizes must be (inputs, hidden, …, outputs), all positive, but is {self.sizes}."
            )
        if self.likelihood not in ("categorical", "gaussian"):
            raise ValueError(
                f'likelihood must be "categorical" or "gaussian", but is {self.likelihood!r}.'
            )

    def init(self, key: jax.Array, scale: float = 0.01) -> PyTree:
        """Draw weights from N(0, scale²); biases are 0."""
        keys = jax.random.split(key, len(self.sizes) - 1)
        pairs = zip(keys, self.sizes[:-1], self.sizes[1:], strict=True)
        return [
            {"weight": scale * jax.random.normal(k, (n_in, n_out)), "bias": jnp.zeros(n_out)}
            for k, n_in, n_out in pairs
        ]

    def apply(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Return f(x), for one input or for rows of inputs."""
        for layer in params[:-1]:
            x = self.activation(x @ layer["weight"] + _as_row(layer["bias"], x))
        return x @ params[-1]["weight"] + _as_row(params[-1]["bias"], x)

    def log_likelihood(self, params: PyTree, example: PyTree, hyper: PyTree) -> jax.Array:
        output = self.apply(params, example["x"])
        if self.likelihood == "categorical":
            value = jax.nn.log_softmax(output)[example["y"]]
        else:
            precision, error = hyper["noise"], output - example["y"]
            value = 0.5 * error.size * jnp.log(precision) - 0.5 * precision * jnp.sum(error**2)
        return value * example["weight"] if "weight" in example else value

    def log_prior(self, params: PyTree, hyper: PyTree) -> jax.Array:
        return self.prior.log_density(params, hyper["prior"])

    def posterior(self, x, y, weight=None) -> Posterior:
        """Return the posterior given inputs (rows), labels or targets, and weights of the rows."""
        x, y = np.asarray(x), np.asarray(y)
        if x.ndim != 2 or x.shape[1] != self.sizes[0]:
            raise ValueError(
                f"x must have shape (rows, {self.sizes[0]}) for an MLP of sizes {self.sizes}, but "
                f"has {x.shape}."
            )
        if self.likelihood == "categorical":
            checked_codes(y, self.sizes[-1], "y")
        elif y.shape[1:] != (self.sizes[-1],):
            raise ValueError(
                f"y must have shape (rows, {self.sizes[-1]}) for an MLP of sizes {self.sizes}, but "
                f"has {y.shape}."
            )
        data = {"x": x, "y": y} | ({} if weight is None else {"weight": np.asarray(weight)})
        like = jax.eval_shape(self.init, jax.random.key(0))
        hyper: dict[str, PyTree] = {"prior": self.prior.start(like)}
        if self.likelihood == "gaussian":
            hyper["noise"] = jnp.ones(())
        return Posterior(self.log_likelihood, self.log_prior, data, hyper=hyper)

    def gibbs(self, every: int, start: int = 0) -> Gibbs:
        """Return the Gibbs update of the precisions; for the noise it passes over the data."""
        return Gibbs(self._update, every, start)

    def _update(self, key: jax.Array, params: PyTree, posterior: Posterior) -> PyTree:
        of_prior, of_noise = jax.random.split(key)
        hyper: dict[str, PyTree] = {"prior": self.prior.update(of_prior, params)}
        if self.likelihood == "gaussian":
            count, total = posterior.sum_over_data(lambda rows: self._squares(params, rows))
            prior = self.prior
            hyper["noise"] = draw_precision(
                of_noise, prior.shape, prior.rate, count, total, temperature=prior.temperature
            )
        return hyper

    def _squares(self, params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return the weighted count and sum of squared errors of each row."""
        errors = self.apply(params, rows["x"]) - rows["y"]
        weight = rows["weight"] if "weight" in rows else jnp.ones(len(errors))
        return weight * errors.shape[1], weight * jnp.sum(errors**2, axis=1)


def _as_row(bias: jax.Array, x: jax.Array) -> jax.Array:
    return bias.reshape((1,) * (x.ndim - 1) + bias.shape)
