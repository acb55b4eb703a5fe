"""What all posteriors over data have in common: U from log-likelihoods, with the sign and N/n."""

import abc
from collections.abc import Callable
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from sghmc.posterior.passes import OfRows
from sghmc.posterior.source import Source
from sghmc.posterior.source_ref import SourceRef
from sghmc.posterior.target import Target
from sghmc.types import Change, Evaluation, PyTree


class AbstractPosterior(Target):
    """U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ), wherever the rows xᵢ are.

    `num_real` says how many rows count, where the data were padded to stack posteriors, or grow.
    """

    log_likelihood: eqx.AbstractVar[Callable[..., jax.Array]]
    log_prior: eqx.AbstractVar[Callable[..., jax.Array]]
    data: eqx.AbstractVar[PyTree]
    num_real: eqx.AbstractVar[jax.Array | None]

    # By identity, so that jax.jit takes `posterior.gradient`: arrays have no hash.
    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    # Rows

    @property
    def source(self) -> Source | None:
        return self.data.source if isinstance(self.data, SourceRef) else None

    @property
    @abc.abstractmethod
    def _table(self) -> PyTree:
        """The arrays of the rows that are here, where the data are arrays."""

    @property
    def example(self) -> PyTree:
        """One example by shapes and dtypes alone."""
        if self.source is not None:
            return self.source.example
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self._table
        )

    @property
    def num_rows(self) -> int:
        """Rows that are here, padding included."""
        if self.source is not None:
            return self.source.num_rows
        return jax.tree.leaves(self._table)[0].shape[0]

    @property
    @abc.abstractmethod
    def num_examples(self) -> int | jax.Array:
        """N."""

    @abc.abstractmethod
    def rows(self, indices: jax.Array) -> PyTree:
        """Rows by their numbers among all."""

    @abc.abstractmethod
    def examples(self, variates: PyTree, i, size: int) -> PyTree:
        """Rows of a step's i-th batch of `size`: by their numbers, or as the host took them."""

    @abc.abstractmethod
    def batch(self, variates: PyTree, i, size: int) -> PyTree:
        """The same in the form that `log_likelihood_sum` takes."""

    @abc.abstractmethod
    def batch_size(self, batch: PyTree) -> int:
        """How many rows a batch has."""

    @abc.abstractmethod
    def _over_rows(self, of_rows: OfRows) -> PyTree:
        """The sum of a function of rows over chunks of all data."""

    def with_hyper(self, hyper: PyTree) -> Self:
        return eqx.tree_at(lambda p: p.hyper, self, hyper, is_leaf=lambda leaf: leaf is None)

    # Log-likelihoods

    def log_prior_at(self, params: PyTree) -> jax.Array:
        """log p(θ), given the hyperparameters where there are any."""
        return self.log_prior(params) if self.hyper is None else self.log_prior(params, self.hyper)

    def log_likelihoods(self, params: PyTree, examples: PyTree) -> jax.Array:
        """log p(x | θ) of each of some examples."""
        hyper = () if self.hyper is None else (self.hyper,)
        return jax.vmap(lambda example: self.log_likelihood(params, example, *hyper))(examples)

    @abc.abstractmethod
    def log_likelihood_sum(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Σ log p(x | θ) over a batch."""

    def log_likelihood_total(self, params: PyTree) -> Evaluation:
        """Σᵢ log p(xᵢ | θ) over all data, and its gradient."""

        def of_rows(rows, are_counted):
            def total(params):
                return jnp.sum(jnp.where(are_counted, self.log_likelihoods(params, rows), 0))

            return jax.value_and_grad(total)(params)

        return Evaluation(*self._over_rows(of_rows))

    def sum_over_data(self, function: Callable[[PyTree], PyTree]) -> PyTree:
        """The sum over all examples of what `function` gives for some: arrays with a row for each.

        Looks at a bounded number of rows at a time.
        """

        def of_rows(rows, are_counted):
            def total(terms):
                counted = are_counted.reshape(-1, *[1] * (terms.ndim - 1))
                return jnp.sum(jnp.where(counted, terms, 0), axis=0)

            return jax.tree.map(total, function(rows))

        return self._over_rows(of_rows)

    # Potentials

    def estimate(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Ũ(θ) = −(N/n) Σ log p(x | θ) − log p(θ), the sum over the n examples of a batch."""
        total = self.log_likelihood_sum(params, batch)
        return self.scaled(total, batch) - self.log_prior_at(params)

    def scaled(self, total: jax.Array, batch: PyTree) -> jax.Array:
        """−(N/n) Σ log p(x | θ), the data's part of Ũ, from the sum over a batch."""
        return -(self.num_examples / self.batch_size(batch)) * total

    def potential(self, params: PyTree) -> jax.Array:
        """U(θ) over all data."""
        return _potential(self, params)

    def gradient(self, params: PyTree) -> PyTree:
        """∇U(θ) over all data."""
        return _gradient(self, params)

    def evaluate(self, params: PyTree) -> Evaluation:
        """U and ∇U over all data."""
        of_prior = Evaluation(*jax.value_and_grad(self.log_prior_at)(params))
        return jax.tree.map(lambda x, y: -x - y, self.log_likelihood_total(params), of_prior)

    def change(self, old: PyTree, new: PyTree) -> Change:
        """U(new) − U(old), of which any rows may be asked for."""
        if self.source is not None and self.source.is_sequential:
            raise ValueError(
                "The accept step asks for rows by their numbers, but this source of data gives "
                "them in an order of its own: use a source with random access, or no accept step."
            )

        def terms(rows):
            examples = self.rows(rows)
            return self.log_likelihoods(old, examples) - self.log_likelihoods(new, examples)

        known = self.log_prior_at(old) - self.log_prior_at(new)
        return Change(known, terms, self.num_examples)


# Compiled, so that a pass over data that nobody compiled is not traced anew in every call.
@eqx.filter_jit
def _potential(posterior: AbstractPosterior, params: PyTree) -> jax.Array:
    total = posterior.sum_over_data(lambda rows: posterior.log_likelihoods(params, rows))
    return -total - posterior.log_prior_at(params)


@eqx.filter_jit
def _gradient(posterior: AbstractPosterior, params: PyTree) -> PyTree:
    return posterior.evaluate(params).grad


def part_of(variates: PyTree, i, size: int) -> PyTree:
    """The i-th of several equal parts of a step's row numbers, or rows."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i * size, size), variates)
