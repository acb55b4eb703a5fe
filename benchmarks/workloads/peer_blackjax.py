"""BlackJAX's SGHMC, with the momentum carried on, as a user would loop over it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.sgmcmc import diffusions
from jax import lax

from workloads import images
from workloads.peers import answer
from workloads.timing import Program, clocked

PRECISION = jnp.asarray(np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]])), jnp.float32)
STEP_SIZE, FRICTION = 0.02, 1.0
"""Its integrator diverges at the step of the other programs; a step costs the same at any size."""


def gaussian(num_chains: int, num_steps: int) -> Program:
    move = diffusions.sghmc(FRICTION, 0.0)
    num_steps *= 10  # as many as are asked for take it a few milliseconds

    def chain(key):
        def step(carry, key):
            of_gradient, of_noise = jax.random.split(key)
            grad = -PRECISION @ carry[0] + jax.random.normal(of_gradient, (2,))
            carry = move(of_noise, *carry, grad, STEP_SIZE)
            return carry, carry[0]

        keys = jax.random.split(key, num_steps)
        return lax.scan(step, (jnp.zeros(2), jnp.zeros(2)), keys)[1]

    run = jax.jit(jax.vmap(chain) if num_chains > 1 else chain)
    keys = jax.random.split(jax.random.key(0), num_chains)
    return clocked(
        lambda: run(keys if num_chains > 1 else keys[0]).block_until_ready(),
        num_steps * num_chains,
    )


def network(num_steps: int) -> Program:
    x, y = (jnp.asarray(part) for part in images.make())
    move = diffusions.sghmc(images.MOMENTUM_DECAY / images.LEARNING_RATE**0.5, 0.0)
    sizes = (images.NUM_INPUTS, images.NUM_HIDDEN), (images.NUM_HIDDEN, images.NUM_CLASSES)
    start = [(0.01 * jax.random.normal(jax.random.key(1), s), jnp.zeros(s[1])) for s in sizes]

    def log_density(params, x, y):
        (a, b), (c, d) = params
        scores = jax.nn.log_softmax(jax.nn.sigmoid(x @ a + b) @ c + d)
        fit = images.NUM_ROWS * jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))
        return fit - 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    @jax.jit
    def run(params, key, x, y):
        def step(carry, key):
            of_batch, of_noise = jax.random.split(key)
            rows = jax.random.randint(of_batch, (images.BATCH,), 0, images.NUM_ROWS)
            grad = jax.grad(log_density)(carry[0], x[rows], y[rows])
            return move(of_noise, *carry, grad, images.LEARNING_RATE**0.5), None

        still = jax.tree.map(jnp.zeros_like, params)
        return lax.scan(step, (params, still), jax.random.split(key, num_steps))[0]

    return clocked(lambda: jax.block_until_ready(run(start, jax.random.key(2), x, y)), num_steps)


if __name__ == "__main__":
    workload, *numbers = sys.argv[1:]
    answer({"gaussian": gaussian, "network": network}[workload](*map(int, numbers)))
