"""What a run does to one chain: start, draw variates, step, look, keep. No loops, no chain axis."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc import keep, random, tree
from sghmc.adapt import Adapt
from sghmc.gibbs import Gibbs
from sghmc.gradients import Estimator, Oracle
from sghmc.layout import Layout
from sghmc.posterior import Posterior, Target
from sghmc.samplers.base import Kernel
from sghmc.types import Evaluation, PyTree, StepInfo

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

    def look(self, t, keys: jax.Array, flat: PyTree, hyper: PyTree) -> Evaluation:
        """What the first gradient evaluation of step t sees."""
        noise = self.draw_gradients(keys, t, 1)
        return self._oracle(_with_hyper(self.target, hyper), noise)(0, flat)

    def draw(self, keys: jax.Array, start, num_steps: int) -> tuple[PyTree, PyTree]:
        """The raw variates of `num_steps` steps, for the sampler and for its gradients."""
        return (
            self.kernel.draw(keys[MOTION], start, num_steps, self.layout.flat_like),
            self.draw_gradients(keys, start, num_steps),
        )

    def draw_gradients(self, keys: jax.Array, start, num_steps: int) -> PyTree:
        num_gradients = self.kernel.num_gradients
        like = self.layout.flat_like
        return self.estimator.draw(keys[GRADIENT], start, num_steps, num_gradients, like)

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


def _with_hyper(target: Target, hyper: PyTree) -> Any:
    return target.with_hyper(hyper) if isinstance(target, Posterior) else target
