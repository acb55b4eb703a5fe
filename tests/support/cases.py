"""Every sampler and every gradient estimator, with one small posterior, for the contract tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sghmc
from sghmc.core import random
from sghmc.paper.literal import LiteralSGHMC
from sghmc.samplers import Kernel, Sampler
from sghmc.samplers.wrappers import SamplerWrapper

NUM_EXAMPLES = 12


def halving(start):
    """A schedule that halves in four steps."""
    return optax.exponential_decay(start, transition_steps=4, decay_rate=0.5)


def widening(position):
    """A metric for any parameters."""
    return jax.tree.map(lambda leaf: 1 + leaf**2, position)


class Elsewhere(SamplerWrapper):
    """`Whitened` with a center and a factor that fit any parameters."""

    sampler: Sampler

    def prepare(self, like, num_steps=1):
        center = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.4), like)
        return sghmc.Whitened(self.sampler, center, factor=0.7).prepare(like, num_steps)


SAMPLERS = {
    "hmc": sghmc.HMC(0.1, 3, mass=1.7, jitter=0.2),
    "hmc without accept step": sghmc.HMC(halving(0.1), 2, metropolis=False),
    "sghmc": sghmc.SGHMC(0.1, 2.0, mass=1.7, gradient_noise=0.3, temperature=0.8),
    "sghmc schedules": sghmc.SGHMC(halving(0.1), halving(2.0), temperature=halving(1.0)),
    "sghmc learning rate": sghmc.SGHMC.from_learning_rate(0.01, 0.1, gradient_noise=0.3),
    "sghmc resampling": sghmc.SGHMC(0.1, 2.0, resample_every=2),
    "sghmc literal resampling": LiteralSGHMC(0.1, 2.0, resample_every=2),
    "baoab": sghmc.BAOAB(0.1, 2.0, mass=1.7, gradient_noise=0.3, temperature=0.8),
    "sgnht": sghmc.SGNHT(0.1, 2.0, 1.7, temperature=0.8, thermostat="diagonal"),
    "sgrhmc": sghmc.SGRHMC(halving(0.1), widening, friction=2.0, temperature=0.8),
    "sgld": sghmc.SGLD(0.01, preconditioner=1.7, gradient_noise=0.3, temperature=0.8),
    "psgld": sghmc.PSGLD(halving(0.02), decay=0.8, temperature=0.8),
    "sgd": sghmc.SGD(0.01),
    "momentum": sghmc.Momentum(0.01, 0.1),
    "whitened sghmc": Elsewhere(sghmc.SGHMC(0.1, 2.0, mass=1.7, gradient_noise=0.3)),
    "replicas of sghmc": sghmc.ReplicaExchange(
        sghmc.SGHMC(0.1, 2.0, mass=1.7, gradient_noise=0.3), [0.8, 4.0], every=3
    ),
    "whitened hmc": Elsewhere(sghmc.HMC(0.1, 3, mass=1.7, metropolis=False)),
    "obabo": sghmc.OBABO(halving(0.1), 2.0, mass=1.7, gradient_noise=0.3, temperature=0.8),
    "cycles of sghmc": sghmc.Cyclical(sghmc.SGHMC(0.2, 2.0, mass=1.7), cycle_length=4),
    "hmc with austerity": sghmc.HMC(0.1, 3, mass=1.7, metropolis=sghmc.Austerity(0.1, 10)),
    "ubu": sghmc.UBU(0.1, 2.0, mass=1.7, temperature=0.8),
    "mchmc": sghmc.MCHMC(0.4, 3, jitter=0.2),
    "mchmc without accept step": sghmc.MCHMC(halving(0.4), 2, metropolis=False, decoherence=2.0),
}
SLOW_SAMPLERS = (
    "obabo",
    "cycles of sghmc",
    "hmc with austerity",
    "hmc without accept step",
    "sghmc learning rate",
    "sghmc resampling",
    "sghmc literal resampling",
    "momentum",
    "replicas of sghmc",
    "whitened hmc",
    "mchmc without accept step",
)
"""Whose steps are those of others, or have tests of their own: their contract tests are slow."""
RANDOM_SAMPLERS = {n: s for n, s in SAMPLERS.items() if not n.startswith(("sgd", "momentum"))}


def params(dtype=jnp.float32, low=jnp.bfloat16):
    """A start for `posterior`; one leaf has low precision."""
    rng = np.random.default_rng(4)
    return {
        "bias": jnp.asarray(0.3, dtype),
        "layers": (
            jnp.asarray(rng.normal(size=(3, 2)), low),
            jnp.asarray(rng.normal(size=2), dtype),
        ),
    }


GRADIENTS = {
    "full": sghmc.FullBatch(),
    "minibatch": sghmc.Minibatch(3),
    "minibatch without replacement": sghmc.Minibatch(3, replacement=False),
    "epochs": sghmc.Minibatch(3, replacement="epochs"),
    "noisy": sghmc.NoisyGradient(0.5),
    "palindrome": sghmc.Minibatch(3, replacement="palindrome"),
    "control variate": sghmc.ControlVariate(3, center=jax.tree.map(jnp.zeros_like, params())),
}


def pairs():
    """Names of all combinations of sampler and gradient that are allowed."""
    return [
        (sampler, gradient)
        for sampler in SAMPLERS
        for gradient in GRADIENTS
        if GRADIENTS[gradient].is_independent or not SAMPLERS[sampler].subtracts_gradient_noise
    ]


def posterior(dtype=jnp.float32):
    """A regression on parameters that are nested, of many shapes, a scalar among them."""
    rng = np.random.default_rng(3)
    data = {
        "x": jnp.asarray(rng.normal(size=(NUM_EXAMPLES, 3)), dtype),
        "y": jnp.asarray(rng.normal(size=NUM_EXAMPLES), dtype),
    }

    def log_likelihood(params, row):
        hidden = jnp.tanh(row["x"] @ params["layers"][0].astype(dtype))
        mean = jnp.dot(hidden, params["layers"][1]) + params["bias"]
        return -0.5 * (row["y"] - mean) ** 2

    def log_prior(params):
        return -0.5 * sum(jnp.sum(leaf.astype(dtype) ** 2) for leaf in jax.tree.leaves(params))

    return sghmc.Posterior(log_likelihood, log_prior, data)


class Chain:
    """One chain of a sampler, step by step in Python, from the same parts as the compiled loop."""

    def __init__(self, key, target, sampler, gradient, position, num_steps=8):
        self.target, self.like = target, position
        self.kernel: Kernel = sampler.prepare(position, num_steps)
        self.estimator = gradient.prepare(target, position)
        self.anchor = self.estimator.init_anchor(target)
        self.keys = random.words(jax.random.split(key, 3))

    @functools.cached_property
    def state(self):
        with jax.ensure_compile_time_eval():  # a test may ask first inside a compiled function
            return jax.jit(self.start)(self.keys[0])

    def start(self, key):
        return self.kernel.init(random.normals_like(key, 0, 1, self.like), self.like)

    def noise(self, t):
        gradients = self.kernel.num_gradients
        return (
            self.kernel.draw(self.keys[1], t, 1, self.like),
            self.estimator.draw(self.keys[2], t, 1, gradients, self.like),
        )

    def step(self, t, noise, state):
        oracle = self.estimator.oracle(self.target, noise[1], self.anchor)
        return self.kernel.step(t, noise[0], state, oracle)
