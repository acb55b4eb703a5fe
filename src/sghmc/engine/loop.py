"""The compiled loop over all chains: initial states, blocks of raw variates, steps, draws.

`step` and `observe` are jitted though they run inside compiled programs, so that Python goes
through the user's model once for the initial states and the loop: of a deep network that takes as
long as a good part of its compilation.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Shaped

from sghmc.core import runtime, tree
from sghmc.engine.chain import Blocking, RunSpec
from sghmc.engine.layout import DrawRecord, LoopState, Variates, repeated
from sghmc.samplers import Kernel, LazyRows, fisher_of
from sghmc.types import PyTree, StepInfo


def each_chain(spec: RunSpec, function: Callable, kernel: Kernel | None, *args: PyTree) -> Any:
    """Return `function(chain, *args)` for every chain, `chain` being the run as that chain sees it.

    `kernel` has the chains' own, or is None where they share the run's. It and the other arguments
    have the chain axis where the loop has it; what chains share, `function` closes over.
    """
    layout, axis = spec.layout, spec.layout.axis
    own, rest = eqx.partition(_own_parts(spec), eqx.is_array)

    def of_chain(own, keys, kernel, *args):
        chain = dataclasses.replace(spec, keys=keys)
        if own:
            chain = eqx.tree_at(_own_parts, chain, eqx.combine(own, rest))
        return function(chain if kernel is None else chain.with_kernel(kernel), *args)

    keys = layout.to_loop(spec.keys)
    if layout.num_chains == 1:
        return of_chain(jax.tree.map(lambda leaf: leaf[0], own), keys, kernel, *args)
    in_axes = (0, axis, axis, *(axis for _ in args))
    return jax.vmap(of_chain, in_axes=in_axes, out_axes=axis)(own, keys, kernel, *args)


def _own_parts(spec: RunSpec) -> tuple[Any, ...]:
    """Return the parts of a run besides keys that have a leading chain axis."""
    if spec.is_stacked:
        return spec.target, spec.estimator
    if spec.batches is not None and not spec.estimator.is_shared:
        return (spec.batches.places,)
    return ()


# Initial states


class InitialState(NamedTuple):
    """The loop's state before step 0 and, if asked for, the gradient where each chain starts."""

    carry: LoopState
    potential: Float[Array, "*chain"] | None
    is_finite: Bool[Array, "*chain"] | None


def initial_states(
    spec: RunSpec, positions: PyTree, t: Any, *, evaluates: bool, is_shared: bool = False
) -> InitialState:
    """Return the state of all chains before step t, which is 0.

    Positions have a leading chain axis. One that all chains share is repeated here: outside, it
    would be a copy more.

    A step that begins with a gradient finds a bad start by itself: to compile another evaluation of
    the model would take as long as the loop does. So it `evaluates` when a chain has failed, or
    else when a sampler goes elsewhere first, or may stay where it starts.
    """

    def of_chain(chain: RunSpec, flat: PyTree) -> InitialState:
        carry = chain.initial_state(flat, t)
        # Without jax's weak types, which a saved number does not have: promotions are then the same
        # before and after.
        carry = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), carry)
        _, info = eqx.filter_eval_shape(step, chain, t, Variates(), carry)
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        carry = carry._replace(info=info)
        begins_elsewhere = (
            chain.kernel.gradient_use == "inside" or carry.info.acceptance is not None
        )
        if not (evaluates or begins_elsewhere):
            return InitialState(carry, None, None)
        evaluation = chain.evaluate(t, flat, carry)
        return InitialState(carry, evaluation.potential, tree.all_finite(evaluation))

    positions = repeated(positions, spec.layout.num_chains) if is_shared else positions
    flat = spec.layout.to_loop(jax.vmap(spec.layout.flatten)(positions))
    return each_chain(spec, of_chain, None, flat)


@functools.cache
def compiled_initial_states(*, is_large: bool) -> Any:
    kind = "loop" if is_large else "once"
    return eqx.filter_jit(initial_states, **runtime.jit_options(kind))


# A step and a draw, each traced once for all that share a run's functions


def step(chain: RunSpec, t: Any, variates: Variates, carry: LoopState) -> tuple[Any, StepInfo]:
    """Take a step, traced once for the initial states and the loop; draw variates not given."""
    t, (motion, gradient) = jnp.asarray(t, jnp.int32), variates
    if motion is None or gradient is None:
        drawn = chain.draw(t, motion=motion is None, gradient=gradient is None)
        motion = drawn.motion if motion is None else motion
        variates = Variates(motion, drawn.gradient if gradient is None else gradient)
    known = carry._replace(sums=None, info=None, failed_at=None, noise=None, adaptation=None)
    return _jitted_step(chain, t, variates, known)


_jitted_step = eqx.filter_jit(RunSpec.step)


@eqx.filter_jit
def observe(
    spec: RunSpec, t: Int32[Array, ""], carry: LoopState, is_counted: Bool[Array, ""]
) -> tuple[LoopState, DrawRecord]:
    """Record the draw of all chains after step t, and add it to their averages if it counts."""
    return each_chain(
        spec, lambda chain, carry: chain.observe(t, carry, is_counted), carry.kernel, carry
    )


def record_like(spec: RunSpec, carry: LoopState) -> DrawRecord:
    """Return the shapes of what `observe` records."""
    step, flag = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.bool_))
    return eqx.filter_eval_shape(observe, spec, step, carry, flag)[1]


# Draws


@functools.cache
def compiled_draws() -> Any:
    return eqx.filter_jit(make_draws, donate="all-except-first", **runtime.jit_options("loop"))


def blocking_of(spec: RunSpec, carry: LoopState, capacity: int) -> Blocking:
    """Return how the loop is cut where there is room for `capacity` records."""
    one = eqx.filter_eval_shape(_jitted_block, spec, 0, 1, has_motion=True).variates
    must_watch = carry.info.acceptance is not None
    return Blocking.of(spec, tree.size(one.motion), tree.size(one.gradient), capacity, must_watch)


def make_draws(
    spec: RunSpec, carry: LoopState, first: Any, count: Any, num_kept: Any, *, capacity: int
) -> tuple[LoopState, DrawRecord | None]:
    """Make draws first, …, first + count − 1; return the new state and their records.

    `capacity`, the length of the records, is compiled in; where draws are kept it is at least
    `count`, and 0 where burn-in has a program of its own (`Blocking.burnin`). The other numbers
    are arguments, so that one program serves blocks of any length; `num_kept` is 1, or 0 for draws
    of burn-in. Compiled, it takes over the memory of `carry`.
    """
    blocking, thinning = blocking_of(spec, carry, capacity), spec.thinning
    if blocking.records_after:
        return _make_one_record(spec, blocking, carry, first, count, num_kept)
    records = None
    if capacity:
        rows = blocking.rows(capacity)
        like = record_like(spec, carry)
        records = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), like)

    def make_draw(k, loop, block=None, offset=None):
        """Make draw first + k, whose steps find their variates in `block` from `offset` on."""
        carry, records = loop
        t = (first + k) * thinning
        carry = _steps_of_draw(spec, blocking, carry, t, block, offset)
        if records is None:
            return carry, None

        def keep(_, loop):
            last = jnp.asarray(t + thinning - 1, jnp.int32)
            carry, record = observe(spec, last, loop[0], jnp.asarray(True))
            return carry, jax.tree.map(
                lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, k, 0), loop[1], record
            )

        # A loop of one turn or none: of a branch, XLA would copy the records.
        return _repeat(num_kept if blocking.burnin == "skipped" else 1, keep, (carry, records))

    if blocking.draws_per_block == 0:
        return lax.fori_loop(0, count, make_draw, (carry, records))

    def make_block(b, loop):
        done = b * blocking.draws_per_block
        num_steps = blocking.draws_per_block * thinning
        block = _block(spec, (first + done) * thinning, num_steps, has_motion=True)

        def one(k, loop):
            carry, records = make_draw(done + k, loop, block, k * thinning)
            if blocking.is_padded:
                is_asked_for = done + k < count
                old = loop[0]
                carry = jax.tree.map(lambda x, y: jnp.where(is_asked_for, x, y), carry, old)
            return carry, records

        left = jnp.minimum(blocking.draws_per_block, count - done)
        return lax.fori_loop(0, blocking.draws_per_block if blocking.is_padded else left, one, loop)

    num_blocks = (count + blocking.draws_per_block - 1) // blocking.draws_per_block
    return lax.fori_loop(0, num_blocks, make_block, (carry, records))


def _make_one_record(
    spec: RunSpec, blocking: Blocking, carry: LoopState, first: Any, count: Any, num_kept: Any
) -> tuple[LoopState, DrawRecord]:
    """Record the last draw: the only one, where it is kept; of burn-in it is thrown away."""

    def make_draw(k, carry):
        return _steps_of_draw(spec, blocking, carry, (first + k) * spec.thinning, None, None)

    carry = lax.fori_loop(0, count, make_draw, carry)
    last = jnp.asarray((first + count) * spec.thinning - 1, jnp.int32)
    carry, record = observe(spec, last, carry, is_counted=jnp.asarray(num_kept > 0))
    return carry, jax.tree.map(lambda leaf: leaf[None], record)


# Variates


class VariateBlock(NamedTuple):
    """Variates of some steps; those of the motion are None where each step makes its own.

    Those of the gradients have no chain axis where all chains take the same, and are None where
    the host took the rows of all steps.
    """

    variates: Variates
    num_steps: int


def _block(spec: RunSpec, t: Any, num_steps: int, *, has_motion: bool) -> VariateBlock:
    """Draw the variates of steps t, …, t + num_steps − 1 of all chains."""
    is_shared = spec.estimator.is_shared
    is_given = spec.batches is not None

    own_gradient = not (is_shared or is_given)
    draw = functools.partial(
        RunSpec.draw, t=t, num_steps=num_steps, motion=has_motion, gradient=own_gradient
    )
    if spec.layout.axis == -1 and not spec.is_stacked:
        # All chains at once: vmap would have XLA put their axis first.
        keys = spec.layout.to_loop(spec.keys)
        variates = draw(dataclasses.replace(spec, keys=keys))
    else:
        variates = each_chain(spec, draw, None)
    if is_shared and not is_given:
        of_first = dataclasses.replace(spec, keys=spec.keys[0])
        gradient = of_first.draw(t, num_steps, motion=False).gradient
        variates = variates._replace(gradient=gradient)
    return VariateBlock(variates, num_steps)


_jitted_block = eqx.filter_jit(_block)  # traced once for its shapes


# Steps


def _steps_of_draw(
    spec: RunSpec, blocking: Blocking, carry: LoopState, t, block, offset
) -> LoopState:
    """Take all steps of one draw, and make the updates that are due between them."""

    def one_period(i, carry):
        done = i * blocking.period
        if block is None:
            carry = _steps_in_blocks(spec, blocking, carry, t + done)
        else:
            carry = _steps(spec, blocking, carry, t + done, block, offset + done, blocking.period)
        return make_updates(spec, t + done + blocking.period - 1, carry, adapts=blocking.adapts)

    carry = _repeat(spec.thinning // blocking.period, one_period, carry)
    return carry if blocking.is_watched else _watch(spec, t + spec.thinning - 1, carry)


def _steps_in_blocks(spec: RunSpec, blocking: Blocking, carry: LoopState, t) -> LoopState:
    """Take the steps of one period, with variates drawn for some of them at a time."""
    length = blocking.block_length
    num_blocks = -(-blocking.period // length)

    def one_block(i, carry):
        now = t + i * length
        block = _block(spec, now, length, has_motion=blocking.block_has_motion)
        is_whole = num_blocks * length == blocking.period
        count = length if is_whole else jnp.minimum(length, blocking.period - i * length)
        return _steps(spec, blocking, carry, now, block, 0, count)

    return _repeat(num_blocks, one_block, carry)


def _steps(
    spec: RunSpec, blocking: Blocking, carry: LoopState, t, block: VariateBlock, offset, count
) -> LoopState:
    """Take steps t, …, t + count − 1 of all chains, with the block's variates from `offset` on."""
    own, shared = block.variates, None
    if spec.estimator.is_shared:
        own, shared = own._replace(gradient=None), own.gradient

    def one(i, carry):
        def of_chain(chain: RunSpec, own: Variates, carry: LoopState) -> LoopState:
            variates = own if shared is None else own._replace(gradient=shared)
            variates = jax.tree.map(lambda leaf: _part(leaf, offset + i, block.num_steps), variates)
            state, info = step(chain, t + i, variates, carry)
            if not blocking.is_watched:
                return carry._replace(state=state)
            seen = info.potential if spec.has_info else state
            failed_at = _first_failure(carry.failed_at, t + i, tree.all_finite(seen))
            return carry._replace(state=state, info=info, failed_at=failed_at)

        return each_chain(spec, of_chain, carry.kernel, own, carry)

    return _repeat(count, one, carry)


def _part(variates: Shaped[Array, "n ..."], j, num_steps: int) -> Shaped[Array, "m ..."]:
    """Return one step's part of the 1-D variates of several."""
    if num_steps == 1:
        return variates
    width = variates.shape[0] // num_steps
    return lax.dynamic_slice(variates, (j * width,), (width,))


def _repeat(count: int | jax.Array, body: Callable, carry: Any) -> Any:
    is_once = isinstance(count, int) and count == 1
    return body(0, carry) if is_once else lax.fori_loop(0, count, body, carry)


def _watch(spec: RunSpec, t, carry: LoopState) -> LoopState:
    """Check the potential after step t, with the next batch; without info, check the state."""

    def of_chain(chain: RunSpec, carry: LoopState) -> LoopState:
        info, seen = StepInfo(None), carry.state
        if spec.has_info:
            seen = chain.evaluate(t + 1, chain.kernel.position(carry.state), carry).potential
            info = StepInfo(seen)
        failed_at = _first_failure(carry.failed_at, t, tree.all_finite(seen))
        return carry._replace(info=info, failed_at=failed_at)

    return each_chain(spec, of_chain, carry.kernel, carry)


def _first_failure(failed_at: Int32[Array, ""], t, is_finite: jax.Array) -> Int32[Array, ""]:
    return jnp.where(is_finite, failed_at, jnp.minimum(failed_at, t))


# Between steps


def make_updates(spec: RunSpec, t, carry: LoopState, *, adapts: bool) -> LoopState:
    """Make the updates due after step t: Gibbs, anchor of the estimator, adaptation, V̂, flush."""
    gibbs, adapt, fisher = spec.gibbs, spec.adapt, fisher_of(spec.kernel)
    renew_every = spec.estimator.renew_every
    due: list[tuple[jax.Array | bool, Callable[[RunSpec, LoopState], LoopState]]] = []
    if gibbs is not None:
        is_due = ((t + 1) % gibbs.every == 0) & (t >= gibbs.start)
        due.append((is_due, lambda chain, carry: chain.update_hyper(t, carry)))
    if renew_every is not None:
        due.append(((t + 1) % renew_every == 0, RunSpec.move_anchor))
    if adapt is not None and adapts:
        due.append((adapt.is_due(t), lambda chain, carry: chain.update_kernel(t, carry)))
    if fisher is not None:
        is_due = (t + 1) % fisher.every == 0
        due.append((is_due, lambda chain, carry: chain.update_noise(t, carry)))
    if isinstance(spec.kernel, LazyRows):
        # Before whatever looks at all of the state; a draw is due where thinning says so.
        is_due_for = [(t + 1) % spec.thinning == 0, *(is_due for is_due, _ in due)]
        is_due = functools.reduce(jnp.logical_or, is_due_for)
        due.insert(0, (is_due, lambda chain, carry: chain.flush(t, carry)))
    for is_due, update in due:
        carry = lax.cond(
            is_due,
            lambda carry, update=update: each_chain(spec, update, carry.kernel, carry),
            lambda carry: carry,
            carry,
        )
    return carry
