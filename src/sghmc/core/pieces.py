"""Long computations that treat every entry of their arrays alike, a piece at a time."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from sghmc.core import xla

_ENTRIES = 16_384
"""Of a piece: a dozen arrays of these stay in a processor's cache."""


def in_pieces(
    function: Callable[..., tuple[jax.Array, ...]], *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """`function` of arrays that broadcast, which gives arrays of their shape, entry by entry.

    The arrays are made whole first, but for single numbers, and the results computed once, wherever
    they enter. On CPUs by pieces of vectors: rows are shorter than a processor's registers, and what
    stays in the cache is quicker.

    Left alone, XLA would look through broadcast rows and compute parts of `function` for these
    alone, in a program whose size, and so the time to compile it, grows exponentially with the
    length of the computation. A loop or, elsewhere than on CPUs, a barrier keeps it from that.
    """
    shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    whole = [
        array.reshape(()) if array.size == 1 else jnp.broadcast_to(array, shape) for array in arrays
    ]
    if xla.has_accelerator():
        results = function(*lax.optimization_barrier(whole))
        results = tuple(jnp.broadcast_to(result, shape) for result in results)
        return lax.optimization_barrier(results)
    size = math.prod(shape)
    length = max(1, min(_ENTRIES, -(-size // 2)))  # two pieces at least, or there is no loop
    flat = [array if array.ndim == 0 else array.reshape(-1) for array in whole]

    def piece(start):
        return function(
            *(x if x.ndim == 0 else lax.dynamic_slice_in_dim(x, start, length) for x in flat)
        )

    def one(k, results):
        # The last piece reaches back into the one before, and computes the same there.
        start = jnp.minimum(k * length, size - length)
        return tuple(
            lax.dynamic_update_slice_in_dim(result, jnp.broadcast_to(part, length), start, 0)
            for result, part in zip(results, piece(start), strict=True)
        )

    empty = tuple(jnp.zeros(size, leaf.dtype) for leaf in jax.eval_shape(piece, 0))
    results = lax.fori_loop(0, -(-size // length), one, empty)
    return tuple(result.reshape(shape) for result in results)
