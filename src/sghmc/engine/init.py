"""Where chains start.

The state of all chains before their first step.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from sghmc.core import runtime, tree
from sghmc.core.checks import as_array
from sghmc.engine import loop
from sghmc.engine.chain import LoopState, RunSpec
from sghmc.engine.loop import each_chain
from sghmc.types import PyTree


class InitialPositions(NamedTuple):
    """As a user gave it: one start for all chains or, with `init_axis` 0, one for each."""

    init: PyTree
    init_axis: int | None

    @property
    def arrays(self) -> PyTree:
        """As it was given, on a device."""
        return jax.tree.map(lambda leaf: as_array(leaf, "init"), self.init)

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


# The state of all chains before their first step.

_LARGE = 1 << 21
"""Parameters of all chains, from which on their first momenta take longer to make, by a program
that was compiled in a hurry, than it takes to compile a better one."""


class InitialState(NamedTuple):
    """The carry before step 0 and, if asked for, what a gradient sees where each chain starts."""

    carry: LoopState
    potential: Float[Array, "*chain"] | None
    is_finite: Bool[Array, "*chain"] | None


def begin(program: RunSpec, start: InitialPositions, *, looks: bool) -> InitialState:
    """All chains before step 0."""
    layout, is_shared = program.layout, start.init_axis is None
    begun = compiled_beginning(is_large=layout.num_chains * tree.size(layout.like) >= _LARGE)
    return begun(program, start.arrays, np.int32(0), looks=looks, shared=is_shared)


@functools.cache
def compiled_beginning(*, is_large: bool) -> Any:
    return eqx.filter_jit(
        _begin, **(runtime.jit_options("loop") if is_large else runtime.jit_options("once"))
    )


def _begin(program: RunSpec, init: PyTree, t, *, looks: bool, shared: bool) -> InitialState:
    """From one start for all chains, which is repeated here: outside, it would be a copy more."""
    positions = repeated(init, program.layout.num_chains) if shared else init
    return beginning(program, positions, t, looks=looks)


def beginning(program: RunSpec, positions: PyTree, t, *, looks: bool) -> InitialState:
    """`begin`, not compiled, before step t, which is 0.

    A step that begins with a gradient looks by itself: to compile another look at the model would
    take as long as the loop does. So it `looks` when a chain has failed, or else when a sampler
    goes elsewhere first, or may stay where it starts.
    """

    def of_chain(chain: RunSpec, flat: PyTree) -> InitialState:
        carry = chain.initial_carry(flat, t)
        # Without jax's weak types, which a saved number does not have: promotions are then the same
        # before and after.
        carry = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), carry)
        _, info = jax.eval_shape(lambda: loop.step(chain, t, chain.draw(t), carry))
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        carry = carry._replace(info=info)
        begins_elsewhere = (
            chain.kernel.gradient_use == "inside" or carry.info.acceptance is not None
        )
        if not (looks or begins_elsewhere):
            return InitialState(carry, None, None)
        evaluation = chain.look(t, flat, carry)
        return InitialState(carry, evaluation.potential, tree.all_finite(evaluation))

    flat = program.layout.to_loop(jax.vmap(program.layout.flatten)(positions))
    return each_chain(program, of_chain, None, flat)
