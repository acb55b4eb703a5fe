"""The keys of a run: every chain has one for each of its streams of random numbers.

What a run does to one chain: begin, draw variates, step, look, keep. No loops, no chain axis.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int32, UInt32

from sghmc.adapt import Adaptation, Moment
from sghmc.core import matrices, random, runtime, tree
from sghmc.core.checks import as_array
from sghmc.engine.layout import Layout
from sghmc.gradients import GradientEstimator, Oracle
from sghmc.gradients.noise import RunningNoise, gradient_noise, no_noise
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
"""The streams: a sampler's steps, its gradients, Gibbs updates, and momenta before step 0."""
NUM_STREAMS = INIT + 1


def chain_keys(key: jax.Array, num_chains: int) -> UInt32[Array, "chain stream 3"]:
    """Keys of three words; a chain's do not depend on how many chains there are."""
    words = random.words(key)
    is_known = not isinstance(words, Tracer)
    words = np.asarray(words) if is_known else words
    chains = _folded(words[:, None], num_chains)
    x, y = _folded([word[:, None] for word in chains], NUM_STREAMS)
    # A few operations, not worth a compiler's time; nor is their way to a device.
    parts = [x, y, random.parity(x, y)]
    return jax.device_put(np.stack(parts, axis=-1)) if is_known else jnp.stack(parts, axis=-1)


def with_shared_gradients(
    keys: UInt32[Array, "chain stream 3"],
) -> UInt32[Array, "chain stream 3"]:
    """The same keys, but for gradients, where all chains have that of the first."""
    return keys.at[:, GRADIENT].set(keys[0, GRADIENT])


def _folded(keys: Any, count: int) -> tuple[Any, Any]:
    """The words of `random.fold` of each key and 0, …, count − 1, along a last axis."""
    numbers = np.arange(count, dtype=np.uint32).reshape(*[1] * (keys[0].ndim - 1), count)
    return random.threefry(keys, np.zeros_like(numbers), numbers)


# What a run does to one chain: begin, draw variates, step, look, keep. No loops, no chain axis.

NEVER = np.iinfo(np.int32).max
"""A step that no run comes to: where a chain has not failed."""


class LoopState(NamedTuple):
    """All that a run needs to go on, for every chain: `Layout` says where their axis is.

    `kernel` only where it changes, `noise` only where V̂ is estimated, `adaptation`, what it
    remembers, only where there is one.
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
    """What is recorded with each kept draw: without `info`, whether it is finite, no more."""

    potential: Float[Array, "*chain"] | None
    kinetic_temperature: Float[Array, "*chain"] | None
    acceptance: Float[Array, "*chain"] | None
    data_share: Float[Array, "*chain"] | None
    is_finite: Bool[Array, "*chain"]


class DrawRecord(NamedTuple):
    """What the loop hands out of a kept draw."""

    kept: PyTree
    hyper: PyTree
    trace: PyTree
    info: DrawInfo


class Batches(NamedTuple):
    """Rows that the host read for steps first, …, and which of them each step takes.

    `places` has axes ([chain,] step, row of the step's batches), without the chain axis where all
    chains take the same. The rows lie in the order in which reading them was quickest.
    """

    rows: PyTree
    places: Int32[Array, "*chain step row"]
    first: Int32[Array, ""]

    def of_steps(self, first_step, num_steps: int) -> PyTree:
        """The rows of some steps, step after step, as one chain sees them."""
        first = first_step - self.first
        places = lax.dynamic_slice_in_dim(self.places, first, num_steps).reshape(-1)
        return jax.tree.map(lambda leaf: leaf.at[places].get(mode="promise_in_bounds"), self.rows)


class Variates(NamedTuple):
    """Raw variates of some steps, for the sampler and for its gradients: 1-D, step after step.

    Of a source of data, the rows that the host read for the gradients.
    """

    motion: PyTree
    gradient: PyTree


class RunSpec(eqx.Module):
    """The fixed parts of a run: its arrays are arguments of the compiled loop, the rest static.

    `keys` are those of all chains or, as one chain sees the program, its own. With `is_stacked`,
    arrays of the target and of the estimator have a leading chain axis. Where the data are a
    source, `batches` has the rows of some steps, put in by the host.

    What the loop does to a single chain is a method here. It is called on the program as that chain
    sees it, with keys, kernel, target and rows of its own: `chains.each_chain` makes it.
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

    def with_keys(self, keys: UInt32[Array, "stream word *chain"]) -> "RunSpec":
        """This program as a chain with these keys sees it; or as all do, their axis last."""
        return dataclasses.replace(self, keys=keys)

    def with_kernel(self, arrays: Kernel) -> "RunSpec":
        """This program with a chain's own kernel, of which the carry has the arrays."""
        return dataclasses.replace(self, kernel=matrices.combine(arrays, self.kernel))

    def initial_carry(self, flat: PyTree, t) -> LoopState:
        """The carry before step t, which is 0, from a position; it knows nothing of a step yet."""
        hyper = self.target.hyper
        normals = random.normals_like(self.keys[INIT], t, 1, self.layout.flat_like)
        state = self.kernel.init(normals, flat)
        kernel, adaptation = None, None
        if self.adapt is not None:
            adaptable = as_protocol(self.kernel, Adaptable).adaptable(state)
            kernel = eqx.filter(adaptable, eqx.is_array)
            adaptation = self.adapt.begin(self.kernel, self.layout.shape(flat))
        carry = LoopState(
            kernel=kernel,
            state=state,
            hyper=hyper,
            anchor=self.estimator.init_anchor(self.target),
            noise=None,
            sums=None,
            info=StepInfo(None),
            failed_at=jnp.asarray(NEVER, jnp.int32),
            adaptation=adaptation,
        )
        carry = self._informed(carry)
        fisher = fisher_of(self.kernel)
        if fisher is not None:
            noise = no_noise(tree.size(flat), fisher, tree.float_type(flat), NEVER)
            chain = self if kernel is None else self.with_kernel(kernel)
            carry = chain.update_noise(-1, carry._replace(noise=noise))
        terms = jax.eval_shape(lambda: self._averaged(flat, hyper))
        return carry._replace(sums=tree.RunningSum.zeros(terms) if self.averages else None)

    def look(self, t, flat: PyTree, carry: LoopState) -> Evaluation:
        """What the first gradient evaluation of step t sees, at a position."""
        return self._oracle(self.draw_gradients(t, 1), carry)(0, flat)

    def draw(self, t, known: Variates | None = None) -> Variates:
        """The raw variates of step t, where they are not known."""
        motion, gradient = known or (None, None)
        return Variates(
            self.draw_motion(t, 1) if motion is None else motion,
            self.draw_gradients(t, 1) if gradient is None else gradient,
        )

    def draw_motion(self, first_step, num_steps: int) -> PyTree:
        return self.kernel.draw(self.keys[MOTION], first_step, num_steps, self.layout.flat_like)

    def draw_gradients(self, first_step, num_steps: int) -> PyTree:
        if self.batches is not None:
            return self.batches.of_steps(first_step, num_steps)
        num_gradients, like = self.kernel.num_gradients, self.layout.flat_like
        # Row numbers are used by every array of the data: they are computed once.
        draw = functools.partial(self.estimator.draw, self.keys[GRADIENT])
        return runtime.unfused(first_step, draw, first_step, num_steps, num_gradients, like)

    def step(self, t, variates: Variates, carry: LoopState) -> tuple[Any, StepInfo]:
        """The state after step t, from that step's variates."""
        oracle = self._oracle(variates.gradient, carry)
        state, info = self.kernel.step(t, variates.motion, carry.state, oracle)
        # What nobody asks for is not computed: the compiler sees to it.
        return state, info if self.has_info else info._replace(potential=None)

    def settle(self, t, carry: LoopState) -> LoopState:
        """Bring all of the state to the end of step t, where the kernel leaves parts behind."""
        if not isinstance(self.kernel, LazyRows):
            return carry
        oracle = self._oracle(self.draw_gradients(t, 1), carry)
        state = self.kernel.flush(t, self.draw_motion(t, 1), carry.state, oracle)
        return carry._replace(state=state)

    def observe(self, t, carry: LoopState, is_counted) -> tuple[LoopState, DrawRecord]:
        """What is kept after step t, and the averages with that draw in them, if it counts."""
        flat = self.kernel.draw_from(t, carry.state)
        is_finite = (carry.failed_at > t) & tree.all_finite((flat, carry.hyper))
        keep = self.keep or (lambda position, *hyper: position)
        kept = returned_arrays("keep", keep, self.layout.shape(flat), carry.hyper)
        info = DrawInfo(None, None, None, None, is_finite)
        if self.has_info:
            heat = self.kernel.kinetic_temperature(t, carry.state)
            potential, acceptance, data_share = carry.info
            info = DrawInfo(potential, heat, acceptance, data_share, is_finite)
        if carry.sums is not None:
            terms = self._averaged(flat, carry.hyper)
            carry = carry._replace(sums=carry.sums.add(terms, is_finite & is_counted))
        trace = None
        if self.trace is not None and carry.sums is not None:
            trace = _as_arrays(self.trace(carry.sums.mean()), "trace")
        return carry, DrawRecord(kept, carry.hyper, trace, info)

    def update_hyper(self, t, carry: LoopState) -> LoopState:
        """With new hyperparameters after step t, and the estimator's anchor under them."""
        assert self.gibbs is not None
        target = self.target.with_hyper(carry.hyper)
        # jax's own, whose rounds are a loop: quicker to compile, and this happens seldom.
        key = jax.random.wrap_key_data(self.keys[GIBBS, :2], impl="threefry2x32")
        key = jax.random.fold_in(key, t)
        params = self.layout.shape(self.kernel.mid_drift(t, carry.state))
        hyper = self.gibbs.update(key, params, target)
        anchor = self.estimator.renew_anchor(target.with_hyper(hyper), carry.anchor)
        return self._informed(carry._replace(hyper=hyper, anchor=anchor))

    def follow(self, carry: LoopState) -> LoopState:
        """With the estimator's anchor of where the chain has come to."""
        position = self.layout.shape(self.kernel.position(carry.state))
        target = self.target.with_hyper(carry.hyper)
        return carry._replace(anchor=self.estimator.move_anchor(target, carry.anchor, position))

    def update_noise(self, t, carry: LoopState) -> LoopState:
        """With a new V̂ in the kernel after step t, from the rows that the next step will see."""
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
            self.estimator.examples(target, self.draw_gradients(t + 1, 1)),
            diagonal=fisher.diagonal,
            pull_back=kernel.pull_back,
        )
        noise = noise.with_estimate(estimate.astype(noise.mean.dtype), fisher.window)
        kernel, room = kernel.with_gradient_noise(t + 1, noise.mean, flat)
        return carry._replace(
            kernel=eqx.filter(kernel, eqx.is_array), noise=noise.judged(t + 1, *room)
        )

    def update_kernel(self, t, carry: LoopState) -> LoopState:
        """With kernel, state and what is remembered adapted after step t."""
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
            lambda: self.layout.shape(own.pull_back(self.look(t + 1, flat, carry).grad)),
        )
        kernel, state, adaptation = self.adapt.revise(moment, carry.adaptation)
        return carry._replace(
            kernel=eqx.filter(kernel, eqx.is_array),
            state=own.map_parameters(state, self.layout.flatten),
            adaptation=adaptation,
        )

    def _informed(self, carry: LoopState) -> LoopState:
        """With a state that knows the target as it is now, where gradients are exact."""
        if not isinstance(self.kernel, CachesEvaluation):
            return carry
        oracle = self._oracle([], carry)
        return carry._replace(state=self.kernel.with_cached_evaluation(carry.state, oracle))

    def _oracle(self, noise: PyTree, carry: LoopState) -> Oracle:
        target = self.target.with_hyper(carry.hyper)
        return self.layout.flatten_oracle(self.estimator.oracle(target, noise, carry.anchor))

    def _averaged(self, flat: PyTree, hyper: PyTree) -> dict[str, PyTree]:
        position = self.layout.shape(flat)
        return {
            name: returned_arrays(f"averages[{name!r}]", f, position, hyper)
            for name, f in self.averages.items()
        }


def returned_arrays(name: str, function: Callable, position: PyTree, hyper: PyTree) -> PyTree:
    """Call a user's function of the position, and of the hyperparameters where there are any."""
    returned = function(position) if hyper is None else function(position, hyper)
    return _as_arrays(returned, name)


def _as_arrays(returned: PyTree, name: str) -> PyTree:
    return jax.tree.map(lambda leaf: as_array(leaf, f"What {name} returns"), returned)
