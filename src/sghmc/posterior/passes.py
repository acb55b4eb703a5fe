"""Sums over all rows, of arrays or of a source, a bounded number of them at a time."""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from sghmc.core import runtime
from sghmc.posterior.sources import DataError, Source, TracedSource
from sghmc.types import PyTree

_MIN_CHUNK_ROWS = 65_536
"""Rows of a chunk of a full pass over arrays; they bound its memory."""
_ACCELERATOR_CHUNK_BYTES = 1 << 28
"""Bytes of a chunk on an accelerator, where a longer loop would cost more than the memory."""

CPU_BATCH_CHUNK_ROWS = 131_072
"""Rows of a batch that a CPU handles at a time, so that intermediate results stay in its cache."""

OfRows: TypeAlias = Callable[[PyTree, jax.Array], PyTree]
"""A function of rows and of a mask of those that count.

Rows that do not count must be left out, not multiplied by 0: terms may be infinite.
"""


def sum_over_table(
    table: PyTree,
    of_rows: OfRows,
    num_examples: int | jax.Array,
    first: int | jax.Array = 0,
) -> PyTree:
    """Return the sum of `of_rows` over chunks of arrays; their first row has number `first`."""
    num_rows = jax.tree.leaves(table)[0].shape[0]
    size = min(_chunk_rows(table), num_rows)

    def of_chunk(i):
        rows, numbers, is_new = _chunk(table, i, size)
        return of_rows(rows, is_new & (first + numbers < num_examples))

    num_chunks = -(-num_rows // size)
    if num_chunks == 1:
        return of_chunk(0)
    parts = lax.map(of_chunk, jnp.arange(num_chunks))
    return jax.tree.map(lambda part: jnp.sum(part, 0), parts)


def sum_over_batch(batch: PyTree, terms: Callable[[PyTree], jax.Array]) -> jax.Array:
    """Return the sum of `terms` over the rows of a batch too large for a CPU's cache, in chunks.

    The intermediate results of a chunk are not stored for the gradient but computed again.
    """
    num_rows = jax.tree.leaves(batch)[0].shape[0]

    @jax.checkpoint
    def of_chunk(i):
        rows, _, is_new = _chunk(batch, i, CPU_BATCH_CHUNK_ROWS)
        return jnp.sum(jnp.where(is_new, terms(rows), 0))

    def add(total, i):
        return total + of_chunk(i), None

    nothing = jnp.zeros((), jax.eval_shape(of_chunk, 0).dtype)
    return lax.scan(add, nothing, jnp.arange(-(-num_rows // CPU_BATCH_CHUNK_ROWS)))[0]


def _chunk(table: PyTree, i, size: int) -> tuple[PyTree, jax.Array, jax.Array]:
    """Return the rows of the i-th chunk, their numbers, and which were in no chunk before."""
    num_rows = jax.tree.leaves(table)[0].shape[0]
    # Sliced, since reshaping the array to chunks would copy the data. The last chunk overlaps the
    # one before, whose rows do not count again, so that all have one shape and compile once.
    start = jnp.minimum(i * size, num_rows - size)
    rows = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size), table)
    numbers = start + lax.iota(jnp.int32, size)
    return rows, numbers, numbers >= i * size


def sum_over_source(
    source: Source,
    of_rows: OfRows,
    num_examples: int | jax.Array,
    *,
    reader: int | jax.Array = 0,
    num_readers: int = 1,
) -> PyTree:
    """Return the sum of `of_rows` over chunks that the host reads one at a time.

    If several readers share the pass, `reader` takes every `num_readers`-th chunk.
    """
    check_random_access(source)
    count = source.chunk_rows

    def of_chunk(i):
        k = i * num_readers + reader
        numbers = k * count + lax.iota(jnp.int32, count)
        return of_rows(_read(source, "chunk", source.like(count), k), numbers < num_examples)

    def add(k, total):
        return jax.tree.map(jnp.add, total, of_chunk(k))

    num_chunks = -(-source.num_rows // (count * num_readers))
    shapes = jax.eval_shape(of_chunk, 0)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.fori_loop(0, num_chunks, add, nothing)


def rows_of_source(source: Source, indices: jax.Array) -> PyTree:
    """Return the rows of these numbers, read by the host."""
    check_random_access(source)
    return _read(source, "take", source.like(len(indices)), indices)


def check_random_access(source: Source) -> None:
    if source.is_sequential:
        raise DataError(
            "Rows of a stream come only once: a pass over all data, or access to chosen rows, "
            "needs arrays or a source such as MemoryMapped. Exact potentials and gradients, accept "
            "steps, ControlVariate and tune need it; Minibatch with SGHMC or SGLD does not."
        )


def _read(source: Source, method: str, like: PyTree, argument) -> PyTree:
    """Call a method of the host's source: directly, or from within a compiled program."""
    if isinstance(source, TracedSource):
        return source.call(method, like, jnp.asarray(argument))
    on_host = getattr(source, method)
    if isinstance(argument, Tracer):
        return jax.pure_callback(on_host, like, argument, vmap_method="sequential")
    return jax.tree.map(jnp.asarray, on_host(np.asarray(argument)))


def _chunk_rows(table: PyTree) -> int:
    if not runtime.has_accelerator():
        return _MIN_CHUNK_ROWS
    row = sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(table))
    return max(_MIN_CHUNK_ROWS, _ACCELERATOR_CHUNK_BYTES // max(1, row))
