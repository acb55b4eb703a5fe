"""Hash of a run's traced program, by which a checkpoint recognizes what the run computes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint.fingerprint import jaxpr_hash
from sghmc.engine.chain import RunSpec
from sghmc.engine.layout import Batches, DrawRecord, LoopState
from sghmc.engine.loop import each_chain
from sghmc.samplers import fisher_of
from sghmc.types import PyTree


def trace_run(spec: RunSpec) -> str:
    """Hash all that a run does to its chains: begin, step, record, and updates between steps."""
    # As on one device: a run may go on where parameters lie otherwise.
    layout = dataclasses.replace(spec.layout, shardings=None)
    spec = dataclasses.replace(spec, layout=layout)
    positions = layout.chains_like

    def run(spec: RunSpec, positions: PyTree, t) -> tuple[LoopState, DrawRecord]:
        flat = spec.layout.to_loop(jax.vmap(spec.layout.flatten)(positions))
        return each_chain(spec, lambda chain, flat: _chain(chain, flat, t), None, flat)

    step = jax.ShapeDtypeStruct((), jnp.int32)
    return jaxpr_hash(run, with_batches(spec), positions, step)


def _chain(chain: RunSpec, flat: PyTree, t) -> tuple[LoopState, DrawRecord]:
    carry = chain.initial_state(flat, t)
    chain = chain if carry.kernel is None else chain.with_kernel(carry.kernel)
    state, info = chain.step(t, chain.draw(t), carry)
    carry = chain.flush(t, carry._replace(state=state, info=info))
    if chain.gibbs is not None:
        carry = chain.update_hyper(t, carry)
    if chain.estimator.renew_every is not None:
        carry = chain.move_anchor(carry)
    if chain.adapt is not None:
        carry = chain.update_kernel(t, carry)
    if fisher_of(chain.kernel) is not None:
        carry = chain.update_noise(t, carry)
    return chain.observe(t, carry, True)


def with_batches(spec: RunSpec) -> RunSpec:
    """Return the run with room for the rows of two steps, where these are read from a source."""
    source, estimator = spec.target.source, spec.estimator
    if source is None or not estimator.takes_rows:
        return spec
    num_gradients, num_steps = spec.kernel.num_gradients, 2
    numbers = jax.eval_shape(lambda key: estimator.draw(key, 0, 1, num_gradients, None), _key())
    places = jax.ShapeDtypeStruct((num_steps, *numbers.shape), jnp.int32)
    if not estimator.is_shared:
        places = jax.ShapeDtypeStruct((spec.layout.num_chains, *places.shape), places.dtype)
    rows = source.like(int(np.prod(places.shape)))
    batches = Batches(rows, places, jax.ShapeDtypeStruct((), jnp.int32))  # pyright: ignore
    return dataclasses.replace(spec, batches=batches)


def _key() -> jax.ShapeDtypeStruct:
    """Return one stream's key, by shape alone."""
    return jax.ShapeDtypeStruct((3,), jnp.uint32)
