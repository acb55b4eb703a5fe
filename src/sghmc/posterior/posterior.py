"""What all posteriors over data have in common: U from log-likelihoods, with the sign and N/n.

Posteriors whose rows lie in arrays or in a source.

Posteriors of one model on different data, a chain each.

A target given by data, the log-likelihood of one example, and a log-prior.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core.checks import check_fit, held_type
from sghmc.posterior import passes
from sghmc.posterior.passes import OfRows
from sghmc.posterior.sources import Source, SourceRef
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


# Posteriors whose rows lie in arrays or in a source.


class RowPosterior(AbstractPosterior):
    """`data` are a pytree of arrays with a shared leading axis, one row an example, or a source."""

    def __check_init__(self):
        for name, function in (
            ("log_likelihood", self.log_likelihood),
            ("log_prior", self.log_prior),
        ):
            if not callable(function):
                raise TypeError(f"{name} must be a function, not {function!r}.")
        if self.source is not None:
            return
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
    def _table(self):
        return self.data

    @property
    def num_examples(self):
        return self.num_rows if self.num_real is None else self.num_real

    def rows(self, indices):
        if self.source is not None:
            return passes.rows_of_source(self.source, indices)
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), self.data)

    def examples(self, variates, i, size):
        part = part_of(variates, i, size)
        return part if self.source is not None else self.rows(part)

    def batch(self, variates, i, size):
        return self.examples(variates, i, size)

    def batch_size(self, batch):
        return jax.tree.leaves(batch)[0].shape[0]

    def log_likelihood_sum(self, params, batch):
        return passes.sum_over_batch(batch, lambda rows: self.log_likelihoods(params, rows))

    def _over_rows(self, of_rows):
        if self.source is not None:
            return passes.sum_over_source(self.source, of_rows, self.num_examples)
        return passes.sum_over_table(self.data, of_rows, self.num_examples)


def as_arrays(data: PyTree) -> PyTree:
    """Arrays of numbers as they will be held; a data frame's columns go by name."""
    return jax.tree.map(_as_array, _columns(data))


def _columns(data: PyTree) -> PyTree:
    """A data frame's columns by name, as sources give them; other data as they are."""
    is_frame = hasattr(data, "columns") and hasattr(data, "to_numpy")
    return {str(name): np.asarray(data[name]) for name in data.columns} if is_frame else data


def _as_array(leaf) -> jax.Array:
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        if leaf.dtype.kind not in "fiubc":
            raise TypeError(f"data must hold numbers, but holds an array of dtype {leaf.dtype}.")
        check_fit(leaf, held_type(leaf.dtype), "The data")
    return jnp.asarray(leaf)


# Posteriors of one model on different data, a chain each.


class StackedPosterior(eqx.Module):
    """Posteriors of the same model on different data; made by `Posterior.stack`.

    `chains` is a posterior whose arrays have one more leading axis, that of the chains.
    """

    chains: AbstractPosterior
    num_chains: int

    def __getitem__(self, chain: int) -> AbstractPosterior:
        arrays, rest = eqx.partition(self.chains, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[chain], arrays), rest)

    @property
    def source(self) -> None:
        """Stacked data are arrays."""
        return None

    @property
    def hyper(self) -> PyTree:
        """The hyperparameters of all chains; None where there are none."""
        return self.chains.hyper


def stacked(posteriors: Sequence[AbstractPosterior]) -> StackedPosterior:
    if not posteriors or not all(isinstance(p, AbstractPosterior) for p in posteriors):
        raise TypeError("Posterior.stack needs a list of posteriors, at least one.")
    if any(p.source is not None for p in posteriors):
        raise TypeError(
            "Posterior.stack takes arrays only, but a posterior of the stack has a source for its "
            "data: run it by itself."
        )
    longest = max(p.num_rows for p in posteriors)
    parts = [eqx.partition(pad_rows(p, longest), eqx.is_array) for p in posteriors]
    arrays, rests = [part[0] for part in parts], [part[1] for part in parts]
    first = _shapes(arrays[0])
    for i, (other, rest) in enumerate(zip(arrays, rests, strict=True)):
        if not eqx.tree_equal(rest, rests[0]):
            raise ValueError(
                f"Posterior {i} of the stack has other functions than the first: pass the same "
                f"log_likelihood and log_prior objects to all."
            )
        if _shapes(other) != first:
            raise ValueError(
                f"Posterior {i} of the stack has data or hyperparameters of other shapes or dtypes "
                f"than the first: only the number of rows may differ."
            )
    chains = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rests[0])
    return StackedPosterior(chains, len(posteriors))


def pad_rows(posterior: AbstractPosterior, num_rows: int) -> AbstractPosterior:
    """The same posterior with rows, copies of the first that do not count, to `num_rows`."""
    missing = num_rows - posterior.num_rows

    def pad(leaf):
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    longer = eqx.tree_at(lambda p: p.data, posterior, jax.tree.map(pad, posterior.data))
    count = jnp.asarray(posterior.num_examples, jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, longer, count, is_leaf=lambda leaf: leaf is None)


def _shapes(arrays: PyTree) -> tuple:
    leaves, treedef = jax.tree.flatten(arrays)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


# A target given by data, the log-likelihood of one example, and a log-prior.


class Posterior(RowPosterior):
    """A target given by the log-likelihood of one example, a log-prior, and the data.

        U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ)

    `data` is a pytree of arrays with a shared leading axis, one row an example, or a data frame,
    whose columns go by name; `log_likelihood` sees one example, a pytree of rows. Data larger than
    memory are a source (`sghmc.data`): rows are read as they are needed, and a pass over all of
    them streams. With `hyper`, a pytree of hyperparameters, the functions are
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
    num_real: jax.Array | None = None

    def __init__(self, log_likelihood, log_prior, data: PyTree, hyper: PyTree = None):
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        data = data.source if isinstance(data, SourceRef) else data
        is_source = isinstance(data, Source)
        self.data = SourceRef(data) if is_source else as_arrays(data)
        self.hyper = None if hyper is None else jax.tree.map(jnp.asarray, hyper)
        # An array, so that a run can follow it without compiling anew.
        is_growing = is_source and data.is_growing
        self.num_real = jnp.asarray(data.num_rows, jnp.int32) if is_growing else None

    @staticmethod
    def stack(posteriors: Sequence["Posterior"]) -> StackedPosterior:
        """One posterior for each chain of a run: cross-validation folds, say.

        They share functions and shapes but for the number of rows. `sample(…, posterior_axis=0)`
        runs one chain on each.
        """
        return stacked(posteriors)
