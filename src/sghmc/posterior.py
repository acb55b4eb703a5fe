"""Targets: a posterior over data, or any potential. The only home of the sign and of N/n."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.types import Evaluation, PyTree

_CHUNK = 65_536
"""Rows that a full pass over the data looks at at once: bounds its memory."""


class Potential(eqx.Module):
    """A target given by U(params) = −log p(params), up to a constant.

    >>> import jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> float(target.potential(jnp.ones(3)))
    1.5
    """

    function: Callable[[PyTree], jax.Array]

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(f"Potential needs a function U(params), not {self.function!r}.")

    def potential(self, params: PyTree) -> jax.Array:
        return self.function(params)

    def gradient(self, params: PyTree) -> PyTree:
        return jax.grad(self.potential)(params)

    def evaluate(self, params: PyTree) -> Evaluation:
        return Evaluation(*jax.value_and_grad(self.potential)(params))


class Posterior(eqx.Module):
    """A target given by the log-likelihood of one example, a log-prior, and the data.

        U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ)

    `data` is a pytree of arrays with a shared leading axis, one row an example; `log_likelihood`
    sees one example, a pytree of rows. With `hyper`, a pytree of hyperparameters, the functions are
    `log_likelihood(params, example, hyper)` and `log_prior(params, hyper)`.

    >>> import jax.numpy as jnp, sghmc
    >>> posterior = sghmc.Posterior(
    ...     lambda theta, x: -0.5 * (x - theta) ** 2, lambda theta: -0.5 * theta**2, jnp.arange(4.0)
    ... )
    >>> float(posterior.gradient(jnp.array(1.0)))
    -1.0
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    hyper: PyTree = None

    def __init__(self, log_likelihood, log_prior, data: PyTree, hyper: PyTree = None):
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        self.data = jax.tree.map(_as_array, data)
        self.hyper = None if hyper is None else jax.tree.map(jnp.asarray, hyper)

    def __check_init__(self):
        for name in ("log_likelihood", "log_prior"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, not {getattr(self, name)!r}.")
        leaves = jax.tree.leaves(self.data)
        if not leaves:
            raise ValueError("data holds no array: give a pytree of arrays, one row an example.")
        if any(leaf.ndim == 0 for leaf in leaves):
            raise ValueError(
                "data holds a number without axes: every array of the data needs a leading axis, "
                "one row an example."
            )
        lengths = sorted({leaf.shape[0] for leaf in leaves})
        if len(lengths) > 1:
            raise ValueError(
                f"The arrays of the data have leading axes of different lengths {lengths}: they "
                f"must share it, one row an example."
            )
        if lengths[0] == 0:
            raise ValueError("data is empty: its leading axis has length 0. Give at least one row.")

    @property
    def num_examples(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def with_hyper(self, hyper: PyTree) -> "Posterior":
        return dataclasses.replace(self, hyper=hyper)

    def rows(self, indices: jax.Array) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[indices], self.data)

    def estimate(self, params: PyTree, examples: PyTree) -> jax.Array:
        """Ũ(θ) = −(N/n) Σ log p(x | θ) − log p(θ), the sum over n examples."""
        count = jax.tree.leaves(examples)[0].shape[0]
        scale = self.num_examples / count
        return -scale * self._sum_log_likelihood(params, examples) - self._log_prior(params)

    def potential(self, params: PyTree) -> jax.Array:
        """U(θ) over all data."""
        total = self.sum_over_data(lambda rows: self._sum_log_likelihood(params, rows))
        return -total - self._log_prior(params)

    def gradient(self, params: PyTree) -> PyTree:
        """∇U(θ) over all data."""
        return self.evaluate(params).grad

    def evaluate(self, params: PyTree) -> Evaluation:
        """U and ∇U over all data."""
        of_data = self.sum_over_data(
            lambda rows: jax.value_and_grad(self._sum_log_likelihood)(params, rows)
        )
        of_prior = jax.value_and_grad(self._log_prior)(params)
        return Evaluation(*jax.tree.map(lambda x, y: -x - y, of_data, of_prior))

    def _sum_log_likelihood(self, params: PyTree, examples: PyTree) -> jax.Array:
        hyper = () if self.hyper is None else (self.hyper,)
        terms = jax.vmap(lambda example: self.log_likelihood(params, example, *hyper))(examples)
        return jnp.sum(terms)

    def _log_prior(self, params: PyTree) -> jax.Array:
        return self.log_prior(params) if self.hyper is None else self.log_prior(params, self.hyper)

    def sum_over_data(self, function: Callable[[PyTree], Any]) -> Any:
        """The sum of `function` over the data, a bounded number of rows at a time."""
        chunks, rest = divmod(self.num_examples, _CHUNK)
        if chunks == 0:
            return function(self.data)
        whole = jax.tree.map(
            lambda leaf: leaf[: chunks * _CHUNK].reshape(chunks, _CHUNK, *leaf.shape[1:]), self.data
        )
        parts = lax.map(function, whole)
        total = jax.tree.map(lambda part: jnp.sum(part, 0), parts)
        if rest:
            last = function(jax.tree.map(lambda leaf: leaf[chunks * _CHUNK :], self.data))
            total = jax.tree.map(jnp.add, total, last)
        return total


Target = Potential | Posterior


def _as_array(leaf) -> jax.Array:
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        if leaf.dtype.kind not in "fiubc":
            raise TypeError(f"data must hold numbers, but holds an array of dtype {leaf.dtype}.")
    return jnp.asarray(leaf)
