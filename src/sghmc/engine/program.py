"""What a run does to one chain: start, draw variates, step, look, keep. No loops, no chain axis."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.adapt import Adaptation
from sghmc.adapt.base import Moment
from sghmc.core import random, running_sum, tree
from sghmc.engine.layout import Layout
from sghmc.gradients.base import Estimator, Oracle
from sghmc.gradients.fisher import RunningNoise, gradient_noise, no_noise
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior, Target
from sghmc.samplers.base import Kernel
from sghmc.types import Evaluation, PyTree, StepInfo

NEVER = np.iinfo(np.int32).max
MOTION, GRADIENT, GIBBS, START = range(4)
"""The streams of random numbers of a chain: each has a key of its own."""
NUM_STREAMS = 4


class Carry(NamedTuple):
    """All that a run needs to go on, for every chain.

    `kernel` only where it changes, `noise` only where V̂ is estimated, `adaptation`, what it
    remembers, only where there is one.
    """

    kernel: Kernel | None
    state: Any
    hyper: PyTree
    memory: PyTree
    noise: RunningNoise | None
    sums: running_sum.RunningSum | None
    info: StepInfo
    failed_at: jax.Array
    adaptation: PyTree = None


class DrawInfo(NamedTuple):
    """What is recorded with each kept draw: without `info`, whether it is finite, no more."""

    potential: jax.Array | None
    kinetic_temperature: jax.Array | None
    acceptance: jax.Array | None
    data_share: jax.Array | None
    is_finite: jax.Array


class Record(NamedTuple):
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
    places: jax.Array
    first: jax.Array

    def of_steps(self, start, num_steps: int) -> PyTree:
        """The rows of some steps, step after step, as one chain sees them."""
        places = lax.dynamic_slice_in_dim(self.places, start - self.first, num_steps).reshape(-1)
        return jax.tree.map(lambda leaf: leaf.at[places].get(mode="promise_in_bounds"), self.rows)


class Program(eqx.Module):
    """The fixed parts of a run: its arrays are arguments of the compiled loop, the rest static.

    With `is_stacked`, arrays of the target and of the estimator have a leading chain axis. Where
    the data are a source, `batches` has the rows of some steps, put in by the host. What the
    loop does to a single chain is a method here, and sees that chain's own parts: `_each_chain`.
    """

    target: Target
    kernel: Kernel
    estimator: Estimator
    gibbs: Gibbs | None
    adapt: Adaptation | None
    keep: Callable | None
    averages: dict[str, Callable]
    trace: Callable | None
    keys: jax.Array
    layout: Layout = eqx.field(static=True)
    thinning: int = eqx.field(static=True)
    is_stacked: bool = eqx.field(static=True)
    batches: Batches | None = None
    has_info: bool = eqx.field(static=True, default=True)

    def start(self, keys: jax.Array, flat: PyTree) -> Carry:
        """The carry before step 0, from a position."""
        hyper = getattr(self.target, "hyper", None)
        state = self.kernel.init(random.normals_like(keys[START], 0, 1, flat), flat)
        kernel, adaptation = None, None
        if self.adapt is not None:
            kernel = eqx.filter(self.kernel.adaptable(state), eqx.is_array)
            adaptation = self.adapt.begin(self.kernel, self.layout.shape(flat))
        memory, noise = self.estimator.remember(self.target), None
        if self.kernel.fisher is not None:
            dtype = tree.float_type(flat)
            noise = no_noise(tree.size(flat), self.kernel.fisher, dtype, NEVER)
            chain = self if kernel is None else self.with_kernel(kernel)
            kernel, noise = chain.update_noise(-1, keys, state, hyper, memory, noise)
        _, info = jax.eval_shape(lambda: self.step(0, self.draw(keys, 0, 1), state, hyper, memory))
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        terms = jax.eval_shape(lambda: self._averaged(flat, hyper))
        sums = running_sum.start_sum(terms) if self.averages else None
        never = jnp.asarray(NEVER, jnp.int32)
        return Carry(kernel, state, hyper, memory, noise, sums, info, never, adaptation)

    def with_kernel(self, arrays: Kernel) -> "Program":
        """This program with a chain's own kernel, of which the carry has the arrays."""
        return eqx.tree_at(lambda p: p.kernel, self, eqx.combine(arrays, self.kernel))

    def look(self, t, keys: jax.Array, flat: PyTree, hyper: PyTree, memory: PyTree) -> Evaluation:
        """What the first gradient evaluation of step t sees."""
        shapes = jax.eval_shape(lambda: self.draw_gradients(keys, t, 1))
        # In a branch, though it is always taken: XLA for CPUs would compile the generator again for
        # every array that rows are taken from.
        noise = lax.cond(
            jnp.asarray(t) >= 0,
            lambda: self.draw_gradients(keys, t, 1),
            lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
        )
        return self._oracle(hyper, noise, memory)(0, flat)

    def draw(self, keys: jax.Array, start, num_steps: int) -> tuple[PyTree, PyTree]:
        """The raw variates of `num_steps` steps, for the sampler and for its gradients."""
        return (
            self.draw_motion(keys, start, num_steps),
            self.draw_gradients(keys, start, num_steps),
        )

    def draw_motion(self, keys: jax.Array, start, num_steps: int) -> PyTree:
        return self.kernel.draw(keys[MOTION], start, num_steps, self.layout.flat_like)

    def draw_gradients(self, keys: jax.Array, start, num_steps: int) -> PyTree:
        if self.batches is not None:
            return self.batches.of_steps(start, num_steps)
        num_gradients = self.kernel.num_gradients
        like = self.layout.flat_like
        return self.estimator.draw(keys[GRADIENT], start, num_steps, num_gradients, like)

    def step(
        self, t, noise: tuple[PyTree, PyTree], state: Any, hyper: PyTree, memory: PyTree
    ) -> tuple[Any, StepInfo]:
        """Step t, from that step's variates."""
        oracle = self._oracle(hyper, noise[1], memory)
        state, info = self.kernel.step(t, noise[0], state, oracle)
        # What nobody asks for is not computed: the compiler sees to it.
        return state, info if self.has_info else info._replace(potential=None)

    def observe(self, t, carry: Carry) -> tuple[Carry, Record]:
        """What is kept after step t, and the averages with that draw in them."""
        flat = self.kernel.observed(t, carry.state)
        is_finite = (carry.failed_at > t) & tree.all_finite((flat, carry.hyper))
        kept = self._shown(self.keep or (lambda position, *hyper: position), flat, carry.hyper)
        info = DrawInfo(None, None, None, None, is_finite)
        if self.has_info:
            heat = self.kernel.kinetic_temperature(t, carry.state)
            potential, acceptance, data_share = carry.info
            info = DrawInfo(potential, heat, acceptance, data_share, is_finite)
        if carry.sums is not None:
            terms = self._averaged(flat, carry.hyper)
            carry = carry._replace(sums=running_sum.add(carry.sums, terms, is_finite))
        trace = None
        if self.trace is not None and carry.sums is not None:
            trace = self.trace(running_sum.mean(carry.sums))
        return carry, Record(kept, carry.hyper, trace, info)

    def update_hyper(
        self, t, keys: jax.Array, state: Any, hyper: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree]:
        """New hyperparameters, and the estimator's memory under them."""
        assert self.gibbs is not None
        # jax's own, whose rounds are a loop: quicker to compile, and this happens seldom.
        key = jax.random.wrap_key_data(keys[GIBBS, :2], impl="threefry2x32")
        key = jax.random.fold_in(key, t)
        params = self.layout.shape(self.kernel.middle(t, state))
        hyper = self.gibbs.update(key, params, self._target(hyper))
        return hyper, self.estimator.renew(self._target(hyper), memory)

    def follow(self, state: Any, hyper: PyTree, memory: PyTree) -> PyTree:
        """The estimator's memory, once the chain has moved on."""
        position = self.layout.shape(self.kernel.position(state))
        return self.estimator.follow(self._target(hyper), memory, position)

    def update_noise(
        self, t, keys: jax.Array, state: Any, hyper: PyTree, memory: PyTree, noise: RunningNoise
    ) -> tuple[Kernel, RunningNoise]:
        """The kernel with a new V̂ after step t, from the rows that the next step will see."""
        fisher, flat = self.kernel.fisher, self.kernel.position(state)
        assert fisher is not None
        target = self._target(hyper)
        estimate = gradient_noise(
            self.estimator,
            target,
            memory,
            self.layout.shape(flat),
            self.estimator.examples(target, self.draw_gradients(keys, t + 1, 1)),
            diagonal=fisher.diagonal,
            pull_back=self.kernel.pull_back,
        )
        noise = noise.with_estimate(estimate.astype(noise.mean.dtype), fisher.window)
        kernel, room = self.kernel.with_gradient_noise(t + 1, noise.mean, flat)
        return eqx.filter(kernel, eqx.is_array), noise.judged(t + 1, *room)

    def update_kernel(self, t, keys: jax.Array, carry: Carry) -> tuple[Kernel, Any, PyTree]:
        """The kernel, the state and what is remembered, adapted after step t."""
        assert self.adapt is not None
        flat, hyper = self.kernel.position(carry.state), carry.hyper
        moment = Moment(
            t,
            self.kernel,
            type(carry.state)(*(self.layout.shape(part) for part in carry.state)),
            hyper,
            carry.info.acceptance,
            # Rows of the next step: fresh, as the chain has not seen them.
            lambda: self.layout.shape(self.look(t + 1, keys, flat, hyper, carry.memory).grad),
        )
        kernel, state, adaptation = self.adapt.revise(moment, carry.adaptation)
        return eqx.filter(kernel, eqx.is_array), tree.flatten_leaves(state), adaptation

    def _target(self, hyper: PyTree) -> Any:
        """The target under these hyperparameters."""
        target = self.target
        return target.with_hyper(hyper) if isinstance(target, Posterior) else target

    def _oracle(self, hyper: PyTree, noise: PyTree, memory: PyTree) -> Oracle:
        oracle = self.estimator.oracle(self._target(hyper), noise, memory)
        return self.layout.flatten_oracle(oracle)

    def _averaged(self, flat: PyTree, hyper: PyTree) -> dict[str, PyTree]:
        return {name: self._shown(f, flat, hyper) for name, f in self.averages.items()}

    def _shown(self, function: Callable, flat: PyTree, hyper: PyTree) -> PyTree:
        """A user's function of the position, and of the hyperparameters where there are any."""
        position = self.layout.shape(flat)
        return function(position) if hyper is None else function(position, hyper)
