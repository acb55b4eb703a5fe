"""Starts for chains: each trains by itself, by Adam with a step that falls to nothing.

The mean comes first, with one noise for all rows: where the noise may depend on the input from the
beginning, it explains rows that the mean could learn (Seitzer et al. 2022).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.mlp.number_network import Kind, NumberNetwork, Table

_RATE = 0.005
_MEMORY, _SQUARE_MEMORY, _TINY = 0.9, 0.999, 1e-8
_FEW_STEPS = 300
"""With all rows: more make starts that are surer, and chains that see less of the posterior."""


def of_all_rows(
    network: NumberNetwork, position: np.ndarray, table: Table, kind: Kind
) -> jax.Array:
    """Few steps."""
    return _with_all(network, position, table, kind, _FEW_STEPS)


def of_batches(
    network: NumberNetwork,
    key: jax.Array,
    position: jax.Array | np.ndarray,
    table: Table,
    kind: Kind,
    num_steps: int,
    batch_size: int,
) -> jax.Array:
    """By random batches, the same for all chains."""
    return _with_batches(network, key, position, table, kind, num_steps, batch_size)


@functools.partial(jax.jit, static_argnames="network")
def _with_all(network: NumberNetwork, position, table: Table, kind: Kind, num_steps):
    grads = jax.vmap(jax.grad(network.potential), in_axes=(0, None, 0))
    total = jnp.sum(table.weight)
    return _adam(position, num_steps, lambda t, z: grads(z, table, kind) / total)


@functools.partial(jax.jit, static_argnames=("network", "batch_size"))
def _with_batches(network, key, position, table: Table, kind: Kind, num_steps, batch_size: int):
    grads = jax.vmap(jax.grad(network.log_likelihood), in_axes=(0, None, 0))
    num_rows, total = table.x.shape[1], jnp.sum(table.weight)

    def slope(t, z):
        rows = jax.random.randint(jax.random.fold_in(key, t), (batch_size,), 0, num_rows)
        batch = Table(table.x[:, rows], table.y[rows], table.weight[rows])
        return z / total - grads(z, batch, kind) * (num_rows / batch_size / total)

    return _adam(position, num_steps, slope)


def _adam(position, num_steps, slope):
    def step(t, carry):
        position, mean, square = carry
        grad = slope(t, position)
        mean = _MEMORY * mean + (1 - _MEMORY) * grad
        square = _SQUARE_MEMORY * square + (1 - _SQUARE_MEMORY) * grad**2
        speed = _RATE * 0.5 * (1 + jnp.cos(jnp.pi * t / num_steps))
        size = jnp.sqrt(square / (1 - _SQUARE_MEMORY ** (t + 1.0))) + _TINY
        return position - speed * mean / (1 - _MEMORY ** (t + 1.0)) / size, mean, square

    zeros = jnp.zeros_like(position)
    return jax.lax.fori_loop(0, num_steps, step, (position, zeros, zeros))[0]
