"""Arrays of a run: initial positions, how chains lie in memory, what the loop carries and records.

Leaves are raveled to 1-D, except where they lie on several devices. A single chain has no chain
axis. Many chains have it last where a chain has few parameters, so that XLA vectorizes over chains,
and first where it has many, so that batched matrix products need no transpose.

| where | chain axis | made by |
| --- | --- | --- |
| what users give and get, files, arrays over a mesh | first, of one chain too | `chains_first` |
| the loop, few parameters | last; absent for one chain | `to_loop` |
| the loop, many parameters | first; absent for one chain | `to_loop` |
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int32

from sghmc.core import tree
from sghmc.core.checks import as_array
from sghmc.gradients.noise import RunningNoise
from sghmc.samplers import Kernel
from sghmc.types import PyTree, StepInfo

_MIN_PARAMETERS_CHAINS_FIRST = 256
"""Parameters of a chain from which on the chain axis is first: with fewer, vectors over parameters
would be too short for a processor."""


class InitialPositions(NamedTuple):
    """Positions before the first step: one for all chains or, with `init_axis` 0, one for each."""

    init: PyTree
    init_axis: int | None

    @property
    def arrays(self) -> PyTree:
        """The positions as the user gave them, on a device."""
        return jax.tree.map(lambda leaf: as_array(leaf, "init"), self.init)

    def of_chain(self, chain: int) -> PyTree:
        return self.arrays if self.init_axis is None else _entry(self.arrays, chain)

    def of_chains(self, num_chains: int) -> PyTree:
        """Return the positions of all chains, with a leading chain axis."""
        return self.arrays if self.init_axis == 0 else repeated(self.arrays, num_chains)


@jax.jit
def _entry(positions: PyTree, chain: Any) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[chain], positions)


@functools.partial(jax.jit, static_argnums=1)
def repeated(arrays: PyTree, count: int) -> PyTree:
    """Return `count` copies of each array, along a new leading axis."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), arrays)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shapes of one chain's parameters, the number of chains, and where their axis is.

    `like` is a position of one chain by shapes and dtypes; `axis` is the chain axis in the loop.
    """

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    num_chains: int
    like: PyTree = dataclasses.field(compare=False)
    axis: int
    shardings: tuple[NamedSharding, ...] | None = None
    """Shardings of a chain's leaves over several devices, where these keep their shapes."""

    @classmethod
    def of(
        cls,
        position: PyTree,
        num_chains: int,
        shardings: tuple[NamedSharding, ...] | None = None,
    ) -> "Layout":
        leaves, treedef = jax.tree.flatten(position)
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        like = jax.tree.unflatten(treedef, shapes)
        axis = -1 if tree.size(like) < _MIN_PARAMETERS_CHAINS_FIRST else 0
        return cls(treedef, shapes, num_chains, like, axis, shardings)

    @property
    def chains_like(self) -> PyTree:
        """Positions of all chains by shapes and dtypes, with a leading chain axis."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.num_chains, *leaf.shape), leaf.dtype), self.like
        )

    @property
    def flat_like(self) -> PyTree:
        """A position of one chain as the loop carries it, by shapes, dtypes and shardings."""
        if self.shardings is None:
            return jax.eval_shape(self.flatten, self.like)
        pairs = zip(self.leaves, self.shardings, strict=True)
        placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for x, where in pairs]
        return jax.tree.unflatten(self.treedef, placed)

    def shape(self, flat: PyTree) -> PyTree:
        """Return one chain's parameters in the user's shapes."""
        return jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), flat, self.like)

    def flatten(self, position: PyTree) -> PyTree:
        """Return one chain's parameters as the loop carries them."""
        return position if self.shardings is not None else jax.tree.map(jnp.ravel, position)

    def to_loop(self, chains: PyTree) -> PyTree:
        """Lay out arrays with a leading chain axis for the loop; host arrays stay on the host."""
        if self.num_chains == 1:
            return jax.tree.map(lambda leaf: leaf[0], chains)
        # NumPy's function transposes any array by its own method: one of jax stays on its device.
        return jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, self.axis), chains)

    def chains_first(self, inside: PyTree, *, leading: int = 0) -> PyTree:
        """Invert `to_loop`, for arrays whose first `leading` axes are the loop's own, as draws."""
        if self.num_chains == 1:
            return jax.tree.map(lambda leaf: leaf[None], inside)
        axis = -1 if self.axis == -1 else leading
        return jax.tree.map(lambda leaf: np.moveaxis(leaf, axis, 0), inside)

    def position_bytes(self) -> int:
        """Count the bytes of one chain's parameters on each of its devices."""
        shapes = [leaf.shape for leaf in self.leaves]
        if self.shardings is not None:
            pairs = zip(shapes, self.shardings, strict=True)
            shapes = [where.shard_shape(shape) for shape, where in pairs]
        pairs = zip(shapes, self.leaves, strict=True)
        return sum(math.prod(shape) * leaf.dtype.itemsize for shape, leaf in pairs)

    def state_bytes(self, kernel: Kernel) -> int:
        """Count the bytes of one chain's state on each of its devices; the loop has one copy."""
        like = [jax.ShapeDtypeStruct((leaf.size,), leaf.dtype) for leaf in self.leaves]
        state = jax.eval_shape(kernel.init, like, jax.tree.unflatten(self.treedef, like))
        return math.ceil(num_bytes(state) / num_bytes(like) * self.position_bytes())


def num_bytes(arrays: PyTree) -> int:
    """Count the bytes of all arrays, given or by shape; one that is there twice counts once."""
    leaves = {
        id(leaf): leaf
        for leaf in jax.tree.leaves(arrays)
        if eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    }
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves.values())


# What the loop carries, draws and records


class LoopState(NamedTuple):
    """All that a run needs to go on, for every chain: `Layout` says where their axis is.

    `kernel` is there only where it changes, `noise` only where V̂ is estimated, and `adaptation`,
    what an adaptation remembers, only where there is one.
    """

    kernel: Kernel | None
    state: Any
    hyper: PyTree
    anchor: PyTree
    noise: RunningNoise | None
    sums: tree.RunningSum | None
    info: StepInfo
    failed_at: Int32[Array, "*chain"]
    adaptation: PyTree = None


class DrawInfo(NamedTuple):
    """Diagnostics that are recorded with each kept draw; without `info`, `is_finite` alone."""

    potential: Float[Array, "*chain"] | None
    kinetic_temperature: Float[Array, "*chain"] | None
    acceptance: Float[Array, "*chain"] | None
    data_share: Float[Array, "*chain"] | None
    is_finite: Bool[Array, "*chain"]


class DrawRecord(NamedTuple):
    """Parts of a kept draw, as the loop hands them out."""

    kept: PyTree
    hyper: PyTree
    trace: PyTree
    info: DrawInfo


class Batches(NamedTuple):
    """Rows that the host read for the steps from `first` on, and which of them each step takes.

    `places` has axes ([chain,] step, row of the step's batches), without the chain axis where all
    chains take the same. The rows lie in the order in which reading them was quickest.
    """

    rows: PyTree
    places: Int32[Array, "*chain step row"]
    first: Int32[Array, ""]

    def of_steps(self, first_step, num_steps: int) -> PyTree:
        """Return the rows of some steps, step after step, as one chain sees them."""
        first = first_step - self.first
        places = lax.dynamic_slice_in_dim(self.places, first, num_steps).reshape(-1)
        return jax.tree.map(lambda leaf: leaf.at[places].get(mode="promise_in_bounds"), self.rows)


class Variates(NamedTuple):
    """Raw variates of some steps, for the sampler and for its gradients: 1-D, step after step.

    Where the data are a source, those for the gradients are the rows that the host read.
    """

    motion: PyTree = None
    gradient: PyTree = None
