"""A function of one chain, for all chains of a program.

What a run does in several places, traced once for all of them and for all runs alike.

Functions here are jitted, though they run inside of compiled programs, so that Python goes through
a model once: of a deep network that takes as long as a good part of its compilation.

The compiled loop over all chains: blocks of raw variates, steps, draws. No Python runs in it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, Shaped

from sghmc.core import runtime, tree
from sghmc.engine.blocking import Blocking
from sghmc.engine.chain import DrawRecord, LoopState, RunSpec, Variates
from sghmc.samplers import Kernel, LazyRows, fisher_of
from sghmc.types import PyTree, StepInfo


def each_chain(program: RunSpec, function: Callable, kernel: Kernel | None, *args: PyTree):
    """`function(chain, *args)` for every chain, `chain` being the program as that chain sees it.

    `kernel` has the chains' own, or is None where they share the program's. It and the other
    arguments have the chain axis where the loop has it; what chains share, `function` closes over.
    """
    layout = program.layout
    own, rest = eqx.partition(_own_parts(program), eqx.is_array)

    def of_chain(own, keys, kernel, *args):
        chain = eqx.tree_at(_own_parts, program, eqx.combine(own, rest)) if own else program
        chain = chain if kernel is None else chain.with_kernel(kernel)
        return function(chain.with_keys(keys), *args)

    keys = layout.to_loop(program.keys)
    return layout.over_chains(of_chain, leading=(0,))(own, keys, kernel, *args)


def each_carry(
    program: RunSpec, carry: LoopState, function: Callable[[RunSpec, LoopState], Any]
) -> Any:
    """`function(chain, carry)` for every chain, with its own kernel where it has one."""
    return each_chain(program, function, carry.kernel, carry)


def _own_parts(program: RunSpec) -> tuple:
    """The parts of a program, besides its keys, that have a leading chain axis."""
    if program.is_stacked:
        return program.target, program.estimator
    if program.batches is not None and not program.estimator.is_shared:
        return (program.batches.places,)
    return ()


# What a run does in several places, traced once for all of them and for all runs alike.


def step(chain: RunSpec, t, variates: Variates, carry: LoopState) -> tuple[Any, StepInfo]:
    """`RunSpec.step`, traced once for the beginning and for the loop; draws what is missing."""
    t = jnp.asarray(t, jnp.int32)
    known = carry._replace(sums=None, info=None, failed_at=None, noise=None, adaptation=None)
    return _traced_step(chain, t, chain.draw(t, variates), known)


@eqx.filter_jit
def _traced_step(chain: RunSpec, t, variates: Variates, carry: LoopState) -> tuple[Any, StepInfo]:
    return chain.step(t, variates, carry)


def observe(
    program: RunSpec, t, carry: LoopState, is_counted: bool | jax.Array = True
) -> tuple[LoopState, DrawRecord]:
    """What is kept of all chains after step t, and their averages, if it `is_counted`.

    Traced once for all that share a program.
    """
    return _observe(program, jnp.asarray(t, jnp.int32), carry, jnp.asarray(is_counted))


@eqx.filter_jit
def _observe(program: RunSpec, t, carry: LoopState, is_counted) -> tuple[LoopState, DrawRecord]:
    return each_carry(program, carry, lambda chain, carry: chain.observe(t, carry, is_counted))


def record_like(program: RunSpec, carry: LoopState) -> DrawRecord:
    """Shapes of what `observe` records."""
    step, flag = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.bool_))
    return eqx.filter_eval_shape(_observe, program, step, carry, flag)[1]


# The compiled loop over all chains: blocks of raw variates, steps, draws. No Python runs in it.


def advance(
    program: RunSpec, carry: LoopState, first, count, num_kept, *, capacity: int
) -> tuple[LoopState, DrawRecord | None]:
    """Make draws first, …, first + count − 1 and return the new carry and their records.

    `capacity`, the length of the records, is compiled in; where draws are kept it is at least
    `count`, and 0 where burn-in has a program of its own (`Blocking.burnin`). The other numbers
    are arguments, so that one program serves blocks of any length; `num_kept` is 1, or 0 for draws
    of burn-in. The memory of `carry` is taken over.
    """
    return compiled_draws()(program, carry, first, count, num_kept, capacity=capacity)


@functools.cache
def compiled_draws() -> Any:
    return eqx.filter_jit(make_draws, donate="all-except-first", **runtime.jit_options("loop"))


def plan_of(program: RunSpec, carry: LoopState, capacity: int) -> Blocking:
    one = eqx.filter_eval_shape(_variates, program)
    must_watch = carry.info.acceptance is not None
    return Blocking.of(
        program, tree.size(one.motion), tree.size(one.gradient), capacity, must_watch
    )


def make_draws(
    program: RunSpec, carry: LoopState, first, count, num_kept, *, capacity: int
) -> tuple[LoopState, DrawRecord | None]:
    """`advance`, not compiled."""
    plan = plan_of(program, carry, capacity)
    if plan.records_after:
        return _make_one_record(program, plan, carry, first, count, num_kept)
    records = _empty_records(program, carry, plan.rows(capacity))

    def make_draw(k, block, offset, loop):
        """Draw number first + k, whose steps find their variates in `block` from `offset` on."""
        carry, records = loop
        t = (first + k) * program.thinning
        carry = _steps_of_draw(program, plan, carry, t, block, offset)
        if records is None:
            return carry, None

        def keep(_, loop):
            carry, record = observe(program, t + program.thinning - 1, loop[0])
            return carry, jax.tree.map(
                lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, k, 0), loop[1], record
            )

        # A loop of one turn or none: of a branch, XLA would copy the records.
        return _repeat(num_kept if plan.burnin == "skipped" else 1, keep, (carry, records))

    if plan.draws_per_block == 0:
        return lax.fori_loop(
            0, count, lambda k, loop: make_draw(k, None, None, loop), (carry, records)
        )

    def make_block(b, loop):
        done = b * plan.draws_per_block
        num_steps = plan.draws_per_block * program.thinning
        block = _block(program, (first + done) * program.thinning, num_steps, has_motion=True)

        def one(k, loop):
            carry, records = make_draw(done + k, block, k * program.thinning, loop)
            return _where(done + k < count, carry, loop[0]) if plan.is_padded else carry, records

        left = jnp.minimum(plan.draws_per_block, count - done)
        return lax.fori_loop(0, plan.draws_per_block if plan.is_padded else left, one, loop)

    num_blocks = (count + plan.draws_per_block - 1) // plan.draws_per_block
    return lax.fori_loop(0, num_blocks, make_block, (carry, records))


def _make_one_record(
    program: RunSpec, plan: Blocking, carry: LoopState, first, count, num_kept
) -> tuple[LoopState, DrawRecord]:
    """Of the last draw: the only one, where it is kept; of burn-in it is thrown away."""

    def make_draw(k, carry):
        return _steps_of_draw(program, plan, carry, (first + k) * program.thinning, None, None)

    carry = lax.fori_loop(0, count, make_draw, carry)
    last = (first + count) * program.thinning - 1
    carry, record = observe(program, last, carry, is_counted=num_kept > 0)
    return carry, jax.tree.map(lambda leaf: leaf[None], record)


def _empty_records(program: RunSpec, carry: LoopState, capacity: int) -> DrawRecord | None:
    if capacity == 0:
        return None
    record = record_like(program, carry)
    return jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), record)


def _where(condition: jax.Array, chosen: PyTree, otherwise: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), chosen, otherwise)


# Variates


class Block(NamedTuple):
    """Variates of some steps; those of the motion are None where each step makes its own.

    Those of the gradients have no chain axis where all chains take the same, and are None where
    the host took the rows of all steps.
    """

    variates: Variates
    num_steps: int


def _block(program: RunSpec, t, num_steps: int, *, has_motion: bool) -> Block:
    """The variates of steps t, …, t + num_steps − 1 of all chains."""
    is_shared = program.estimator.is_shared
    is_given = program.batches is not None

    def of_chains(chains: RunSpec) -> Variates:
        motion = chains.draw_motion(t, num_steps) if has_motion else None
        is_own = not (is_shared or is_given)
        return Variates(motion, chains.draw_gradients(t, num_steps) if is_own else None)

    if program.layout.axis == -1 and not program.is_stacked:
        # All chains at once: vmap would have XLA put their axis first.
        variates = of_chains(program.with_keys(program.layout.to_loop(program.keys)))
    else:
        variates = each_chain(program, of_chains, None)
    if is_shared and not is_given:
        of_first = program.with_keys(program.keys[0])
        variates = variates._replace(gradient=of_first.draw_gradients(t, num_steps))
    return Block(variates, num_steps)


@eqx.filter_jit
def _variates(program: RunSpec) -> Variates:
    """Of one step, for their shapes."""
    return _block(program, 0, 1, has_motion=True).variates


# Steps


def _steps_of_draw(
    program: RunSpec, plan: Blocking, carry: LoopState, t, block, offset
) -> LoopState:
    """All steps of one draw, and what is due between them."""

    def one_period(i, carry):
        done = i * plan.period
        if block is None:
            carry = _steps_in_blocks(program, plan, carry, t + done)
        else:
            carry = _steps(program, plan, carry, t + done, block, offset + done, plan.period)
        return make_updates(program, t + done + plan.period - 1, carry, adapts=plan.adapts)

    carry = _repeat(program.thinning // plan.period, one_period, carry)
    return carry if plan.is_watched else _watch(program, t + program.thinning - 1, carry)


def _steps_in_blocks(program: RunSpec, plan: Blocking, carry: LoopState, t) -> LoopState:
    """The steps of one period, with variates made for some of them at a time."""
    length = plan.block_length
    num_blocks = -(-plan.period // length)

    def one_block(i, carry):
        now = t + i * length
        block = _block(program, now, length, has_motion=plan.block_has_motion)
        is_whole = num_blocks * length == plan.period
        count = length if is_whole else jnp.minimum(length, plan.period - i * length)
        return _steps(program, plan, carry, now, block, 0, count)

    return _repeat(num_blocks, one_block, carry)


def _steps(
    program: RunSpec, plan: Blocking, carry: LoopState, t, block: Block, offset, count
) -> LoopState:
    """Steps t, …, t + count − 1 of all chains, with the block's variates from `offset` on."""
    own, shared = block.variates, None
    if program.estimator.is_shared:
        own, shared = own._replace(gradient=None), own.gradient

    def one(i, carry):
        def of_chain(chain: RunSpec, own: Variates, carry: LoopState) -> LoopState:
            variates = own if shared is None else own._replace(gradient=shared)
            variates = jax.tree.map(lambda leaf: _part(leaf, offset + i, block.num_steps), variates)
            state, info = step(chain, t + i, variates, carry)
            if not plan.is_watched:
                return carry._replace(state=state)
            seen = info.potential if program.has_info else state
            failed_at = _first_failure(carry.failed_at, t + i, seen)
            return carry._replace(state=state, info=info, failed_at=failed_at)

        return each_chain(program, of_chain, carry.kernel, own, carry)

    return _repeat(count, one, carry)


def _part(variates: Shaped[Array, "n ..."], j, num_steps: int) -> Shaped[Array, "m ..."]:
    """One step's part of the 1-D variates of several."""
    if num_steps == 1:
        return variates
    width = variates.shape[0] // num_steps
    return lax.dynamic_slice(variates, (j * width,), (width,))


def _repeat(count: int | jax.Array, body: Callable, carry: Any) -> Any:
    is_once = isinstance(count, int) and count == 1
    return body(0, carry) if is_once else lax.fori_loop(0, count, body, carry)


def _watch(program: RunSpec, t, carry: LoopState) -> LoopState:
    """Look at the potential after step t, with the next batch; without info, at the state."""

    def of_chain(chain: RunSpec, carry: LoopState) -> LoopState:
        info, seen = StepInfo(None), carry.state
        if program.has_info:
            seen = chain.look(t + 1, chain.kernel.position(carry.state), carry).potential
            info = StepInfo(seen)
        return carry._replace(info=info, failed_at=_first_failure(carry.failed_at, t, seen))

    return each_carry(program, carry, of_chain)


def _first_failure(failed_at: Int32[Array, ""], t, seen: PyTree) -> Int32[Array, ""]:
    return jnp.where(tree.all_finite(seen), failed_at, jnp.minimum(failed_at, t))


# Between steps


def make_updates(program: RunSpec, t, carry: LoopState, *, adapts: bool) -> LoopState:
    """What may be due after step t: Gibbs, the estimator's memory, adaptation, V̂, lazy steps."""
    gibbs, adapt, fisher = program.gibbs, program.adapt, fisher_of(program.kernel)
    renew_every = program.estimator.renew_every
    due: list[tuple[jax.Array, Callable[[RunSpec, LoopState], LoopState]]] = []
    if gibbs is not None:
        is_due = ((t + 1) % gibbs.every == 0) & (t >= gibbs.start)
        due.append((is_due, lambda chain, carry: chain.update_hyper(t, carry)))
    if renew_every is not None:
        due.append(((t + 1) % renew_every == 0, RunSpec.follow))
    if adapt is not None and adapts:
        due.append((adapt.is_due(t), lambda chain, carry: chain.update_kernel(t, carry)))
    if fisher is not None:
        is_due = (t + 1) % fisher.every == 0
        due.append((is_due, lambda chain, carry: chain.update_noise(t, carry)))
    if isinstance(program.kernel, LazyRows):
        # Before whatever looks at all of the state; a draw is due where thinning says so.
        looks = [(t + 1) % program.thinning == 0, *(is_due for is_due, _ in due)]
        is_due = functools.reduce(jnp.logical_or, looks)
        due.insert(0, (is_due, lambda chain, carry: chain.settle(t, carry)))
    for is_due, update in due:
        carry = lax.cond(
            is_due,
            lambda carry, update=update: each_carry(program, carry, update),
            lambda carry: carry,
            carry,
        )
    return carry
