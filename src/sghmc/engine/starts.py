"""Where chains start."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sghmc.types import PyTree


class Start(NamedTuple):
    """As a user gave it: one start for all chains or, with `init_axis` 0, one for each."""

    init: PyTree
    init_axis: int | None

    @property
    def arrays(self) -> PyTree:
        """As it was given, on a device."""
        return jax.tree.map(jnp.asarray, self.init)

    def of_chain(self, chain: int) -> PyTree:
        return self.arrays if self.init_axis is None else _of_chain(self.arrays, chain)

    def of_chains(self, num_chains: int) -> PyTree:
        """Of all, with a leading chain axis."""
        return self.arrays if self.init_axis == 0 else repeated(self.arrays, num_chains)


@jax.jit
def _of_chain(positions: PyTree, chain) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[chain], positions)


@functools.partial(jax.jit, static_argnums=1)
def repeated(arrays: PyTree, count: int) -> PyTree:
    """Arrays with a leading axis of so many copies."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), arrays)
