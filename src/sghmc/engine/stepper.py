"""Stepper: steps of a chain in a loop of the user's own, one at a time."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, UInt32

from sghmc.core import tree
from sghmc.engine import checks, loop
from sghmc.engine.chain import NUM_STREAMS, RunSpec, chain_keys
from sghmc.engine.layout import Layout, LoopState
from sghmc.gradients import FullBatch, Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.target import Target
from sghmc.samplers import LazyRows, Sampler, fisher_of
from sghmc.types import PyTree


class StepperState(NamedTuple):
    """State of a chain between two steps: all that it needs to go on. A pytree of arrays."""

    t: Int32[Array, ""]
    keys: UInt32[Array, "1 stream 3"]
    carry: LoopState


class Draw(NamedTuple):
    """Position of a chain after a step, and what the step reports.

    `potential` is U as the step's gradient saw it; `acceptance` is None without an accept step.
    """

    position: PyTree
    hyper: PyTree
    potential: Float[Array, ""] | None
    acceptance: Float[Array, ""] | None


class Stepper(eqx.Module):
    """`init` and `step` of one chain, for a loop of your own.

    | argument | meaning |
    | --- | --- |
    | `target`, `sampler`, `gradient`, `gibbs` | as in `sample` |
    | `like` | parameters, whose shapes and dtypes a chain has; `ControlVariate` starts from them |
    | `num_steps` | how far schedules will be followed |

    `init(key, position)` begins a chain, `step(state)` moves it. Both are plain functions of
    arrays: compile them with `equinox.filter_jit`, scan them, map them over keys for several
    chains. The same key gives the same steps as `sample` without thinning.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> stepper = sghmc.Stepper(target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(2))
    >>> state = stepper.init(jax.random.key(0), jnp.zeros(2))
    >>> state, draw = stepper.step(state)
    >>> draw.position.shape
    (2,)
    """

    spec: RunSpec

    def __init__(
        self,
        target: Target,
        sampler: Sampler,
        like: PyTree,
        *,
        gradient: Gradient | None = None,
        gibbs: Gibbs | None = None,
        num_steps: int = 1,
    ):
        if not isinstance(sampler, Sampler):
            raise TypeError(f"Stepper needs a sampler such as sghmc.SGHMC(…), not {sampler!r}.")
        gradient = FullBatch() if gradient is None else gradient
        position = jax.tree.map(jnp.asarray, like)
        checks.check_functions(target, position)
        if gibbs is not None:
            checks.check_gibbs(gibbs, target, position)
        estimator = gradient.prepare(target, position)
        if target.source is not None and estimator.takes_rows:
            raise TypeError(
                "A Stepper takes data that are arrays, but these are read from a source while a "
                "run goes on: use sample, or give the rows as arrays."
            )
        kernel = sampler.prepare(position, num_steps)
        if isinstance(kernel, LazyRows):
            raise TypeError(
                f"Every step of a Stepper gives a draw, for which {sampler.name} would move all "
                f"parameters: give the sampler inside of it."
            )
        if fisher_of(kernel) is not None:
            checks.check_fisher(gradient, target)
        self.spec = RunSpec(
            target=target,
            kernel=kernel,
            estimator=estimator,
            gibbs=gibbs,
            adapt=None,
            keep=None,
            averages={},
            trace=None,
            keys=jnp.zeros((1, NUM_STREAMS, 3), jnp.uint32),  # each chain brings its own
            layout=Layout.of(position, 1),
            thinning=1,
            is_stacked=False,
        )

    def init(self, key: jax.Array, position: PyTree) -> StepperState:
        """Return a chain before its first step."""
        checks.check_key(key)
        keys = chain_keys(key, 1)
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], position)
        spec = dataclasses.replace(self.spec, keys=keys)
        begun = loop.initial_states(spec, one, 0, evaluates=False)
        return StepperState(jnp.zeros((), jnp.int32), keys, begun.carry)

    def step(self, state: StepperState) -> tuple[StepperState, Draw]:
        """Take a step, and make the updates due after it: Gibbs updates, V̂ and centers."""
        spec = dataclasses.replace(self.spec, keys=state.keys)

        def of_chain(chain: RunSpec, carry: LoopState) -> LoopState:
            moved, info = chain.step(state.t, chain.draw(state.t), carry)
            return carry._replace(state=moved, info=info)

        carry = loop.each_chain(spec, of_chain, state.carry.kernel, state.carry)
        carry = loop.make_updates(spec, state.t, carry, adapts=False)
        carry, record = loop.observe(spec, state.t, carry, jnp.asarray(True))
        draw = Draw(record.kept, record.hyper, record.info.potential, record.info.acceptance)
        return StepperState(state.t + 1, state.keys, carry), draw

    def is_finite(self, draw: Draw) -> jax.Array:
        """Tell whether all numbers of a draw are finite: a chain that diverged never comes back."""
        return tree.all_finite(draw)
