"""What a run computes, as a checkpoint knows it: hashes of programs that jax traced."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint.fingerprint import jaxpr_hash
from sghmc.engine.chain import Batches, DrawRecord, LoopState, RunSpec
from sghmc.engine.loop import each_chain
from sghmc.samplers import fisher_of
from sghmc.types import PyTree


def trace_run(program: RunSpec) -> str:
    """All that a run does to its chains: begin, step, keep, and what is due between steps."""
    # As on one device: a run may go on where parameters lie otherwise.
    layout = dataclasses.replace(program.layout, shardings=None)
    program = dataclasses.replace(program, layout=layout)
    positions = layout.chains_like

    def run(program: RunSpec, positions: PyTree, t) -> tuple[LoopState, DrawRecord]:
        flat = program.layout.to_loop(jax.vmap(program.layout.flatten)(positions))
        return each_chain(program, lambda chain, flat: _chain(chain, flat, t), None, flat)

    step = jax.ShapeDtypeStruct((), jnp.int32)
    return jaxpr_hash(run, with_batches(program), positions, step)


def _chain(chain: RunSpec, flat: PyTree, t) -> tuple[LoopState, DrawRecord]:
    carry = chain.initial_carry(flat, t)
    chain = chain if carry.kernel is None else chain.with_kernel(carry.kernel)
    state, info = chain.step(t, chain.draw(t), carry)
    carry = chain.settle(t, carry._replace(state=state, info=info))
    if chain.gibbs is not None:
        carry = chain.update_hyper(t, carry)
    if chain.estimator.renew_every is not None:
        carry = chain.follow(carry)
    if chain.adapt is not None:
        carry = chain.update_kernel(t, carry)
    if fisher_of(chain.kernel) is not None:
        carry = chain.update_noise(t, carry)
    return chain.observe(t, carry, True)


def with_batches(program: RunSpec) -> RunSpec:
    """The program with room for the rows of two steps, where these are read from a source."""
    source, estimator = program.target.source, program.estimator
    if source is None or not estimator.takes_rows:
        return program
    num_gradients, num_steps = program.kernel.num_gradients, 2
    numbers = jax.eval_shape(lambda key: estimator.draw(key, 0, 1, num_gradients, None), _key())
    places = jax.ShapeDtypeStruct((num_steps, *numbers.shape), jnp.int32)
    if not estimator.is_shared:
        places = jax.ShapeDtypeStruct((program.layout.num_chains, *places.shape), places.dtype)
    rows = source.like(int(np.prod(places.shape)))
    batches = Batches(rows, places, jax.ShapeDtypeStruct((), jnp.int32))  # pyright: ignore
    return dataclasses.replace(program, batches=batches)


def _key() -> jax.ShapeDtypeStruct:
    """One stream's key, by shape alone."""
    return jax.ShapeDtypeStruct((3,), jnp.uint32)
