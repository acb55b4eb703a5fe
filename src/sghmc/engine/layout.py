"""How parameters and chains lie in memory inside the loop.

Leaves are raveled to 1-D, but where they lie on several devices. A single chain has no chain axis.
Many chains have it last where a chain has few parameters, so that XLA vectorizes over chains, and
first where it has many, so that batched matrix products need no transpose.

| where | chain axis | made by |
| --- | --- | --- |
| what users give and get, files, arrays over a mesh | first, of one chain too | `chains_first` |
| the loop, few parameters | last; absent for one chain | `to_loop` |
| the loop, many parameters | first; absent for one chain | `to_loop` |
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from sghmc.core import tree
from sghmc.gradients import Oracle
from sghmc.types import PyTree

_CHAINS_LAST_BELOW = 256
"""Parameters of a chain: with fewer, vectors over parameters would be too short for a processor."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shapes of one chain's parameters, and how many chains there are."""

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    num_chains: int
    shardings: tuple[NamedSharding, ...] | None = None
    """Where the leaves of a chain lie, if on several devices: they then keep their shapes."""

    @classmethod
    def of(
        cls,
        position: PyTree,
        num_chains: int,
        shardings: tuple[NamedSharding, ...] | None = None,
    ) -> "Layout":
        leaves, treedef = jax.tree.flatten(position)
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        return cls(treedef, shapes, num_chains, shardings)

    @property
    def like(self) -> PyTree:
        """A position of one chain, as the user gave it, by shapes alone."""
        return jax.tree.unflatten(self.treedef, self.leaves)

    @property
    def chains_like(self) -> PyTree:
        """Positions of all chains, with a leading chain axis, by shapes alone."""
        shapes = [
            jax.ShapeDtypeStruct((self.num_chains, *leaf.shape), leaf.dtype) for leaf in self.leaves
        ]
        return jax.tree.unflatten(self.treedef, shapes)

    @property
    def flat_like(self) -> PyTree:
        """A position of one chain as the loop carries it, by shapes alone, and where it lies."""
        if self.shardings is None:
            return jax.eval_shape(tree.flatten_leaves, self.like)
        pairs = zip(self.leaves, self.shardings, strict=True)
        placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for x, where in pairs]
        return jax.tree.unflatten(self.treedef, placed)

    @property
    def axis(self) -> int:
        """The chain axis in the loop, where there are several chains."""
        return -1 if tree.size(self.like) < _CHAINS_LAST_BELOW else 0

    def shape(self, flat: PyTree) -> PyTree:
        """One chain's parameters in the user's shapes."""
        return tree.shape_leaves(flat, self.like)

    def flatten(self, position: PyTree) -> PyTree:
        """One chain's parameters as the loop carries them."""
        return position if self.shardings is not None else tree.flatten_leaves(position)

    def flatten_oracle(self, oracle: Oracle) -> Oracle:
        """The same oracle for parameters as the loop carries them."""
        return oracle.through(self.shape, self.flatten, keeps_rows=True)

    def over_chains(self, function: Callable, *, leading: tuple[int, ...] = ()) -> Callable:
        """`function` of one chain as a function of all.

        Arguments numbered `leading` have the chain axis first, the others and what is returned
        where the loop has it. What all chains have in common, `function` closes over.
        """

        @functools.wraps(function)
        def batched(*args):
            if self.num_chains == 1:
                firsts = {i: jax.tree.map(lambda leaf: leaf[0], args[i]) for i in leading}
                return function(*(firsts.get(i, arg) for i, arg in enumerate(args)))
            axes = tuple(0 if i in leading else self.axis for i in range(len(args)))
            return jax.vmap(function, in_axes=axes, out_axes=self.axis)(*args)

        return batched

    def to_loop(self, chains: PyTree) -> PyTree:
        """Arrays with the chain axis first, laid out for the loop; host arrays stay on the host."""
        if self.num_chains == 1:
            return jax.tree.map(lambda leaf: leaf[0], chains)
        return jax.tree.map(lambda leaf: _moved(leaf, 0, self.axis), chains)

    def chains_first(self, inside: PyTree, *, leading: int = 0) -> PyTree:
        """The inverse, for arrays whose first `leading` axes are the loop's own, as draws are."""
        if self.num_chains == 1:
            return jax.tree.map(lambda leaf: leaf[None], inside)
        axis = -1 if self.axis == -1 else leading
        return jax.tree.map(lambda leaf: _moved(leaf, axis, 0), inside)


def _moved(leaf: Any, source: int, destination: int) -> Any:
    """An array of jax or of numpy with one axis elsewhere."""
    order = [axis for axis in range(leaf.ndim) if axis != source % leaf.ndim]
    order.insert(destination % leaf.ndim, source % leaf.ndim)
    return leaf.transpose(tuple(order))
