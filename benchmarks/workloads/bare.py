"""The step that `sghmc.sample` makes, in a loop with nothing around it."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import sghmc
from sghmc.core import runtime
from sghmc.engine.chain import NUM_STREAMS, RunSpec
from sghmc.engine.layout import Layout
from sghmc.samplers import Sampler
from workloads import timing


def jitted(function: Callable, *, as_ours: bool = True) -> Callable:
    """Data are arguments of what is compiled, functions are not; `as_ours`: with our options."""
    return eqx.filter_jit(function, **(runtime.jit_options("loop") if as_ours else {}))


def scans(
    posterior: sghmc.Posterior,
    sampler: Sampler,
    rates: tuple[float, float],
    gradient: sghmc.Minibatch,
    start,
    num_steps: int,
) -> dict[str, timing.Program]:
    """Our step, and what it is made of: less the noise, less the momentum."""
    parts = {
        "bare scan of our step": sampler,
        "the same without noise": sghmc.Momentum(*rates),
        "the same without momentum": sghmc.SGD(rates[0]),
    }
    return {name: scan(posterior, part, gradient, start, num_steps) for name, part in parts.items()}


def scan(
    posterior: sghmc.Posterior,
    sampler: Sampler,
    gradient: sghmc.Minibatch,
    start,
    num_steps: int,
) -> timing.Program:
    program = RunSpec(
        target=posterior,
        kernel=sampler.prepare(start),
        estimator=gradient.prepare(posterior, start),
        gibbs=None,
        adapt=None,
        keep=None,
        averages={},
        trace=None,
        keys=jax.random.bits(jax.random.key(0), (1, NUM_STREAMS, 2), jnp.uint32),
        layout=Layout.of(start, 1),
        thinning=1,
        is_stacked=False,
    )

    @jitted
    def run(program, carry):
        def step(state, t):
            chain = dataclasses.replace(program, keys=program.keys[0])
            return chain.step(t, chain.draw(t), carry._replace(state=state))[0], None

        return lax.scan(step, carry.state, jnp.arange(num_steps))[0]

    carry = dataclasses.replace(program, keys=program.keys[0]).initial_state(
        jax.tree.map(jnp.ravel, start), 0
    )
    return timing.clocked(lambda: jax.block_until_ready(run(program, carry)), num_steps)
