"""A run for processes that are killed: the same in every process that imports this."""

import jax
import jax.numpy as jnp
import numpy as np

import sghmc

NUM_SAMPLES, EVERY = 600, 20
DATA = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def log_likelihood(theta, x, hyper):
    return -0.5 * hyper * jnp.sum((x - theta) ** 2)


def log_prior(theta, hyper):
    return -0.5 * jnp.sum(theta**2) - hyper


def update(key, theta, posterior):
    return jax.random.uniform(key) + 0.1 * jnp.tanh(jnp.sum(theta))


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, DATA, hyper=1.0)
GIBBS = sghmc.Gibbs(update, every=3)


def go(path=None, num_samples=NUM_SAMPLES, every=EVERY):
    """The run; with a path, saved there."""
    return sghmc.sample(
        jax.random.key(1),
        POSTERIOR,
        sghmc.SGHMC(0.05, 1.0),
        jnp.zeros(3),
        gradient=sghmc.Minibatch(5),
        num_samples=num_samples,
        num_chains=2,
        gibbs=GIBBS,
        averages={"square": square},
        progress=False,
        checkpoint=None if path is None else sghmc.Checkpoint(path, every=every),
    )


def square(theta, hyper):
    return hyper * theta**2
