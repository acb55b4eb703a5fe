"""The compiled loop: blocks of raw variates, steps, draws. No Python runs inside it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc import keep, random, tree
from sghmc.gibbs import Gibbs
from sghmc.gradients import Estimator
from sghmc.layout import Layout
from sghmc.posterior import Posterior, Target
from sghmc.samplers.base import Kernel
from sghmc.types import PyTree, StepInfo

_BLOCK_VARIATES = 16_384
"""Variates drawn at once: enough to vectorize, few enough to stay in the cache."""

NEVER = np.iinfo(np.int32).max
MOTION, GRADIENT, GIBBS, START = range(4)
"""The streams of random numbers of a chain: each has a key of its own."""
NUM_STREAMS = 4


class Carry(NamedTuple):
    """All that a run needs to go on, for every chain."""

    state: Any
    hyper: PyTree
    sums: PyTree
    info: StepInfo
    failed_at: jax.Array


class DrawInfo(NamedTuple):
    """What is recorded with each kept draw."""

    potential: jax.Array
    kinetic_temperature: jax.Array | None
    acceptance: jax.Array | None
    is_finite: jax.Array


class Record(NamedTuple):
    kept: PyTree
    hyper: PyTree
    trace: PyTree
    info: DrawInfo


class Program(eqx.Module):
    """The fixed parts of a run: its arrays are arguments of the compiled loop, the rest static."""

    target: Target
    kernel: Kernel
    estimator: Estimator
    gibbs: Gibbs | None
    keep: Callable | None
    averages: dict[str, Callable]
    trace: Callable | None
    keys: jax.Array
    layout: Layout = eqx.field(static=True)
    thinning: int = eqx.field(static=True)

    def draw(self, keys: jax.Array, start, num_steps: int) -> tuple[PyTree, PyTree]:
        """One chain's raw variates of `num_steps` steps, for the sampler and for its gradients."""
        like = self.layout.flat_like
        gradients = self.kernel.num_gradients
        return (
            self.kernel.draw(keys[MOTION], start, num_steps, like),
            self.estimator.draw(keys[GRADIENT], start, num_steps, gradients, like),
        )

    def step(self, t, noise: tuple[PyTree, PyTree], state: Any, hyper: PyTree):
        """Step t of one chain, from that step's variates."""
        target = _with_hyper(self.target, hyper)
        oracle = self.layout.flatten_oracle(self.estimator.oracle(target, noise[1]))
        return self.kernel.step(t, noise[0], state, oracle)

    def observe(self, t, carry: Carry) -> tuple[Carry, Record]:
        """What is kept of one chain after its step t, and the averages with that draw in them."""
        flat = carry.state.position
        is_finite = (carry.failed_at > t) & tree.all_finite((flat, carry.hyper))
        # A step reports the potential where it began: a bad end is seen here, or a step later.
        failed_at = jnp.where(is_finite, carry.failed_at, jnp.minimum(carry.failed_at, t))
        position = self.layout.shape(flat)
        seen = (position,) if carry.hyper is None else (position, carry.hyper)
        kept = position if self.keep is None else self.keep(*seen)
        terms = {name: function(*seen) for name, function in self.averages.items()}
        info = DrawInfo(
            carry.info.potential,
            self.kernel.kinetic_temperature(t, carry.state),
            carry.info.acceptance,
            is_finite,
        )
        sums = keep.add(carry.sums, terms, is_finite)
        trace = None if self.trace is None else self.trace(keep.mean(sums))
        carry = carry._replace(sums=sums, failed_at=failed_at)
        return carry, Record(kept, carry.hyper, trace, info)


@eqx.filter_jit
def start(program: Program, positions: PyTree) -> Carry:
    """The carry before step 0, from positions with a leading chain axis."""
    layout = program.layout

    def of_chain(keys, flat):
        hyper = getattr(program.target, "hyper", None)
        state = program.kernel.init(random.normals_like(keys[START], 0, 1, flat), flat)
        _, info = jax.eval_shape(lambda: program.step(0, program.draw(keys, 0, 1), state, hyper))
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        seen = (layout.shape(flat),) if hyper is None else (layout.shape(flat), hyper)
        terms = jax.eval_shape(lambda: {n: f(*seen) for n, f in program.averages.items()})
        return Carry(state, hyper, keep.start_sum(terms), info, jnp.asarray(NEVER, jnp.int32))

    flat = layout.inward(jax.vmap(tree.flatten_leaves)(positions))
    return layout.over_chains(of_chain)(layout.inward(program.keys), flat)


@eqx.filter_jit
def look(program: Program, positions: PyTree) -> tuple[jax.Array, jax.Array]:
    """The first gradient evaluation of every chain: the potential, and whether all is finite."""
    layout = program.layout

    def of_chain(keys, flat):
        target = program.target
        oracle = layout.flatten_oracle(
            program.estimator.oracle(target, program.draw(keys, 0, 1)[1])
        )
        evaluation = oracle(0, flat)
        return evaluation.potential, tree.all_finite(evaluation)

    flat = layout.inward(jax.vmap(tree.flatten_leaves)(positions))
    return layout.over_chains(of_chain)(layout.inward(program.keys), flat)


@eqx.filter_jit(donate="all-except-first")
def advance(program: Program, carry: Carry, first, count, *, capacity: int):
    """Make draws first, …, first + count − 1 and return the new carry and their records.

    `capacity`, the length of the records, is compiled in and at least `count`; 0 keeps nothing, as
    in burn-in. `first` and `count` are arguments, so that one program serves blocks of any length.
    """
    thinning = program.thinning
    block_length = _block_length(program)
    records = _empty_records(program, carry, capacity)

    def make_draw(k, noise, offset, loop):
        """Draw number first + k, whose steps find their variates in `noise` from `offset` on."""
        carry, records = loop
        t = (first + k) * thinning
        if noise is None:
            carry = _steps_in_blocks(program, carry, t, thinning, block_length)
        else:
            carry = _steps(program, carry, t, noise, offset, thinning)
        if capacity:
            carry, record = observe(program, t + thinning - 1, carry)
            records = jax.tree.map(
                lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, k, 0), records, record
            )
        return carry, records

    if thinning > block_length:
        return lax.fori_loop(
            0, count, lambda k, loop: make_draw(k, None, None, loop), (carry, records)
        )

    draws_per_block = block_length // thinning

    def make_block(b, loop):
        done = b * draws_per_block
        noise = _draw(program, (first + done) * thinning, draws_per_block * thinning)
        return lax.fori_loop(
            0,
            jnp.minimum(draws_per_block, count - done),
            lambda k, loop: make_draw(done + k, noise, k * thinning, loop),
            loop,
        )

    num_blocks = (count + draws_per_block - 1) // draws_per_block
    return lax.fori_loop(0, num_blocks, make_block, (carry, records))


class _Block(NamedTuple):
    variates: tuple[PyTree, PyTree]
    num_steps: int


def _draw(program: Program, t, num_steps: int) -> _Block:
    layout = program.layout
    of_chain = layout.over_chains(lambda keys: program.draw(keys, t, num_steps))
    return _Block(of_chain(layout.inward(program.keys)), num_steps)


def _steps(program: Program, carry: Carry, t, block: _Block, offset, count) -> Carry:
    """Steps t, …, t + count − 1 of all chains, with the block's variates from `offset` on."""
    layout, gibbs = program.layout, program.gibbs

    def of_chain(t, j, variates, state, hyper, failed_at):
        noise = jax.tree.map(lambda leaf: _part(leaf, j, block.num_steps), variates)
        state, info = program.step(t, noise, state, hyper)
        is_sound = jnp.isfinite(info.potential)
        return state, info, jnp.where(is_sound, failed_at, jnp.minimum(failed_at, t))

    def one(i, carry):
        advance_all = layout.over_chains(of_chain, shared=(0, 1))
        state, info, failed_at = advance_all(
            t + i, offset + i, block.variates, carry.state, carry.hyper, carry.failed_at
        )
        carry = carry._replace(state=state, info=info, failed_at=failed_at)
        if gibbs is None:
            return carry
        is_due = (t + i + 1) % gibbs.every == 0
        return lax.cond(is_due, lambda c: _gibbs_update(program, t + i, c), lambda c: c, carry)

    return (
        one(0, carry)
        if isinstance(count, int) and count == 1
        else lax.fori_loop(0, count, one, carry)
    )


def _steps_in_blocks(program: Program, carry: Carry, t, count: int, block_length: int) -> Carry:
    is_even = count % block_length == 0

    def one_block(b, carry):
        done = b * block_length
        block = _draw(program, t + done, block_length)
        # A count known at compile time spares an accelerator a question to the host.
        length = block_length if is_even else jnp.minimum(block_length, count - done)
        return _steps(program, carry, t + done, block, 0, length)

    return lax.fori_loop(0, -(-count // block_length), one_block, carry)


def _part(variates: jax.Array, j, num_steps: int) -> jax.Array:
    """One step's part of the 1-D variates of several."""
    if num_steps == 1:
        return variates
    width = variates.shape[0] // num_steps
    return lax.dynamic_slice(variates, (j * width,), (width,))


def _gibbs_update(program: Program, t, carry: Carry) -> Carry:
    layout, gibbs = program.layout, program.gibbs
    assert gibbs is not None

    def of_chain(keys, state, hyper):
        key = jax.random.wrap_key_data(random.fold(keys[GIBBS], t), impl="threefry2x32")
        params = layout.shape(program.kernel.middle(t, state))
        return gibbs.update(key, params, _with_hyper(program.target, hyper))

    update = layout.over_chains(of_chain)
    return carry._replace(hyper=update(layout.inward(program.keys), carry.state, carry.hyper))


def observe(program: Program, t, carry: Carry) -> tuple[Carry, Record]:
    return program.layout.over_chains(program.observe, shared=(0,))(t, carry)


def _empty_records(program: Program, carry: Carry, capacity: int) -> Record | None:
    if capacity == 0:
        return None
    _, record = jax.eval_shape(lambda: observe(program, 0, carry))
    return jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), record)


def _block_length(program: Program) -> int:
    one = jax.eval_shape(lambda: _draw(program, 0, 1).variates)
    variates = sum(leaf.size for leaf in jax.tree.leaves(one))
    return max(1, _BLOCK_VARIATES // max(1, variates))


def _with_hyper(target: Target, hyper: PyTree) -> Any:
    return target.with_hyper(hyper) if isinstance(target, Posterior) else target
