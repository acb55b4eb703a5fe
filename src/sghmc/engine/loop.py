"""The compiled loop over all chains: blocks of raw variates, steps, draws. No Python runs in it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree, xla
from sghmc.engine.plan import Plan
from sghmc.engine.program import MOTION, Carry, Program, Record
from sghmc.types import PyTree, StepInfo


def _each_chain(program: Program, method: Callable, *args, shared: tuple[int, ...] = ()):
    """`method(program of the chain, *args)` for every chain; `args[i]` for i in `shared` is common.

    The first of `args` is the chains' own kernel, or None.
    """
    own, rest = eqx.partition(_own_parts(program), eqx.is_array)

    def of_chain(own, kernel, *args):
        chain = program
        if own:
            chain = eqx.tree_at(_own_parts, chain, eqx.combine(own, rest))
        if kernel is not None:
            chain = chain.with_kernel(kernel)
        return method(chain, *args)

    common = tuple(i + 1 for i in shared)
    return program.layout.over_chains(of_chain, shared=common, leading=(0,))(own, *args)


def _own_parts(program: Program) -> tuple:
    """The parts of a program that have a leading chain axis."""
    if program.is_stacked:
        return program.target, program.estimator
    if program.batches is not None and not program.estimator.is_shared:
        return (program.batches.places,)
    return ()


class Start(NamedTuple):
    """The carry before step 0, and what the first gradient evaluation of every chain sees."""

    carry: Carry
    potential: jax.Array
    is_finite: jax.Array


def start(program: Program, positions: PyTree) -> Start:
    """The start of all chains, from positions with a leading chain axis."""
    return _compiled_start()(program, positions, np.int32(0))


@functools.cache
def _compiled_start() -> Any:
    return eqx.filter_jit(start_at, **xla.start_options())


def start_at(program: Program, positions: PyTree, t) -> Start:
    """`start`, not compiled, looking at the batches of step t."""

    def of_chain(chain, keys, flat):
        carry = chain.start(keys, flat)
        evaluation = chain.look(t, keys, flat, carry.hyper, carry.memory)
        # Without jax's weak types, which a saved number does not have: promotions are then the same
        # before and after.
        carry = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), carry)
        return Start(carry, evaluation.potential, tree.all_finite(evaluation))

    flat = program.layout.inward(jax.vmap(tree.flatten_leaves)(positions))
    return _each_chain(program, of_chain, None, program.layout.inward(program.keys), flat)


def advance(program: Program, carry: Carry, first, count, *, capacity: int):
    """Make draws first, …, first + count − 1 and return the new carry and their records.

    `capacity`, the length of the records, is compiled in and at least `count`; 0 keeps nothing, as
    in burn-in. `first` and `count` are arguments, so that one program serves blocks of any length.
    The memory of `carry` is taken over.
    """
    return compiled()(program, carry, first, count, capacity=capacity)


@functools.cache
def compiled() -> Any:
    return eqx.filter_jit(draws, donate="all-except-first", **xla.loop_options())


def draws(program: Program, carry: Carry, first, count, *, capacity: int):
    """`advance`, not compiled."""
    is_burnin = capacity == 0
    one = jax.eval_shape(lambda: _draw(program, 0, 1, has_motion=True))
    must_watch = carry.info.acceptance is not None
    plan = Plan.of(program, tree.size(one.motion), tree.size(one.gradient), is_burnin, must_watch)
    records = _empty_records(program, carry, plan.rows(capacity))

    def make_draw(k, block, offset, loop):
        """Draw number first + k, whose steps find their variates in `block` from `offset` on."""
        carry, records = loop
        t = (first + k) * program.thinning
        carry = _steps_of_draw(program, plan, carry, t, block, offset)
        if not is_burnin:
            carry, record = observe(program, t + program.thinning - 1, carry)
            records = jax.tree.map(
                lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, k, 0), records, record
            )
        return carry, records

    if plan.draws_per_block == 0:
        return lax.fori_loop(
            0, count, lambda k, loop: make_draw(k, None, None, loop), (carry, records)
        )

    def make_block(b, loop):
        done = b * plan.draws_per_block
        num_steps = plan.draws_per_block * program.thinning
        block = _draw(program, (first + done) * program.thinning, num_steps, has_motion=True)

        def one(k, loop):
            carry, records = make_draw(done + k, block, k * program.thinning, loop)
            return _where(done + k < count, carry, loop[0]) if plan.is_padded else carry, records

        left = jnp.minimum(plan.draws_per_block, count - done)
        return lax.fori_loop(0, plan.draws_per_block if plan.is_padded else left, one, loop)

    num_blocks = (count + plan.draws_per_block - 1) // plan.draws_per_block
    return lax.fori_loop(0, num_blocks, make_block, (carry, records))


def _where(condition: jax.Array, chosen: PyTree, otherwise: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), chosen, otherwise)


class _Block(NamedTuple):
    """Variates of some steps; those of the motion are None where each step makes its own.

    Those of the gradients have no chain axis where all chains take the same, and are None where
    the host took the rows of all steps.
    """

    motion: PyTree
    gradient: PyTree
    num_steps: int


def _draw(program: Program, t, num_steps: int, *, has_motion: bool) -> _Block:
    is_shared = program.estimator.is_shared
    is_given = program.batches is not None

    def of_chains(program, keys):
        motion = program.draw_motion(keys, t, num_steps) if has_motion else None
        is_own = not (is_shared or is_given)
        return motion, program.draw_gradients(keys, t, num_steps) if is_own else None

    keys = program.layout.inward(program.keys)
    if program.layout.axis == -1 and not program.is_stacked:
        # All chains at once: vmap would have XLA put their axis first.
        motion, gradient = of_chains(program, keys)
    else:
        motion, gradient = _each_chain(program, of_chains, None, keys)
    if is_shared and not is_given:
        gradient = program.draw_gradients(program.keys[0], t, num_steps)
    return _Block(motion, gradient, num_steps)


def _steps_of_draw(program: Program, plan: Plan, carry: Carry, t, block, offset) -> Carry:
    """All steps of one draw, and what is due between them."""

    def one_period(i, carry):
        done = i * plan.period
        if block is None:
            carry = _steps_in_blocks(program, plan, carry, t + done)
        else:
            carry = _steps(program, plan, carry, t + done, block, offset + done, plan.period)
        return _events(program, plan, t + done + plan.period - 1, carry)

    carry = _repeat(program.thinning // plan.period, one_period, carry)
    return carry if plan.is_watched else _watch(program, t + program.thinning - 1, carry)


def _steps_in_blocks(program: Program, plan: Plan, carry: Carry, t) -> Carry:
    """The steps of one period, with variates made for some of them at a time."""

    length = plan.block_length
    num_blocks = -(-plan.period // length)

    def one_block(i, carry):
        now = t + i * length
        block = _draw(program, now, length, has_motion=plan.block_has_motion)
        is_whole = num_blocks * length == plan.period
        count = length if is_whole else jnp.minimum(length, plan.period - i * length)
        return _steps(program, plan, carry, now, block, 0, count)

    return _repeat(num_blocks, one_block, carry)


def _steps(program: Program, plan: Plan, carry: Carry, t, block: _Block, offset, count):
    """Steps t, …, t + count − 1 of all chains, with the block's variates from `offset` on."""

    def of_chain(chain, t, j, keys, motion, gradient, state, hyper, memory, info, failed_at):
        motion, gradient = jax.tree.map(
            lambda leaf: _part(leaf, j, block.num_steps), (motion, gradient)
        )
        if motion is None:
            motion = chain.kernel.draw(keys[MOTION], t, 1, chain.layout.flat_like)
        if gradient is None:
            gradient = chain.draw_gradients(keys, t, 1)
        state, new = chain.step(t, (motion, gradient), state, hyper, memory)
        if not plan.is_watched:
            return state, info, failed_at
        seen = new.potential if program.has_info else state
        return state, new, _first_failure(failed_at, t, seen)

    def one(i, carry):
        state, info, failed_at = _each_chain(
            program,
            of_chain,
            carry.kernel,
            t + i,
            offset + i,
            program.layout.inward(program.keys),
            block.motion,
            block.gradient,
            carry.state,
            carry.hyper,
            carry.memory,
            carry.info,
            carry.failed_at,
            shared=(1, 2, 5) if program.estimator.is_shared else (1, 2),
        )
        return carry._replace(state=state, info=info, failed_at=failed_at)

    return _repeat(count, one, carry)


def _watch(program: Program, t, carry: Carry) -> Carry:
    """Look at the potential after step t, with the next batch; without info, at the state."""

    def of_chain(chain, keys, state, hyper, memory, failed_at):
        if not program.has_info:
            return StepInfo(None), _first_failure(failed_at, t, state)
        position = chain.kernel.position(state)
        potential = chain.look(t + 1, keys, position, hyper, memory).potential
        return StepInfo(potential), _first_failure(failed_at, t, potential)

    keys = program.layout.inward(program.keys)
    info, failed_at = _each_chain(
        program,
        of_chain,
        carry.kernel,
        keys,
        carry.state,
        carry.hyper,
        carry.memory,
        carry.failed_at,
    )
    return carry._replace(info=info, failed_at=failed_at)


def _first_failure(failed_at: jax.Array, t, seen: PyTree) -> jax.Array:
    return jnp.where(tree.all_finite(seen), failed_at, jnp.minimum(failed_at, t))


def _repeat(count: int | jax.Array, body: Callable, carry: Carry) -> Carry:
    is_once = isinstance(count, int) and count == 1
    return body(0, carry) if is_once else lax.fori_loop(0, count, body, carry)


def _part(variates: jax.Array, j, num_steps: int) -> jax.Array:
    """One step's part of the 1-D variates of several."""
    if num_steps == 1:
        return variates
    width = variates.shape[0] // num_steps
    return lax.dynamic_slice(variates, (j * width,), (width,))


def _events(program: Program, plan: Plan, t, carry: Carry) -> Carry:
    """What may be due after step t."""
    carry = _follow(program, t, _update_hyper(program, t, carry))
    carry = _adapt(program, t, carry) if plan.is_burnin else carry
    return _estimate_noise(program, t, carry)


def _update_hyper(program: Program, t, carry: Carry) -> Carry:
    if program.gibbs is None:
        return carry

    def update(carry):
        keys = program.layout.inward(program.keys)
        hyper, memory = _each_chain(
            program,
            lambda chain, *args: chain.update_hyper(t, *args),
            carry.kernel,
            keys,
            carry.state,
            carry.hyper,
            carry.memory,
        )
        return carry._replace(hyper=hyper, memory=memory)

    is_due = ((t + 1) % program.gibbs.every == 0) & (t >= program.gibbs.start)
    return lax.cond(is_due, update, lambda carry: carry, carry)


def _follow(program: Program, t, carry: Carry) -> Carry:
    every = program.estimator.renew_every
    if every is None:
        return carry

    def follow(carry):
        memory = _each_chain(
            program, Program.follow, carry.kernel, carry.state, carry.hyper, carry.memory
        )
        return carry._replace(memory=memory)

    return lax.cond((t + 1) % every == 0, follow, lambda carry: carry, carry)


def _adapt(program: Program, t, carry: Carry) -> Carry:
    if program.adapt is None:
        return carry

    def update(carry):
        kernel, state, adaptation = _each_chain(
            program,
            lambda chain, *args: chain.update_kernel(t, *args),
            carry.kernel,
            program.layout.inward(program.keys),
            carry,
        )
        return carry._replace(kernel=kernel, state=state, adaptation=adaptation)

    return lax.cond(program.adapt.is_due(t), update, lambda carry: carry, carry)


def _estimate_noise(program: Program, t, carry: Carry) -> Carry:
    fisher = program.kernel.fisher
    if fisher is None:
        return carry

    def update(carry):
        keys = program.layout.inward(program.keys)
        kernel, noise = _each_chain(
            program,
            lambda chain, *args: chain.update_noise(t, *args),
            carry.kernel,
            keys,
            carry.state,
            carry.hyper,
            carry.memory,
            carry.noise,
        )
        return carry._replace(kernel=kernel, noise=noise)

    return lax.cond((t + 1) % fisher.every == 0, update, lambda carry: carry, carry)


def observe(program: Program, t, carry: Carry) -> tuple[Carry, Record]:
    return _each_chain(program, lambda chain, carry: chain.observe(t, carry), carry.kernel, carry)


def _empty_records(program: Program, carry: Carry, capacity: int) -> Record | None:
    if capacity == 0:
        return None
    _, record = jax.eval_shape(lambda: observe(program, 0, carry))
    return jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), record)
