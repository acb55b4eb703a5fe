"""Posteriors: U from the log-likelihoods of data and a log-prior, with the sign and N/n.

`AbstractPosterior` has the sums, `RowPosterior` stores rows in arrays or a source, `Posterior` is
what users construct, and `StackedPosterior` has one posterior for each chain.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import runtime
from sghmc.core.checks import as_array
from sghmc.posterior import passes
from sghmc.posterior.passes import OfRows
from sghmc.posterior.sources import Source, SourceRef
from sghmc.posterior.target import Target
from sghmc.types import Change, Evaluation, PyTree


class AbstractPosterior(Target):
    """U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ), independent of where the rows xᵢ are stored.

    `num_real` is the number of rows that count, if the data were padded for a stack, or grow.
    """

    log_likelihood: eqx.AbstractVar[Callable[..., jax.Array]]
    log_prior: eqx.AbstractVar[Callable[..., jax.Array]]
    data: eqx.AbstractVar[PyTree]
    num_real: eqx.AbstractVar[jax.Array | None]

    # Hashed by identity, so that jax.jit accepts `posterior.gradient`: arrays have no hash.
    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    # Rows

    @property
    def source(self) -> Source | None:
        return self.data.source if isinstance(self.data, SourceRef) else None

    @property
    def example(self) -> PyTree:
        """The shapes and dtypes of one example."""
        if self.source is not None:
            return self.source.example
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data
        )

    @property
    def num_rows(self) -> int:
        """The number of rows stored here, padding included."""
        if isinstance(self.data, SourceRef):
            return self.data.source.num_rows
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    @abc.abstractmethod
    def num_examples(self) -> int | jax.Array:
        """The number N of examples."""

    @abc.abstractmethod
    def rows(self, indices: jax.Array) -> PyTree:
        """Return rows by their numbers among all."""

    @abc.abstractmethod
    def examples(self, variates: PyTree, i, size: int) -> PyTree:
        """Return the rows of a step's i-th batch; the variates are row numbers, or the rows."""

    @abc.abstractmethod
    def batch(self, variates: PyTree, i, size: int) -> PyTree:
        """Return a step's i-th batch in the form that `log_likelihood_sum` takes."""

    @abc.abstractmethod
    def batch_size(self, batch: PyTree) -> int:
        """Return the number of rows of a batch."""

    @abc.abstractmethod
    def _over_rows(self, of_rows: OfRows) -> PyTree:
        """Return the sum of a function of rows over chunks of all data."""

    def with_hyper(self, hyper: PyTree) -> Self:
        return eqx.tree_at(lambda p: p.hyper, self, hyper, is_leaf=lambda leaf: leaf is None)

    # Log-likelihoods

    def log_prior_at(self, params: PyTree) -> jax.Array:
        """Return log p(θ), given the hyperparameters if there are any."""
        return self.log_prior(params) if self.hyper is None else self.log_prior(params, self.hyper)

    def log_likelihoods(self, params: PyTree, examples: PyTree) -> jax.Array:
        """Return log p(x | θ) of each example."""
        hyper = () if self.hyper is None else (self.hyper,)
        return jax.vmap(lambda example: self.log_likelihood(params, example, *hyper))(examples)

    @abc.abstractmethod
    def log_likelihood_sum(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Return Σ log p(x | θ) over a batch."""

    def log_likelihood_total(self, params: PyTree) -> Evaluation:
        """Return Σᵢ log p(xᵢ | θ) over all data, and its gradient."""

        def of_rows(rows, are_counted):
            def total(params):
                return jnp.sum(jnp.where(are_counted, self.log_likelihoods(params, rows), 0))

            return jax.value_and_grad(total)(params)

        return Evaluation(*self._over_rows(of_rows))

    def sum_over_data(self, function: Callable[[PyTree], PyTree]) -> PyTree:
        """Sum a function of examples over all data, a bounded number of rows at a time.

        `function` takes some examples and returns arrays with a row for each.
        """

        def of_rows(rows, are_counted):
            def total(terms):
                counted = are_counted.reshape(-1, *[1] * (terms.ndim - 1))
                return jnp.sum(jnp.where(counted, terms, 0), axis=0)

            return jax.tree.map(total, function(rows))

        return self._over_rows(of_rows)

    # Potentials

    def estimate(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Return Ũ(θ) = −(N/n) Σ log p(x | θ) − log p(θ), summed over the n rows of a batch."""
        total = self.log_likelihood_sum(params, batch)
        return self.scaled(total, batch) - self.log_prior_at(params)

    def scaled(self, total: jax.Array, batch: PyTree) -> jax.Array:
        """Return −(N/n) Σ log p(x | θ), the data's part of Ũ, from the sum over a batch."""
        return -(self.num_examples / self.batch_size(batch)) * total

    def potential(self, params: PyTree) -> jax.Array:
        """Return U(θ) over all data."""
        return _potential(self, params)

    def gradient(self, params: PyTree) -> PyTree:
        """Return ∇U(θ) over all data."""
        return _gradient(self, params)

    def evaluate(self, params: PyTree) -> Evaluation:
        """Return U and ∇U over all data."""
        of_prior = Evaluation(*jax.value_and_grad(self.log_prior_at)(params))
        return jax.tree.map(lambda x, y: -x - y, self.log_likelihood_total(params), of_prior)

    def change(self, old: PyTree, new: PyTree) -> Change:
        """Return U(new) − U(old) with a term for each row."""
        if self.source is not None and self.source.is_sequential:
            raise ValueError(
                "The accept step needs rows by their numbers, but this source of data yields them "
                "in its own order: use a source with random access, or no accept step."
            )

        def terms(rows):
            examples = self.rows(rows)
            return self.log_likelihoods(old, examples) - self.log_likelihoods(new, examples)

        known = self.log_prior_at(old) - self.log_prior_at(new)
        return Change(known, terms, self.num_examples)


# Compiled, so that a call outside of compiled programs is traced once.
@eqx.filter_jit
def _potential(posterior: AbstractPosterior, params: PyTree) -> jax.Array:
    total = posterior.sum_over_data(lambda rows: posterior.log_likelihoods(params, rows))
    return -total - posterior.log_prior_at(params)


@eqx.filter_jit
def _gradient(posterior: AbstractPosterior, params: PyTree) -> PyTree:
    return posterior.evaluate(params).grad


def part_of(variates: PyTree, i, size: int) -> PyTree:
    """Return the i-th of several equal parts of a step's row numbers, or rows."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i * size, size), variates)


class RowPosterior(AbstractPosterior):
    """A posterior whose data are a source, or arrays whose leading axes count examples."""

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
    def num_examples(self):
        return self.num_rows if self.num_real is None else self.num_real

    def rows(self, indices):
        if self.source is not None:
            return passes.rows_of_source(self.source, indices)
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), self.data)

    def examples(self, variates, i, size):
        part = part_of(variates, i, size)
        return part if self.source is not None else self.rows(part)

    batch = examples

    def batch_size(self, batch):
        return jax.tree.leaves(batch)[0].shape[0]

    def log_likelihood_sum(self, params, batch):
        is_whole = self.batch_size(batch) <= 2 * passes.CPU_BATCH_CHUNK_ROWS
        if is_whole or runtime.has_accelerator():
            return jnp.sum(self.log_likelihoods(params, batch))
        return passes.sum_over_batch(batch, functools.partial(self.log_likelihoods, params))

    def _over_rows(self, of_rows):
        if self.source is not None:
            return passes.sum_over_source(self.source, of_rows, self.num_examples)
        return passes.sum_over_table(self.data, of_rows, self.num_examples)


def as_arrays(data: PyTree) -> PyTree:
    """Convert data to arrays with the dtypes of jax; a data frame becomes a dict of columns."""
    return jax.tree.map(lambda leaf: as_array(leaf, "The data"), _columns(data))


def _columns(data: PyTree) -> PyTree:
    """Return a data frame's columns by name, and other data unchanged."""
    is_frame = hasattr(data, "columns") and hasattr(data, "to_numpy")
    return {str(name): np.asarray(data[name]) for name in data.columns} if is_frame else data


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
        """None: stacked data are arrays."""
        return None

    @property
    def hyper(self) -> PyTree:
        """The hyperparameters of all chains, or None."""
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
    """Pad a posterior to `num_rows` rows with copies of the first, which do not count."""
    missing = num_rows - posterior.num_rows

    def pad(leaf):
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    longer = eqx.tree_at(lambda p: p.data, posterior, jax.tree.map(pad, posterior.data))
    count = jnp.asarray(posterior.num_examples, jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, longer, count, is_leaf=lambda leaf: leaf is None)


def _shapes(arrays: PyTree) -> tuple:
    leaves, treedef = jax.tree.flatten(arrays)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


class Posterior(RowPosterior):
    """A target given by the log-likelihood of one example, a log-prior, and the data.

        U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ)

    `data` is a pytree of arrays with a shared leading axis, one row an example, or a data frame,
    whose columns become a dict; `log_likelihood` gets one example, a pytree of rows. For data
    larger than memory give a source (`sghmc.data`): rows are read as they are needed, and a pass
    over all of them streams. With `hyper`, a pytree of hyperparameters, the functions are
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
        self.hyper = jax.tree.map(lambda leaf: as_array(leaf, "The hyperparameters"), hyper)
        # An array, so that a new number of rows does not recompile the run.
        is_growing = is_source and data.is_growing
        self.num_real = jnp.asarray(data.num_rows, jnp.int32) if is_growing else None

    @staticmethod
    def stack(posteriors: Sequence["Posterior"]) -> StackedPosterior:
        """Stack posteriors, one for each chain of a run: cross-validation folds, for example.

        They share functions and shapes but for the number of rows. `sample(…, posterior_axis=0)`
        runs one chain on each.
        """
        return stacked(posteriors)
