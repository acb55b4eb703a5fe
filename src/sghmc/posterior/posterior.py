"""Targets: a posterior over data, or any potential. The only home of the sign and of N/n."""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from sghmc.core import xla
from sghmc.display import notebook
from sghmc.posterior.source import DataError, Source
from sghmc.types import Change, Evaluation, PyTree

_CHUNK = 65_536
"""Rows that a full pass over the data looks at at once: bounds its memory."""
_CHUNK_BYTES = 1 << 28
"""On an accelerator, where a loop over chunks costs more than their memory, at least so many."""


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

    def _repr_html_(self) -> str:
        return notebook.settings(self)

    @property
    def source(self) -> None:
        return None

    @property
    def hyper(self) -> None:
        return None

    def with_hyper(self, hyper: PyTree) -> "Potential":
        return self

    def potential(self, params: PyTree) -> jax.Array:
        return self.function(params)

    def gradient(self, params: PyTree) -> PyTree:
        return jax.grad(self.potential)(params)

    def evaluate(self, params: PyTree) -> Evaluation:
        return Evaluation(*jax.value_and_grad(self.potential)(params))

    def change(self, old: PyTree, new: PyTree) -> Change:
        """U(new) − U(old), without terms."""
        return Change(self.potential(new) - self.potential(old), lambda rows: jnp.zeros(0), 0)


class Posterior(eqx.Module):
    """A target given by the log-likelihood of one example, a log-prior, and the data.

        U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ)

    `data` is a pytree of arrays with a shared leading axis, one row an example; `log_likelihood`
    sees one example, a pytree of rows. Data larger than memory are a source (`sghmc.data`): rows
    are read as they are needed, and a pass over all of them streams. With `hyper`, a pytree of
    hyperparameters, the functions are `log_likelihood(params, example, hyper)` and
    `log_prior(params, hyper)`.

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
    """How many rows count, where the data were padded to stack posteriors."""

    def _repr_html_(self) -> str:
        return notebook.settings(self)

    def __init__(self, log_likelihood, log_prior, data: PyTree, hyper: PyTree = None):
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        is_source = isinstance(data, Source)
        self.data = data if is_source else jax.tree.map(_as_array, data)
        self.hyper = None if hyper is None else jax.tree.map(jnp.asarray, hyper)
        # An array, so that a run can follow it without compiling anew.
        is_growing = is_source and data.is_growing
        self.num_real = jnp.asarray(data.num_rows, jnp.int32) if is_growing else None

    def __check_init__(self):
        for name in ("log_likelihood", "log_prior"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, not {getattr(self, name)!r}.")
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

    # By identity, so that jax.jit takes `posterior.gradient`: arrays have no hash.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @staticmethod
    def stack(posteriors: Sequence["Posterior"]) -> "StackedPosterior":
        """One posterior for each chain of a run: cross-validation folds, say.

        They share functions and shapes but for the number of rows. `sample(…, posterior_axis=0)`
        runs one chain on each.
        """
        return StackedPosterior(_stacked(posteriors), len(posteriors))

    @property
    def source(self) -> Source | None:
        """The data, where they are not arrays."""
        return self.data if isinstance(self.data, Source) else None

    @property
    def example(self) -> PyTree:
        """One example by shapes and dtypes alone."""
        if self.source is not None:
            return self.source.example
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data
        )

    @property
    def num_rows(self) -> int:
        """Rows of the arrays, padding included."""
        if self.source is not None:
            return self.source.num_rows
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def num_examples(self) -> int | jax.Array:
        """N."""
        return self.num_rows if self.num_real is None else self.num_real

    def with_hyper(self, hyper: PyTree) -> "Posterior":
        return eqx.tree_at(lambda p: p.hyper, self, hyper, is_leaf=lambda leaf: leaf is None)

    def rows(self, indices: jax.Array) -> PyTree:
        if self.source is not None:
            _check_random_access(self.source)
            return _read(self.source.take, self.source.like(len(indices)), indices)
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), self.data)

    def examples(self, variates: PyTree, i, size: int) -> PyTree:
        """Rows of a step's i-th batch of `size`: by their numbers, or as the host took them."""
        part = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i * size, size), variates)
        return part if self.source is not None else self.rows(part)

    def batch(self, variates: PyTree, i, size: int) -> PyTree:
        """The same in the form that sums of log-likelihoods take."""
        return self.examples(variates, i, size)

    def batch_size(self, batch: PyTree) -> int:
        return jax.tree.leaves(batch)[0].shape[0]

    def estimate(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Ũ(θ) = −(N/n) Σ log p(x | θ) − log p(θ), the sum over the n examples of a batch."""
        total = self.log_likelihood_sum(params, batch)
        scale = self.num_examples / self.batch_size(batch)
        return -scale * total - self.log_prior_at(params)

    def potential(self, params: PyTree) -> jax.Array:
        """U(θ) over all data."""
        return _potential(self, params)

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

    def gradient(self, params: PyTree) -> PyTree:
        """∇U(θ) over all data."""
        return _gradient(self, params)

    def evaluate(self, params: PyTree) -> Evaluation:
        """U and ∇U over all data."""
        of_prior = Evaluation(*jax.value_and_grad(self.log_prior_at)(params))
        return jax.tree.map(lambda x, y: -x - y, self.log_likelihood_total(params), of_prior)

    def log_likelihood_total(self, params: PyTree) -> Evaluation:
        """Σᵢ log p(xᵢ | θ) over all data, and its gradient."""

        def of_rows(rows, are_counted):
            def total(params):
                return jnp.sum(jnp.where(are_counted, self.log_likelihoods(params, rows), 0))

            return jax.value_and_grad(total)(params)

        return Evaluation(*self._over_chunks(of_rows))

    def sum_over_data(self, function: Callable[[PyTree], PyTree]) -> PyTree:
        """The sum over all examples of what `function` gives for some: arrays with a row for each.

        Looks at a bounded number of rows at a time.
        """

        def of_rows(rows, are_counted):
            def total(terms):
                counted = are_counted.reshape(-1, *[1] * (terms.ndim - 1))
                return jnp.sum(jnp.where(counted, terms, 0), axis=0)

            return jax.tree.map(total, function(rows))

        return self._over_chunks(of_rows)

    def _over_chunks(self, function: Callable[[PyTree, jax.Array], PyTree]) -> PyTree:
        """The sum of function(rows, are_counted) over chunks of the data.

        Rows that are not counted must be left out, not multiplied by 0: terms may be infinite.
        """
        if self.source is not None:
            return self._over_source(self.source, function)
        size = min(_chunk_rows(self.data), self.num_rows)

        def of_chunk(i):
            # By number: chunks of a reshaped array would be a copy of the data. The last reaches
            # back into the one before, whose rows do not count again: so all are compiled as one.
            first = jnp.minimum(i * size, self.num_rows - size)
            rows = jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, first, size), self._table
            )
            numbers = first + lax.iota(jnp.int32, size)
            are_counted = (numbers >= i * size) & (self._first + numbers < self.num_examples)
            return function(rows, are_counted)

        num_chunks = -(-self.num_rows // size)
        if num_chunks == 1:
            return of_chunk(0)
        parts = lax.map(of_chunk, jnp.arange(num_chunks))
        return jax.tree.map(lambda part: jnp.sum(part, 0), parts)

    @property
    def _table(self) -> PyTree:
        """The arrays of the data."""
        return self.data

    @property
    def _first(self) -> int | jax.Array:
        """The number of their first row."""
        return 0

    @property
    def _reader(self) -> tuple[int | jax.Array, int]:
        """Which reader of a source this is, of how many that share a pass."""
        return 0, 1

    def _over_source(self, source: Source, function: Callable) -> PyTree:
        """The same where the host reads each chunk: no more than one is in memory."""
        _check_random_access(source)
        count, (which, num_readers) = source.chunk_rows, self._reader

        def of_chunk(i):
            k = i * num_readers + which
            numbers = k * count + lax.iota(jnp.int32, count)
            return function(_read(source.chunk, source.like(count), k), numbers < self.num_examples)

        def add(k, total):
            return jax.tree.map(jnp.add, total, of_chunk(k))

        num_chunks = -(-source.num_rows // (count * num_readers))
        shapes = jax.eval_shape(of_chunk, 0)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.fori_loop(0, num_chunks, add, nothing)

    def log_likelihoods(self, params: PyTree, examples: PyTree) -> jax.Array:
        """log p(x | θ) of each of some examples."""
        hyper = () if self.hyper is None else (self.hyper,)
        return jax.vmap(lambda example: self.log_likelihood(params, example, *hyper))(examples)

    def log_likelihood_sum(self, params: PyTree, batch: PyTree) -> jax.Array:
        return jnp.sum(self.log_likelihoods(params, batch))

    def log_prior_at(self, params: PyTree) -> jax.Array:
        """log p(θ), given the hyperparameters where there are any."""
        return self.log_prior(params) if self.hyper is None else self.log_prior(params, self.hyper)


# Compiled, so that a pass over data that nobody compiled is not traced anew in every call.
@eqx.filter_jit
def _potential(posterior: Posterior, params: PyTree) -> jax.Array:
    total = posterior.sum_over_data(lambda rows: posterior.log_likelihoods(params, rows))
    return -total - posterior.log_prior_at(params)


@eqx.filter_jit
def _gradient(posterior: Posterior, params: PyTree) -> PyTree:
    return posterior.evaluate(params).grad


def _chunk_rows(data: PyTree) -> int:
    if not xla.has_accelerator():
        return _CHUNK
    row = sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data))
    return max(_CHUNK, _CHUNK_BYTES // max(1, row))


class StackedPosterior(eqx.Module):
    """Posteriors of the same model on different data; made by `Posterior.stack`.

    `chains` is a Posterior whose arrays have one more leading axis, that of the chains.
    """

    chains: Posterior
    num_chains: int

    @property
    def source(self) -> None:
        return None

    @property
    def hyper(self) -> PyTree:
        return self.chains.hyper

    def __getitem__(self, chain: int) -> Posterior:
        arrays, rest = eqx.partition(self.chains, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[chain], arrays), rest)


def _stacked(posteriors: Sequence[Posterior]) -> Posterior:
    if not posteriors or not all(isinstance(p, Posterior) for p in posteriors):
        raise TypeError("Posterior.stack needs a list of posteriors, at least one.")
    if any(p.source is not None for p in posteriors):
        raise TypeError(
            "Posterior.stack takes arrays only, but a posterior of the stack has a source for its "
            "data: run it by itself."
        )
    longest = max(p.num_rows for p in posteriors)
    parts = [eqx.partition(padded(p, longest), eqx.is_array) for p in posteriors]
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
    return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rests[0])


def _shapes(arrays: PyTree) -> tuple:
    leaves, treedef = jax.tree.flatten(arrays)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


def padded(posterior: Posterior, num_rows: int) -> Posterior:
    """The same posterior with rows, copies of the first that do not count, to `num_rows`."""
    missing = num_rows - posterior.num_rows

    def pad(leaf):
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    padded = eqx.tree_at(lambda p: p.data, posterior, jax.tree.map(pad, posterior.data))
    count = jnp.asarray(posterior.num_examples, jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, padded, count, is_leaf=lambda leaf: leaf is None)


Target = Potential | Posterior


def _check_random_access(source: Source) -> None:
    if source.is_sequential:
        raise DataError(
            "Rows of a stream come by once: a pass over all data, or a look at chosen rows, needs "
            "arrays or a source such as MemoryMapped. Exact potentials and gradients, accept "
            "steps, ControlVariate and tune do; Minibatch with SGHMC or SGLD does not."
        )


def _read(function: Callable, like: PyTree, argument) -> PyTree:
    """What the host answers: at once, or from within a compiled program."""
    if isinstance(argument, Tracer):
        return jax.pure_callback(function, like, argument, vmap_method="sequential")
    return jax.tree.map(jnp.asarray, function(np.asarray(argument)))


def _as_array(leaf) -> jax.Array:
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        if leaf.dtype.kind not in "fiubc":
            raise TypeError(f"data must hold numbers, but holds an array of dtype {leaf.dtype}.")
    return jnp.asarray(leaf)
