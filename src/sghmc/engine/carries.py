"""Parts of a carry that are like parameters, where these lie on several devices in their shapes."""

from collections.abc import Callable
from typing import Any

import jax

from sghmc.engine.layout import Layout
from sghmc.engine.program import Carry
from sghmc.types import PyTree

_Shape = Callable[[jax.ShapeDtypeStruct], tuple[int, ...]]


def by_parts(layout: Layout, chains: PyTree, of_part: Callable[[Any, bool], PyTree]) -> PyTree:
    """`of_part` of every part with the structure and shapes of parameters, and of other leaves.

    Arrays have the chain axis first, and maybe others after it.
    """
    return _by_parts(layout, chains, of_part, lambda leaf: leaf.shape)


def raveled(layout: Layout, carry: PyTree) -> PyTree:
    """A carry as it is saved: with raveled parameters, as a run on one device has them."""
    return _turned(layout, carry, lambda leaf: leaf.shape, lambda leaf: (leaf.size,))


def in_shape(layout: Layout, carry: PyTree) -> PyTree:
    """The inverse."""
    return _turned(layout, carry, lambda leaf: (leaf.size,), lambda leaf: leaf.shape)


def _turned(layout: Layout, carry: PyTree, old: _Shape, new: _Shape) -> PyTree:
    if layout.shardings is None or not isinstance(carry, Carry):
        return carry

    def turn(leaf, like):
        lead = leaf.shape[: leaf.ndim - len(old(like))]
        return leaf.reshape(*lead, *new(like))

    def of_part(part, is_like):
        return jax.tree.map(turn, part, layout.like) if is_like else part

    return carry._replace(state=_by_parts(layout, carry.state, of_part, old))


def _by_parts(layout: Layout, chains: PyTree, of_part: Callable, shape: _Shape) -> PyTree:
    def is_like(part):
        if layout.shardings is None or jax.tree.structure(part) != layout.treedef:
            return False
        pairs = zip(jax.tree.leaves(part), map(shape, layout.leaves), strict=True)
        return all(leaf.shape[leaf.ndim - len(end) :] == end for leaf, end in pairs)

    return jax.tree.map(lambda part: of_part(part, is_like(part)), chains, is_leaf=is_like)
