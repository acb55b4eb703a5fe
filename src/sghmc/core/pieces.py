"""Long computations that treat every entry of their arrays alike, a piece at a time."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import xla

_ENTRIES = 16_384
"""Of a piece: a dozen arrays of these stay in a processor's cache."""


def in_pieces(
    function: Callable[..., tuple[jax.Array, ...]], groups: Sequence[tuple[jax.Array, ...]]
) -> list[tuple[jax.Array, ...]]:
    """`function` of each group of arrays, which gives arrays of their shape, entry by entry.

    The arrays of a group broadcast. They are made whole, but for single numbers of a single group,
    and the entries of all groups go through one program, computed once, wherever its results enter.
    On CPUs a piece of them at a time, which stays in the cache.

    Left alone, XLA would look through broadcast rows and compute parts of `function` for these
    alone, in a program whose size, and so the time to compile it, grows exponentially with the
    length of the computation. A loop or, elsewhere than on CPUs, a barrier keeps it from that.
    """
    shapes = [jnp.broadcast_shapes(*(array.shape for array in group)) for group in groups]
    columns = zip(*(_whole(*each) for each in zip(groups, shapes, strict=True)), strict=True)
    is_alone = len(groups) == 1
    vectors = [
        column[0].reshape(-1)[0] if is_alone and groups[0][i].size == 1 else jnp.concatenate(column)
        for i, column in enumerate(columns)
    ]
    results = (_barred if xla.has_accelerator() else _looped)(
        function, vectors, sum(math.prod(shape) for shape in shapes)
    )
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = zip(*(jnp.split(result, ends) for result in results), strict=True)
    return [
        tuple(part.reshape(shape) for part in of_group)
        for of_group, shape in zip(parts, shapes, strict=True)
    ]


def _whole(group: tuple[jax.Array, ...], shape: tuple[int, ...]) -> list[jax.Array]:
    return [jnp.broadcast_to(array, shape).reshape(-1) for array in group]


def _barred(function: Callable, vectors: list[jax.Array], size: int) -> tuple[jax.Array, ...]:
    results = function(*lax.optimization_barrier(vectors))
    results = tuple(jnp.broadcast_to(result, size) for result in results)
    return lax.optimization_barrier(results)


def _looped(function: Callable, vectors: list[jax.Array], size: int) -> tuple[jax.Array, ...]:
    length = max(1, min(_ENTRIES, -(-size // 2)))  # two pieces at least, or there is no loop

    def piece(start):
        part = [x if x.ndim == 0 else lax.dynamic_slice_in_dim(x, start, length) for x in vectors]
        return tuple(jnp.broadcast_to(result, length) for result in function(*part))

    def one(k, results):
        # The last piece reaches back into the one before, and computes the same there.
        start = jnp.minimum(k * length, size - length)
        return tuple(
            lax.dynamic_update_slice_in_dim(result, part, start, 0)
            for result, part in zip(results, piece(start), strict=True)
        )

    like = jax.eval_shape(piece, np.int32(0))
    empty = tuple(jnp.zeros(size, leaf.dtype) for leaf in like)
    return lax.fori_loop(0, -(-size // length), one, empty)
