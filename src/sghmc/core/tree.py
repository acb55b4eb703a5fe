"""Operations on parameters, which are any pytree of float arrays: leaf by leaf, or raveled."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Shaped

from sghmc.types import PyTree

__all__ = [
    "add_scaled",
    "all_finite",
    "entry_name",
    "float_type",
    "ravel",
    "size",
    "sizes",
    "total",
    "unravel",
]

MAX_UNROLLED_LEAVES = 16
"""Number of arrays up to which code for each leaf costs little compile time; with more it would
dominate."""


def sizes(tree: PyTree) -> list[int]:
    """Return the number of entries of each leaf."""
    return [math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(tree)]


def size(tree: PyTree) -> int:
    """Return the number of entries of all leaves."""
    return sum(sizes(tree))


def float_type(tree: PyTree):
    """Return the dtype of settings and matrices for these parameters: at least single precision."""
    with jax.numpy_dtype_promotion("standard"):  # a user may have asked for "strict"
        return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(tree)))


def ravel(tree: PyTree) -> Shaped[Array, " d"]:
    """Concatenate all entries to one vector, leaf after leaf; mixed dtypes are promoted."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def unravel(vector: Shaped[Array, " d"], like: PyTree) -> PyTree:
    """Invert `ravel`: cut a vector into the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    parts, start = [], 0
    for leaf in leaves:
        stop = start + math.prod(leaf.shape)
        parts.append(vector[start:stop].reshape(leaf.shape).astype(leaf.dtype))
        start = stop
    return jax.tree.unflatten(treedef, parts)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether no entry is infinite or NaN."""
    # x − x is 0 unless x is infinite or NaN. On CPUs a sum calls a library, while a reduction by
    # "and" would be compiled, in three parts.
    zeros = [jnp.sum(term) for term in _gathered([leaf - leaf for leaf in jax.tree.leaves(tree)])]
    return jnp.all(jnp.stack(zeros) == 0) if zeros else jnp.asarray(True)


def total(terms: Sequence[Array]) -> Shaped[Array, ""]:
    """Return the sum of all entries of all arrays."""
    return sum((jnp.sum(term) for term in _gathered(terms)), start=jnp.zeros(()))


def _gathered(terms: Sequence[Array]) -> Sequence[Array]:
    """Add up arrays of equal shape if there are many, so that fewer reductions are compiled."""
    if len(terms) <= MAX_UNROLLED_LEAVES:
        return terms
    alike: dict[Any, list[Array]] = {}
    for term in terms:
        alike.setdefault((term.shape, term.dtype), []).append(term)
    return [
        functools.reduce(jnp.add, group[first : first + MAX_UNROLLED_LEAVES])
        for group in alike.values()
        for first in range(0, len(group), MAX_UNROLLED_LEAVES)
    ]


def add_scaled(tree: PyTree, factor, direction: PyTree) -> PyTree:
    """Return tree + factor · direction, in the dtypes of `tree`."""
    return jax.tree.map(lambda x, y: (x + factor * y).astype(x.dtype), tree, direction)


def entry_name(like: PyTree, index: int) -> str:
    """Return the name of entry `index` of the raveled parameters, such as params['weights'][3]."""
    for path, leaf in jax.tree.leaves_with_path(like):
        count = math.prod(leaf.shape)
        if index < count:
            axes = np.unravel_index(index, leaf.shape) if leaf.shape else ()
            return f"params{jax.tree_util.keystr(path)}" + "".join(f"[{i}]" for i in axes)
        index -= count
    raise IndexError(f"The parameters have no entry {index}.")


class RunningSum(NamedTuple):
    """A compensated sum (Kahan): ten million single-precision terms lose nothing that matters."""

    total: PyTree
    lost: PyTree
    num_terms: jax.Array

    @classmethod
    def zeros(cls, like: PyTree) -> "RunningSum":
        """Return the sum of no terms, of the shapes of `like`."""
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, jnp.result_type(leaf.dtype, jnp.float32)), like
        )
        return cls(zeros, zeros, jnp.zeros((), jnp.int32))

    def add(self, value: PyTree, is_counted: jax.Array) -> "RunningSum":
        """Add `value`, or nothing where `is_counted` is False."""
        terms = jax.tree.map(
            lambda total, lost, term: term.astype(total.dtype) - lost, self.total, self.lost, value
        )
        new = jax.tree.map(jnp.add, self.total, terms)
        # The rounding error of this addition, which is subtracted from the next term.
        lost = jax.tree.map(lambda n, old, term: (n - old) - term, new, self.total, terms)

        def counted(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(is_counted, new, old)

        return RunningSum(
            jax.tree.map(counted, new, self.total),
            jax.tree.map(counted, lost, self.lost),
            self.num_terms + is_counted,
        )

    def mean(self) -> PyTree:
        """Return the mean of the terms; `lost` is below the last digit of the total."""
        return jax.tree.map(lambda total: total / self.num_terms.astype(total.dtype), self.total)

    def means(self) -> PyTree:
        """Return the mean of each of several sums along a first axis, computed on the host."""
        count = np.asarray(self.num_terms)

        def of_total(total: jax.Array | np.ndarray) -> np.ndarray:
            sums = np.asarray(total)
            with np.errstate(invalid="ignore"):  # 0/0 without terms
                return sums / count.reshape(-1, *[1] * (sums.ndim - 1)).astype(sums.dtype)

        return jax.tree.map(of_total, self.total)
