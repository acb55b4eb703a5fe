"""Posteriors whose rows or batches are sharded over the devices of a mesh.

In a `ManuallyShardedPosterior` each device sums over its own rows, and the sums are added; no row
moves. A batch is a list of row numbers, the same on every device, of which each picks those that it
has; of a source, each device reads a part of the batch. In a `CompilerShardedPosterior` XLA shards
the batches along an axis of the mesh.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sghmc.core import runtime
from sghmc.posterior import passes
from sghmc.posterior.posterior import AbstractPosterior, RowPosterior, part_of
from sghmc.types import PyTree

_MARGIN_DEVIATIONS = 5.0
"""A device handles the expected number of its rows of a batch at a time, plus this many standard
deviations."""
_CPU_CHUNK_ROWS = 1024
"""Rows of a batch that a CPU handles at a time, so that they stay in its cache."""


class OwnRows(eqx.Module):
    """The rows of one device; any access raises, so that they are not mistaken for all data."""

    rows: PyTree

    def __getattr__(self, name):
        raise _not_here(name)

    def __getitem__(self, place):
        raise _not_here(f"[{place!r}]")

    def __iter__(self):
        raise _not_here("iteration")


def _not_here(what: str) -> AttributeError:
    return AttributeError(
        f"posterior.data ({what}) cannot be accessed where a mesh shards its rows over devices: "
        f"take sums over all of them by posterior.sum_over_data, or a mesh without a data axis."
    )


class PickedRows(NamedTuple):
    """The device's rows of a batch of `size`: their local numbers, followed by others."""

    numbers: jax.Array
    num_picked: jax.Array
    size: int


class ReadRows(NamedTuple):
    """The rows of a batch of `size` that were read for this device."""

    rows: PyTree
    size: int


class ManuallyShardedPosterior(AbstractPosterior):
    """The posterior on one device of a mesh axis, inside `jax.shard_map`.

    `data` has the device's rows, or is the whole source. Everything that this posterior returns is
    the same on all devices of the axis.
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    num_real: jax.Array | None
    axis: str = eqx.field(static=True)
    num_shards: int = eqx.field(static=True)
    hyper: PyTree = None

    def __init__(self, posterior: AbstractPosterior, axis: str, num_shards: int):
        """Wrap a posterior with the device's rows, padded to equal numbers on all devices."""
        self.log_likelihood, self.log_prior = posterior.log_likelihood, posterior.log_prior
        self.data = posterior.data if posterior.source is not None else OwnRows(posterior.data)
        self.hyper, self.num_real = posterior.hyper, posterior.num_real
        self.axis, self.num_shards = axis, num_shards

    @property
    def _table(self) -> PyTree:
        """The arrays of the device's own rows; only if the data are arrays."""
        return cast(OwnRows, self.data).rows

    @property
    def example(self) -> PyTree:
        return super().example if self.source is not None else super().example.rows

    @property
    def num_examples(self):
        if self.num_real is not None:
            return self.num_real
        return self.num_rows * (1 if self.source is not None else self.num_shards)

    @property
    def _first(self) -> jax.Array:
        """The number of the device's first row among all rows."""
        return lax.axis_index(self.axis) * self.num_rows

    def _local(self, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Convert global row numbers to local ones, with a mask of those that are here."""
        number = indices - self._first
        return number, (number >= 0) & (number < self.num_rows)

    def rows(self, indices):
        """Return rows by global numbers: each comes from its owner, added to zeros."""
        if self.source is not None:
            return passes.rows_of_source(self.source, indices)
        number, is_here = self._local(indices)
        number = jnp.where(is_here, number, 0)

        def of_owner(leaf):
            found = leaf[number]
            is_own = is_here.reshape(-1, *[1] * (found.ndim - 1))
            return lax.psum(jnp.where(is_own, found, jnp.zeros_like(found)), self.axis)

        return jax.tree.map(of_owner, self._table)

    def examples(self, variates, i, size):
        if self.source is None:
            return self.rows(part_of(variates, i, size))
        return jax.tree.map(
            lambda leaf: lax.all_gather(leaf, self.axis, tiled=True),
            part_of(variates, i, size // self.num_shards),
        )

    def batch(self, variates, i, size):
        if self.source is not None:
            return ReadRows(part_of(variates, i, size // self.num_shards), size)
        number, is_here = self._local(part_of(variates, i, size))
        return PickedRows(_chosen_first(number, is_here), jnp.sum(is_here), size)

    def batch_size(self, batch):
        is_sharded = isinstance(batch, PickedRows | ReadRows)
        return batch.size if is_sharded else jax.tree.leaves(batch)[0].shape[0]

    def log_likelihood_sum(self, params, batch):
        if not isinstance(batch, PickedRows | ReadRows):
            return jnp.sum(self.log_likelihoods(params, batch))
        here = (self, batch._replace(size=0))
        arrays, rest = eqx.partition(here, eqx.is_array)

        # One psum for the sum and its gradient. Written out, since the transpose of psum does not
        # know that the parameters are the same on all devices.
        @jax.custom_vjp
        def total(params, arrays):
            return forward(params, arrays)[0]

        def forward(params, arrays):
            shard, batch = eqx.combine(arrays, rest)
            return lax.psum(shard._own_sum(params, batch._replace(size=size)), shard.axis)

        def backward(grad, factor):
            return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), grad), None

        size = batch.size
        total.defvjp(forward, backward)
        return total(params, arrays)

    def _own_sum(self, params: PyTree, batch: PickedRows | ReadRows) -> tuple[jax.Array, PyTree]:
        """Return the sum over this device's part of a batch, and its gradient."""
        if isinstance(batch, ReadRows):
            return self._weighted_sum(params, batch.rows, None)
        width = _chunk_size(batch.size, self.num_shards)
        numbers = jnp.pad(batch.numbers, (0, -batch.size % width))

        def is_left(loop):
            return loop[0] < batch.num_picked

        def add_some(loop):
            first, total = loop
            number = lax.dynamic_slice_in_dim(numbers, first, width)
            is_real = first + lax.iota(jnp.int32, width) < batch.num_picked
            # The others repeat a picked row: another row's log-likelihood might not be finite.
            number = jnp.where(is_real, number, number[0])
            rows = jax.tree.map(
                lambda leaf: leaf.at[number].get(mode="promise_in_bounds"), self._table
            )
            some = self._weighted_sum(params, rows, is_real)
            return first + width, jax.tree.map(jnp.add, total, some)

        shapes = jax.eval_shape(lambda: add_some((0, (0.0, params)))[1])
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.while_loop(is_left, add_some, (jnp.int32(0), nothing))[1]

    def _weighted_sum(self, params, rows, is_counted) -> tuple[jax.Array, PyTree]:
        def total(params):
            terms = self.log_likelihoods(params, rows)
            return jnp.sum(terms if is_counted is None else jnp.where(is_counted, terms, 0))

        return jax.value_and_grad(total)(params)

    def _over_rows(self, of_rows):
        if self.source is None:
            own = passes.sum_over_table(self._table, of_rows, self.num_examples, self._first)
        else:
            own = passes.sum_over_source(
                self.source,
                of_rows,
                self.num_examples,
                reader=lax.axis_index(self.axis),
                num_readers=self.num_shards,
            )
        return lax.psum(own, self.axis)


def _chosen_first(numbers: jax.Array, are_chosen: jax.Array) -> jax.Array:
    """Return the chosen numbers, followed by arbitrary ones."""
    if runtime.has_accelerator():
        return lax.sort(jnp.where(are_chosen, numbers, jnp.iinfo(numbers.dtype).max))
    return _gathered(numbers, are_chosen)


@jax.custom_batching.sequential_vmap
def _gathered(numbers: jax.Array, are_chosen: jax.Array) -> jax.Array:
    """Return the chosen numbers first, by a loop, several times as fast on CPUs as XLA's sort."""

    def put(loop, pair):
        """Write a number; one that is not chosen is overwritten by the next."""
        chosen, count = loop
        number, is_chosen = pair
        return (chosen.at[count].set(number), count + is_chosen), None

    nothing = jnp.zeros(len(numbers), numbers.dtype), jnp.int32(0)
    return lax.scan(put, nothing, (numbers, are_chosen))[0][0]


def _chunk_size(size: int, num_shards: int) -> int:
    """Return the number of rows of a batch that a device handles at a time.

    On an accelerator it is large enough that a second turn is needed only by rare chance.
    """
    if not runtime.has_accelerator():
        return min(size, _CPU_CHUNK_ROWS)
    expected = size / num_shards
    return min(size, math.ceil(expected + _MARGIN_DEVIATIONS * math.sqrt(expected)))


class CompilerShardedPosterior(RowPosterior):
    """A posterior whose batches are sharded along a mesh axis with `with_sharding_constraint`.

    All devices run one program. Unlike with `ManuallyShardedPosterior`, parameters may be sharded
    along that axis, too.
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    num_real: jax.Array | None
    where: NamedSharding | PartitionSpec = eqx.field(static=True)
    num_parts: int = eqx.field(static=True)
    hyper: PyTree = None

    @classmethod
    def of(
        cls, posterior: RowPosterior, where: NamedSharding | PartitionSpec, num_parts: int
    ) -> Self:
        return cls(
            posterior.log_likelihood,
            posterior.log_prior,
            posterior.data,
            posterior.num_real,
            where,
            num_parts,
            posterior.hyper,
        )

    def batch(self, variates, i, size):
        rows = super().batch(variates, i, size)
        if size % self.num_parts:
            return rows
        return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, self.where), rows)
