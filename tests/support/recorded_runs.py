"""Runs whose draws are recorded bit for bit: every sampler and gradient, Gibbs, adaptation, chains.

`python tests/recorded_runs.py` writes the checksums for this kind of machine. Do that only where a
change is meant to change draws, and say so in the commit.
"""

import hashlib
import json
import pathlib
import platform
import re

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from cases import GRADIENTS, SAMPLERS, params, posterior

PATH = pathlib.Path(__file__).with_name("recorded_runs.json")
KEY = jax.random.key(11)
RNG_ROWS = np.random.default_rng(5).normal(size=(40, 3)).astype(np.float32)


def machine() -> str:
    """What decides the bits of a run: the processor's instructions, and the compiler."""
    try:
        flags = re.findall(r"^flags\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        flags = []
    vectors = sorted({flag for flag in " ".join(flags).split() if flag.startswith(("avx", "fma"))})
    digest = hashlib.sha256(" ".join(vectors).encode()).hexdigest()[:12]
    kind = f"{platform.machine()} {digest} {jax.default_backend()} {jax.device_count()}"
    return f"{kind} jax {jax.__version__}"


def checksum(tree) -> str:
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def sample(target, sampler, init, **options):
    options = {"num_samples": 6, "thinning": 2, "num_chains": 3, "progress": False} | options
    return sghmc.sample(KEY, target, sampler, init, **options)


def by_name() -> dict:
    """Name → function that makes what is recorded."""
    gradients = [name for name in GRADIENTS if name != "palindrome"]
    runs = {}
    for i, (name, sampler) in enumerate(SAMPLERS.items()):
        allowed = [
            g
            for g in gradients
            if GRADIENTS[g].is_independent or not sampler.subtracts_gradient_noise
        ]
        gradient = allowed[i % len(allowed)]

        def one(sampler=sampler, gradient=gradient):
            samples = sample(
                posterior(), sampler, params(low=jnp.float32), gradient=GRADIENTS[gradient]
            )
            return samples.positions, vars(samples.info)

        runs[f"{name}, {gradient}"] = one
    return runs | {
        "one chain": lambda: gaussian(num_chains=1),
        "many chains, last axis": lambda: gaussian(num_chains=64),
        "wide model, first axis": wide,
        "gibbs": gibbs,
        "fisher": lambda: estimated_noise(diagonal=True),
        "dense fisher": lambda: estimated_noise(diagonal=False),
        "adapt mass": lambda: adapted(sghmc.AdaptMass(until=120)),
        "adapt scale": lambda: adapted(sghmc.AdaptScale(until=120)),
        "adapt hmc": adapted_hmc,
        "renewed control variate": renewed_control_variate,
        "stacked posteriors": stacked,
        "palindromes": lambda: regression(sghmc.Minibatch(7, "palindrome"), sghmc.UBU(0.05, 2.0)),
        "shared batches": lambda: regression(sghmc.Minibatch(5, shared=True)),
        "dense matrices": dense,
    }


def gaussian(num_chains):
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2 + 0.1 * jnp.sum(theta) ** 4)
    samples = sample(
        target,
        sghmc.SGHMC(0.1, 1.3),
        jnp.array([0.5, -1.0]),
        num_chains=num_chains,
        averages={"square": lambda theta: theta**2},
    )
    return samples.positions, samples.averages, vars(samples.info)


def log_likelihood(weights, row):
    return -0.5 * (row[2] - row[:2] @ weights) ** 2


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


def regression_posterior(rows=RNG_ROWS):
    return sghmc.Posterior(log_likelihood, log_prior, rows)


def regression(gradient, sampler=None, **options):
    sampler = sampler or sghmc.SGHMC(0.05, 2.0)
    samples = sample(regression_posterior(), sampler, jnp.zeros(2), gradient=gradient, **options)
    return samples.positions, vars(samples.info)


def wide():
    def network(weights, row):
        return -0.5 * (row[2] - jnp.mean(jnp.tanh(row[:2] @ weights))) ** 2

    target = sghmc.Posterior(network, log_prior, RNG_ROWS)
    init = jnp.asarray(np.random.default_rng(6).normal(size=(2, 200)), jnp.float32)
    samples = sample(target, sghmc.SGHMC(0.01, 2.0), init, gradient=sghmc.Minibatch(7))
    return samples.positions, vars(samples.info)


def gibbs():
    prior = sghmc.GaussianPrior(2.0, 1.0)

    def near(theta, row, hyper):
        return -0.5 * jnp.sum((row - theta) ** 2)

    target = sghmc.Posterior(near, prior.log_density, RNG_ROWS, prior.start(jnp.zeros(3)))
    samples = sample(
        target,
        sghmc.SGHMC(0.05, 1.0),
        jnp.zeros(3),
        gradient=sghmc.ControlVariate(5, center=jnp.zeros(3)),
        gibbs=prior.gibbs(3),
    )
    return samples.positions, samples.hyper


def estimated_noise(*, diagonal):
    sampler = sghmc.SGHMC(
        0.02, 20.0, gradient_noise=sghmc.EmpiricalFisher(diagonal=diagonal, every=3)
    )
    return regression(sghmc.Minibatch(20), sampler)


def adapted(adapt):
    return regression(sghmc.Minibatch(10), num_burnin=60, adapt=adapt)


def adapted_hmc():
    return regression(
        sghmc.FullBatch(),
        sghmc.HMC(0.02, 3),
        num_burnin=40,
        adapt=sghmc.AdaptHMC(until=80),
    )


def renewed_control_variate():
    gradient = sghmc.ControlVariate(5, center=jnp.zeros(2), renew_every=4)
    return regression(gradient)


def stacked():
    target = sghmc.Posterior.stack([regression_posterior(RNG_ROWS[i:]) for i in range(3)])
    samples = sample(target, sghmc.SGLD(0.01), jnp.zeros(2), posterior_axis=0)
    return samples.positions, vars(samples.info)


def dense():
    matrix = np.array([[1.5, 0.4], [0.4, 0.8]])
    sampler = sghmc.SGHMC(0.1, 2 * matrix, mass=matrix, gradient_noise=0.5 * matrix)
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    samples = sample(target, sampler, jnp.zeros(2), gradient=sghmc.NoisyGradient(0.5 * matrix))
    return samples.positions, vars(samples.info)


if __name__ == "__main__":
    recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
    recorded[machine()] = {name: checksum(run()) for name, run in by_name().items()}
    PATH.write_text(json.dumps(recorded, indent=1) + "\n")
