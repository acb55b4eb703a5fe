"""The compiled loop: blocks of raw variates, steps, draws. No Python runs inside it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc import keep, random, tree
from sghmc.adapt import Adapt
from sghmc.gibbs import Gibbs
from sghmc.gradients import Estimator, Oracle
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
    """All that a run needs to go on, for every chain; `kernel` only where it adapts."""

    kernel: Kernel | None
    state: Any
    hyper: PyTree
    sums: keep.RunningSum | None
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
    """The fixed parts of a run: its arrays are arguments of the compiled loop, the rest static.

    With `is_stacked`, arrays of the target and of the estimator have a leading chain axis. What the
    loop does to a single chain is a method here, and sees that chain's own parts: `_each_chain`.
    """

    target: Target
    kernel: Kernel
    estimator: Estimator
    gibbs: Gibbs | None
    adapt: Adapt | None
    keep: Callable | None
    averages: dict[str, Callable]
    trace: Callable | None
    keys: jax.Array
    layout: Layout = eqx.field(static=True)
    thinning: int = eqx.field(static=True)
    is_stacked: bool = eqx.field(static=True)

    def start(self, keys: jax.Array, flat: PyTree) -> Carry:
        """The carry before step 0, from a position."""
        hyper = getattr(self.target, "hyper", None)
        kernel, state = None, self.kernel.init(random.normals_like(keys[START], 0, 1, flat), flat)
        if self.adapt is not None:
            kernel = eqx.filter(self.kernel.adaptable(state), eqx.is_array)
        _, info = jax.eval_shape(lambda: self.step(0, self.draw(keys, 0, 1), state, hyper))
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        terms = jax.eval_shape(lambda: self._averaged(flat, hyper))
        sums = keep.start_sum(terms) if self.averages else None
        return Carry(kernel, state, hyper, sums, info, jnp.asarray(NEVER, jnp.int32))

    def look(self, keys: jax.Array, flat: PyTree) -> tuple[jax.Array, jax.Array]:
        """The potential at the first gradient evaluation, and whether all of it is finite."""
        evaluation = self._oracle(self.target, self.draw(keys, 0, 1)[1])(0, flat)
        return evaluation.potential, tree.all_finite(evaluation)

    def draw(self, keys: jax.Array, start, num_steps: int) -> tuple[PyTree, PyTree]:
        """The raw variates of `num_steps` steps, for the sampler and for its gradients."""
        like = self.layout.flat_like
        gradients = self.kernel.num_gradients
        return (
            self.kernel.draw(keys[MOTION], start, num_steps, like),
            self.estimator.draw(keys[GRADIENT], start, num_steps, gradients, like),
        )

    def step(self, t, noise: tuple[PyTree, PyTree], state: Any, hyper: PyTree):
        """Step t, from that step's variates."""
        oracle = self._oracle(_with_hyper(self.target, hyper), noise[1])
        return self.kernel.step(t, noise[0], state, oracle)

    def observe(self, t, carry: Carry) -> tuple[Carry, Record]:
        """What is kept after step t, and the averages with that draw in them."""
        flat = carry.state.position
        is_finite = (carry.failed_at > t) & tree.all_finite((flat, carry.hyper))
        kept = self._shown(self.keep or (lambda position, *hyper: position), flat, carry.hyper)
        info = DrawInfo(
            carry.info.potential,
            self.kernel.kinetic_temperature(t, carry.state),
            carry.info.acceptance,
            is_finite,
        )
        if carry.sums is not None:
            terms = self._averaged(flat, carry.hyper)
            carry = carry._replace(sums=keep.add(carry.sums, terms, is_finite))
        trace = None
        if self.trace is not None and carry.sums is not None:
            trace = self.trace(keep.mean(carry.sums))
        return carry, Record(kept, carry.hyper, trace, info)

    def update_hyper(self, t, keys: jax.Array, state: Any, hyper: PyTree) -> PyTree:
        assert self.gibbs is not None
        key = jax.random.wrap_key_data(random.fold(keys[GIBBS], t), impl="threefry2x32")
        params = self.layout.shape(self.kernel.middle(t, state))
        return self.gibbs.update(key, params, _with_hyper(self.target, hyper))

    def update_kernel(self, state: Any, hyper: PyTree) -> tuple[Kernel, Any]:
        assert self.adapt is not None
        shaped = type(state)(*(self.layout.shape(part) for part in state))
        kernel, state = self.adapt.update(self.kernel, shaped, hyper)
        return eqx.filter(kernel, eqx.is_array), tree.flatten_leaves(state)

    def _oracle(self, target: Target, noise: PyTree) -> Oracle:
        return self.layout.flatten_oracle(self.estimator.oracle(target, noise))

    def _averaged(self, flat: PyTree, hyper: PyTree) -> dict[str, PyTree]:
        return {name: self._shown(f, flat, hyper) for name, f in self.averages.items()}

    def _shown(self, function: Callable, flat: PyTree, hyper: PyTree) -> PyTree:
        """A user's function of the position, and of the hyperparameters where there are any."""
        position = self.layout.shape(flat)
        return function(position) if hyper is None else function(position, hyper)


def _each_chain(program: Program, method: Callable, *args, shared: tuple[int, ...] = ()):
    """`method(program of the chain, *args)` for every chain; `args[i]` for i in `shared` is common.

    The first of `args` is the chains' own kernel, or None.
    """
    own, rest = eqx.partition(
        (program.target, program.estimator) if program.is_stacked else (), eqx.is_array
    )

    def of_chain(own, kernel, *args):
        chain = program
        if program.is_stacked:
            parts = eqx.combine(own, rest)
            chain = eqx.tree_at(lambda p: (p.target, p.estimator), chain, parts)
        if kernel is not None:
            chain = eqx.tree_at(lambda p: p.kernel, chain, eqx.combine(kernel, program.kernel))
        return method(chain, *args)

    common = tuple(i + 1 for i in shared)
    return program.layout.over_chains(of_chain, shared=common, leading=(0,))(own, *args)


@eqx.filter_jit
def start(program: Program, positions: PyTree) -> Carry:
    """The carry before step 0, from positions with a leading chain axis."""
    flat = program.layout.inward(jax.vmap(tree.flatten_leaves)(positions))
    return _each_chain(program, Program.start, None, program.layout.inward(program.keys), flat)


@eqx.filter_jit
def look(program: Program, positions: PyTree) -> tuple[jax.Array, jax.Array]:
    """The first gradient evaluation of every chain: the potential, and whether all is finite."""
    flat = program.layout.inward(jax.vmap(tree.flatten_leaves)(positions))
    return _each_chain(program, Program.look, None, program.layout.inward(program.keys), flat)


@eqx.filter_jit(donate="all-except-first")
def advance(program: Program, carry: Carry, first, count, *, capacity: int):
    """Make draws first, …, first + count − 1 and return the new carry and their records.

    `capacity`, the length of the records, is compiled in and at least `count`; 0 keeps nothing, as
    in burn-in. `first` and `count` are arguments, so that one program serves blocks of any length.
    """
    thinning, is_burnin = program.thinning, capacity == 0
    block_length = _block_length(program)
    records = _empty_records(program, carry, capacity)

    def make_draw(k, noise, offset, loop):
        """Draw number first + k, whose steps find their variates in `noise` from `offset` on."""
        carry, records = loop
        t = (first + k) * thinning
        if noise is None:
            carry = _steps_in_blocks(program, carry, t, thinning, block_length, is_burnin)
        else:
            carry = _steps(program, carry, t, noise, offset, thinning, is_burnin)
        if not is_burnin:
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
    keys = program.layout.inward(program.keys)
    drawn = _each_chain(program, lambda chain, keys: chain.draw(keys, t, num_steps), None, keys)
    return _Block(drawn, num_steps)


def _steps(
    program: Program, carry: Carry, t, block: _Block, offset, count, is_burnin: bool
) -> Carry:
    """Steps t, …, t + count − 1 of all chains, with the block's variates from `offset` on."""

    def of_chain(chain, t, j, variates, state, hyper, failed_at):
        noise = jax.tree.map(lambda leaf: _part(leaf, j, block.num_steps), variates)
        state, info = chain.step(t, noise, state, hyper)
        is_sound = jnp.isfinite(info.potential)
        return state, info, jnp.where(is_sound, failed_at, jnp.minimum(failed_at, t))

    def one(i, carry):
        state, info, failed_at = _each_chain(
            program,
            of_chain,
            carry.kernel,
            t + i,
            offset + i,
            block.variates,
            carry.state,
            carry.hyper,
            carry.failed_at,
            shared=(1, 2),
        )
        carry = carry._replace(state=state, info=info, failed_at=failed_at)
        carry = _update_hyper(program, t + i, carry)
        return _adapt(program, t + i, carry) if is_burnin else carry

    if isinstance(count, int) and count == 1:
        return one(0, carry)
    return lax.fori_loop(0, count, one, carry)


def _update_hyper(program: Program, t, carry: Carry) -> Carry:
    if program.gibbs is None:
        return carry

    def update(carry):
        keys = program.layout.inward(program.keys)
        hyper = _each_chain(
            program,
            lambda chain, *args: chain.update_hyper(t, *args),
            carry.kernel,
            keys,
            carry.state,
            carry.hyper,
        )
        return carry._replace(hyper=hyper)

    is_due = ((t + 1) % program.gibbs.every == 0) & (t >= program.gibbs.start)
    return lax.cond(is_due, update, lambda carry: carry, carry)


def _adapt(program: Program, t, carry: Carry) -> Carry:
    if program.adapt is None:
        return carry

    def update(carry):
        kernel, state = _each_chain(
            program, Program.update_kernel, carry.kernel, carry.state, carry.hyper
        )
        return carry._replace(kernel=kernel, state=state)

    is_due = ((t + 1) % program.adapt.every == 0) & (t >= program.adapt.start)
    is_due &= t < program.adapt.until
    return lax.cond(is_due, update, lambda carry: carry, carry)


def _steps_in_blocks(
    program: Program, carry: Carry, t, count: int, block_length: int, is_burnin: bool
) -> Carry:
    is_even = count % block_length == 0

    def one_block(b, carry):
        done = b * block_length
        block = _draw(program, t + done, block_length)
        # A count known at compile time spares an accelerator a question to the host.
        length = block_length if is_even else jnp.minimum(block_length, count - done)
        return _steps(program, carry, t + done, block, 0, length, is_burnin)

    return lax.fori_loop(0, -(-count // block_length), one_block, carry)


def _part(variates: jax.Array, j, num_steps: int) -> jax.Array:
    """One step's part of the 1-D variates of several."""
    if num_steps == 1:
        return variates
    width = variates.shape[0] // num_steps
    return lax.dynamic_slice(variates, (j * width,), (width,))


def observe(program: Program, t, carry: Carry) -> tuple[Carry, Record]:
    return _each_chain(program, lambda chain, carry: chain.observe(t, carry), carry.kernel, carry)


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
