"""Operations of a run on one chain: keys, initial state, variates, a step, a draw, updates.

There are no loops here and no chain axis: `loop` has both. `Blocking` says how long its loops are.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, UInt32

from sghmc.adapt import Adaptation, Moment
from sghmc.core import matrices, random, runtime, tree
from sghmc.core.checks import as_array
from sghmc.engine.layout import Batches, DrawInfo, DrawRecord, Layout, LoopState, Variates
from sghmc.gradients import GradientEstimator, Oracle
from sghmc.gradients.noise import gradient_noise, no_noise
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.target import Target
from sghmc.samplers import (
    Adaptable,
    CachesEvaluation,
    EstimatesNoise,
    Kernel,
    LazyRows,
    as_protocol,
    fisher_of,
)
from sghmc.types import Evaluation, PyTree, StepInfo

MOTION, GRADIENT, GIBBS, INIT = range(4)
"""Streams of a chain's random numbers: its steps, gradients, Gibbs updates and first momenta."""
NUM_STREAMS = INIT + 1

NEVER = np.iinfo(np.int32).max
"""A step that no run comes to: where a chain has not failed."""


def chain_keys(key: jax.Array, num_chains: int) -> UInt32[Array, "chain stream 3"]:
    """Return keys of three words; a chain's do not depend on how many chains there are."""
    words = random.words(key)
    is_known = not isinstance(words, Tracer)
    # A few operations, not worth a compiler's time; nor is their way to a device.
    x, y = np.asarray(words) if is_known else words
    for count in (num_chains, NUM_STREAMS):
        # The words of `random.fold` of each key and 0, …, count − 1, along a new last axis.
        numbers = np.arange(count, dtype=np.uint32)[(None,) * np.ndim(x)]
        x, y = random.threefry((x[..., None], y[..., None]), np.zeros_like(numbers), numbers)
    parts = [x, y, random.parity(x, y)]
    return jax.device_put(np.stack(parts, axis=-1)) if is_known else jnp.stack(parts, axis=-1)


def with_shared_gradients(
    keys: UInt32[Array, "chain stream 3"],
) -> UInt32[Array, "chain stream 3"]:
    """Return the same keys, but for gradients, where all chains have that of the first."""
    return keys.at[:, GRADIENT].set(keys[0, GRADIENT])


class RunSpec(eqx.Module):
    """The fixed parts of a run: its arrays are arguments of the compiled loop, the rest static.

    `keys` are those of all chains or, as one chain sees the run, its own. With `is_stacked`,
    arrays of the target and of the estimator have a leading chain axis. Where the data are a
    source, `batches` has the rows of some steps, put in by the host.

    Methods are called on the run as one chain sees it, with keys, kernel, target and rows of its
    own: `loop.each_chain` makes that.
    """

    target: Target
    kernel: Kernel
    estimator: GradientEstimator
    gibbs: Gibbs | None
    adapt: Adaptation | None
    keep: Callable | None
    averages: dict[str, Callable]
    trace: Callable | None
    keys: UInt32[Array, "chain stream word"] | UInt32[Array, "stream word *chain"]
    layout: Layout = eqx.field(static=True)
    thinning: int = eqx.field(static=True)
    is_stacked: bool = eqx.field(static=True)
    batches: Batches | None = None
    has_info: bool = eqx.field(static=True, default=True)

    def with_kernel(self, arrays: Kernel) -> "RunSpec":
        """Return this run with a chain's own kernel, of which the loop's state has the arrays."""
        return dataclasses.replace(self, kernel=matrices.combine(arrays, self.kernel))

    def initial_state(self, flat: PyTree, t: Any) -> LoopState:
        """Return the state before step t, which is 0, at a position: `info` is still empty."""
        normals = random.normals_like(self.keys[INIT], t, 1, self.layout.flat_like)
        kernel, adaptation = None, None
        state = self.kernel.init(normals, flat)
        if self.adapt is not None:
            adaptable = as_protocol(self.kernel, Adaptable).adaptable(state)
            kernel = eqx.filter(adaptable, eqx.is_array)
            adaptation = self.adapt.begin(self.kernel, self.layout.shape(flat))
        carry = LoopState(
            kernel=kernel,
            state=state,
            hyper=self.target.hyper,
            anchor=self.estimator.init_anchor(self.target),
            noise=None,
            sums=None,
            info=StepInfo(None),
            failed_at=jnp.asarray(NEVER, jnp.int32),
            adaptation=adaptation,
        )
        carry = self.with_cached_evaluation(carry)
        fisher = fisher_of(self.kernel)
        if fisher is not None:
            noise = no_noise(tree.size(flat), fisher, tree.float_type(flat), NEVER)
            chain = self if kernel is None else self.with_kernel(kernel)
            carry = chain.update_noise(-1, carry._replace(noise=noise))
        if self.averages:
            terms = jax.eval_shape(lambda: self.averaged(flat, carry.hyper))
            carry = carry._replace(sums=tree.RunningSum.zeros(terms))
        return carry

    def with_cached_evaluation(self, carry: LoopState) -> LoopState:
        """Renew what the sampler's state knows of the target, where gradients are exact."""
        if not isinstance(self.kernel, CachesEvaluation):
            return carry
        state = self.kernel.with_cached_evaluation(carry.state, self.oracle([], carry))
        return carry._replace(state=state)

    def oracle(self, noise: PyTree, carry: LoopState) -> Oracle:
        """Return the oracle of one step, for parameters as the loop carries them."""
        target = self.target.with_hyper(carry.hyper)
        oracle = self.estimator.oracle(target, noise, carry.anchor)
        return oracle.through(self.layout.shape, self.layout.flatten, keeps_rows=True)

    def evaluate(self, t: Any, flat: PyTree, carry: LoopState) -> Evaluation:
        """Return the first gradient evaluation of step t, at a position."""
        return self.oracle(self.draw(t, motion=False).gradient, carry)(0, flat)

    def draw(
        self, t: Any, num_steps: int = 1, *, motion: bool = True, gradient: bool = True
    ) -> Variates:
        """Draw the raw variates of steps t, …, for the sampler, for its gradients, or for both."""
        of_motion, of_gradient, like = None, None, self.layout.flat_like
        if motion:
            of_motion = self.kernel.draw(self.keys[MOTION], t, num_steps, like)
        if gradient and self.batches is not None:
            of_gradient = self.batches.of_steps(t, num_steps)
        elif gradient:
            sizes = num_steps, self.kernel.num_gradients
            # Row numbers are used by every array of the data: they are computed once.
            of_gradient = runtime.unfused(
                t, self.estimator.draw, self.keys[GRADIENT], t, *sizes, like
            )
        return Variates(of_motion, of_gradient)

    def step(self, t: Any, variates: Variates, carry: LoopState) -> tuple[Any, StepInfo]:
        """Return the sampler's state after step t, from that step's variates."""
        oracle = self.oracle(variates.gradient, carry)
        state, info = self.kernel.step(t, variates.motion, carry.state, oracle)
        # What nobody asks for is not computed: the compiler sees to it.
        return state, info if self.has_info else info._replace(potential=None)

    def flush(self, t: Any, carry: LoopState) -> LoopState:
        """Bring all of the state to the end of step t, where the kernel leaves parts behind."""
        if not isinstance(self.kernel, LazyRows):
            return carry
        oracle = self.oracle(self.draw(t, motion=False).gradient, carry)
        motion = self.draw(t, gradient=False).motion
        return carry._replace(state=self.kernel.flush(t, motion, carry.state, oracle))

    def observe(self, t, carry: LoopState, is_counted) -> tuple[LoopState, DrawRecord]:
        """Return the averages with the draw after step t in them, if it counts, and its record."""
        flat = self.kernel.draw_from(t, carry.state)
        is_finite = (carry.failed_at > t) & tree.all_finite((flat, carry.hyper))
        keep = self.keep or (lambda position, *hyper: position)
        kept = returned_arrays("keep", keep, self.layout.shape(flat), carry.hyper)
        info = DrawInfo(None, None, None, None, is_finite)
        if self.has_info:
            temperature = self.kernel.kinetic_temperature(t, carry.state)
            potential, acceptance, data_share = carry.info
            info = DrawInfo(potential, temperature, acceptance, data_share, is_finite)
        if carry.sums is not None:
            terms = self.averaged(flat, carry.hyper)
            carry = carry._replace(sums=carry.sums.add(terms, is_finite & is_counted))
        trace = None
        if self.trace is not None and carry.sums is not None:
            trace = returned_arrays("trace", self.trace, carry.sums.mean(), None)
        return carry, DrawRecord(kept, carry.hyper, trace, info)

    def update_hyper(self, t, carry: LoopState) -> LoopState:
        """Draw new hyperparameters after step t, and renew the estimator's anchor under them."""
        assert self.gibbs is not None
        target = self.target.with_hyper(carry.hyper)
        # jax's own, whose rounds are a loop: quicker to compile, and this happens seldom.
        key = jax.random.wrap_key_data(self.keys[GIBBS, :2], impl="threefry2x32")
        key = jax.random.fold_in(key, t)
        params = self.layout.shape(self.kernel.mid_drift(t, carry.state))
        hyper = self.gibbs.update(key, params, target)
        anchor = self.estimator.renew_anchor(target.with_hyper(hyper), carry.anchor)
        return self.with_cached_evaluation(carry._replace(hyper=hyper, anchor=anchor))

    def move_anchor(self, carry: LoopState) -> LoopState:
        """Move the estimator's anchor to where the chain is."""
        position = self.layout.shape(self.kernel.position(carry.state))
        target = self.target.with_hyper(carry.hyper)
        return carry._replace(anchor=self.estimator.move_anchor(target, carry.anchor, position))

    def update_noise(self, t, carry: LoopState) -> LoopState:
        """Estimate V̂ after step t from the next step's rows, and put it into the kernel."""
        kernel, noise = as_protocol(self.kernel, EstimatesNoise), carry.noise
        fisher, flat = kernel.fisher, kernel.position(carry.state)
        assert fisher is not None
        assert noise is not None
        target = self.target.with_hyper(carry.hyper)
        estimate = gradient_noise(
            self.estimator,
            target,
            carry.anchor,
            self.layout.shape(flat),
            self.estimator.examples(target, self.draw(t + 1, motion=False).gradient),
            diagonal=fisher.diagonal,
            pull_back=kernel.pull_back,
        )
        noise = noise.with_estimate(estimate.astype(noise.mean.dtype), fisher.window)
        kernel, room = kernel.with_gradient_noise(t + 1, noise.mean, flat)
        kernel = eqx.filter(kernel, eqx.is_array)
        return carry._replace(kernel=kernel, noise=noise.judged(t + 1, *room))

    def update_kernel(self, t, carry: LoopState) -> LoopState:
        """Adapt kernel and state after step t, and what the adaptation remembers."""
        assert self.adapt is not None
        own = as_protocol(self.kernel, Adaptable)
        flat = own.position(carry.state)
        moment = Moment(
            t,
            own,
            own.map_parameters(carry.state, self.layout.shape),
            carry.hyper,
            carry.info.acceptance,
            # Rows of the next step: fresh, as the chain has not seen them.
            lambda: self.layout.shape(own.pull_back(self.evaluate(t + 1, flat, carry).grad)),
        )
        kernel, state, adaptation = self.adapt.revise(moment, carry.adaptation)
        return carry._replace(
            kernel=eqx.filter(kernel, eqx.is_array),
            state=own.map_parameters(state, self.layout.flatten),
            adaptation=adaptation,
        )

    def averaged(self, flat: PyTree, hyper: PyTree) -> dict[str, PyTree]:
        """Return what the functions of `averages` say of a position."""
        at = self.layout.shape(flat), hyper
        named = self.averages.items()
        return {name: returned_arrays(f"averages[{name!r}]", f, *at) for name, f in named}


def returned_arrays(name: str, function: Callable, argument: PyTree, hyper: PyTree) -> PyTree:
    """Call a user's function, with the hyperparameters where there are any; return arrays."""
    returned = function(argument) if hyper is None else function(argument, hyper)
    return jax.tree.map(lambda leaf: as_array(leaf, f"What {name} returns"), returned)


# Lengths of the loops that make draws

_BLOCK_VARIATES = 65_536
"""Variates drawn at once: enough to vectorize, few enough to stay in the cache."""
_MIN_STEPS_OF_SMALL = 8
"""A model is small where so many of its steps fit into one block."""
_MIN_STEPS_OF_MANY_CHAINS = 4
"""Steps of a block of very many chains, though they do not fit."""
_BLOCK_DRAWS, _BLOCK_TRAJECTORIES = 512, 32
"""Draws of a block on an accelerator, which makes all of them even where fewer are asked for: of
single steps, and of trajectories, beside which a device-to-host sync costs nothing."""
_BLOCK_ROWS = 1_048_576
"""Variates of gradients drawn at once, alone: each time costs an accelerator some launches."""


class Blocking(NamedTuple):
    """Lengths of the loops that a run is cut into.

    `period` steps go by between moments when a Gibbs update, an adaptation, a renewal of the
    estimator's memory or an estimate of its noise may be due: they are asked for then only. Where a
    step has few variates, `draws_per_block` draws have theirs made together; where that would not
    be one draw, `block_length` steps. An accelerator asks the host whether to go on at every turn
    of a loop whose length is not compiled in: there blocks are always whole (`is_padded`), and what
    was not asked for is thrown away. A model with many parameters makes its normals step by step
    (`block_has_motion` is False), and is looked at once a draw (`is_watched` is False), since the
    potential of every step would cost a pass over them; so is one whose potentials nobody wants,
    and one whose steps leave parts of the state behind.

    Where there is room for one record at a time, it is made after the loop (`records_after`).

    | `burnin` | its draws | where |
    | --- | --- | --- |
    | "kept" | are recorded as others are, and the host drops them | small models, as they are |
    | "skipped" | are not recorded, or not counted: a number says so | larger models |
    | "apart" | have a program of their own | small models whose draws functions look at, or that \
adapt; accelerators, which would ask the host for that number |
    """

    period: int
    draws_per_block: int
    block_length: int
    block_has_motion: bool
    is_watched: bool
    adapts: bool
    is_padded: bool
    burnin: Literal["kept", "skipped", "apart"]
    records_after: bool

    def rows(self, capacity: int) -> int:
        """Return how many draws a record of `capacity` must have room for."""
        whole = self.draws_per_block if self.is_padded and self.draws_per_block else 1
        return -(-capacity // whole) * whole

    @classmethod
    def of(
        cls, spec: RunSpec, num_normals: int, num_rows: int, capacity: int, must_watch: bool
    ) -> "Blocking":
        """Return the blocking for so many variates of all chains' motion, and of their rows.

        There is room for `capacity` records; for none in a program of burn-in alone.
        """
        is_lazy = isinstance(spec.kernel, LazyRows)
        # It draws less than a step of all parameters would, but its draws are as large.
        num_normals = tree.size(spec.layout.like) if is_lazy else num_normals
        together = _BLOCK_VARIATES // max(1, num_normals + num_rows)
        is_small, is_padded = together >= _MIN_STEPS_OF_SMALL, runtime.has_accelerator()
        # So many chains of a small model that it is not small any more: alone, each would make its
        # normals again for everything that they enter.
        is_many = spec.layout.num_chains > 1 and spec.layout.axis == -1
        is_wide = is_many and not is_small and not is_padded
        together = max(_MIN_STEPS_OF_MANY_CHAINS, together) if is_wide else together
        draws = together // spec.thinning if is_small or is_wide else 0
        records_after = draws == 0 and capacity == 1
        burnin: Literal["kept", "skipped", "apart"]
        if draws == 0:
            burnin = "skipped" if records_after or not is_padded else "apart"
        else:
            has_functions = spec.keep or spec.averages or spec.trace or spec.adapt
            burnin = "apart" if has_functions else "kept"
        adapts = spec.adapt is not None and (capacity == 0 or burnin == "skipped")
        intervals = [spec.thinning]
        intervals += [spec.gibbs.every] if spec.gibbs else []
        intervals += [spec.estimator.renew_every] if spec.estimator.renew_every else []
        fisher = fisher_of(spec.kernel)
        intervals += [fisher.every] if fisher else []
        intervals += [spec.adapt.every] if spec.adapt and adapts else []
        period = math.gcd(*intervals)
        most = together if is_small or is_wide else max(1, _BLOCK_ROWS // max(1, num_rows))
        most = min(most, period)
        # A divisor of the period: a count known at compile time spares an accelerator a question
        # to the host. Elsewhere, where there is none but 1, the last block is cut short.
        length = max(n for n in range(1, most + 1) if period % n == 0)
        length = most if length == 1 and not is_padded else length
        whole = _BLOCK_DRAWS if spec.kernel.num_gradients == 1 else _BLOCK_TRAJECTORIES
        return cls(
            period=period,
            draws_per_block=min(draws, whole) if is_padded else draws,
            block_length=length,
            block_has_motion=is_small or (is_wide and length > 1),
            is_watched=must_watch
            or (spec.has_info and (is_small or spec.thinning == 1) and not is_lazy),
            adapts=adapts,
            is_padded=is_padded,
            burnin=burnin,
            records_after=records_after,
        )
