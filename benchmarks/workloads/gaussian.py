"""W1: SGHMC on the 2-D Gaussian of Fig. 3, noisy gradients, every draw kept, some chains."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import sghmc
from workloads import native, peers
from workloads.options import Options
from workloads.timing import Bar, Program, Table, clocked, take_turns

ETA = ALPHA = 0.05
PRECISION = np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]])).astype(np.float32)
NUM_STEPS = 8_000_000
"""Of all chains together: half a second, of which a call of `sample` itself is some hundredths."""
NOISE_SCALE = (2 * ETA * (ALPHA - ETA / 2)) ** 0.5


def potential(theta):
    return 0.5 * theta @ jnp.asarray(PRECISION) @ theta


TARGET = sghmc.Potential(potential)
SAMPLER = sghmc.SGHMC.from_learning_rate(ETA, ALPHA, gradient_noise=1.0)


def tables(options: Options) -> list[Table]:
    counts = (1, 1_024, 131_072) if options.gpu else (1, 64, 1_024)
    return [table(options, num_chains) for num_chains in counts]


def table(options: Options, num_chains: int) -> Table:
    title = f"W1, {num_chains:,} chain{'s' * (num_chains > 1)}: a step of one chain"
    programs: dict[str, Program] = {"sghmc.sample": ours(num_chains, options)}
    if options.gpu:
        programs["jax by hand"] = by_hand(num_chains, 2_000)
        return Table(title, "ns", "jax by hand", take_turns(programs, options.repeats))
    if num_chains == 1:
        programs["the same, info=False"] = ours(num_chains, options, info=False)
    bare = native.compiled("gaussian.c", NUM_STEPS // num_chains, num_chains)
    if bare is not None:
        programs["bare C, one core"] = bare
    programs["jax by hand"] = by_hand(num_chains, options.scaled(100_000) // num_chains**0.5)
    programs["NumPy"] = numpy_loop(num_chains, options.scaled(20_000) // num_chains**0.5)
    others, notes = peers.started(
        options.peers,
        options.peers_folder,
        "gaussian",
        num_chains,
        options.scaled(2_000) // int(num_chains**0.5),
    )
    bars = [Bar("sghmc.sample", "bare C, one core", 3.5 if num_chains == 1 else 1.5)]
    bars = [] if num_chains == 64 else bars
    if num_chains == 1:
        bars += [Bar("the same, info=False", "bare C, one core", 2.5)]
        bars += [Bar("sghmc.sample", name, 0.1) for name in others]
    seconds = take_turns({**programs, **others}, options.repeats)
    peers.close(others)
    return Table(title, "ns", "bare C, one core", seconds, bars, notes)


def ours(num_chains: int, options: Options, *, info: bool = True) -> Program:
    num_steps = max(512, (100_000 if options.gpu else NUM_STEPS) // num_chains)

    def run():
        return sghmc.sample(
            jax.random.key(0),
            TARGET,
            SAMPLER,
            jnp.zeros(2),
            gradient=sghmc.NoisyGradient(1.0),
            num_samples=num_steps,
            num_chains=num_chains,
            info=info,
            progress=False,
        )

    return clocked(run, num_steps * num_chains)


def by_hand(num_chains: int, num_steps: float) -> Program:
    """What one writes first: a scan, a key split in every step, nothing recorded but the draws."""
    num_steps = int(num_steps)

    def chain(key):
        def step(carry, key):
            theta, velocity = carry
            of_gradient, of_noise = jax.random.split(key)
            grad = jax.grad(potential)(theta) + jax.random.normal(of_gradient, (2,))
            noise = NOISE_SCALE * jax.random.normal(of_noise, (2,))
            velocity = (1 - ALPHA) * velocity - ETA * grad + noise
            return (theta + velocity, velocity), theta + velocity

        start = (jnp.zeros(2), jnp.zeros(2))
        return lax.scan(step, start, jax.random.split(key, num_steps))[1]

    run = jax.jit(jax.vmap(chain))
    keys = jax.random.split(jax.random.key(0), num_chains)
    return clocked(lambda: run(keys).block_until_ready(), num_steps * num_chains)


def numpy_loop(num_chains: int, num_steps: float) -> Program:
    num_steps, rng = int(num_steps), np.random.default_rng(0)

    def run():
        theta, velocity = (
            np.zeros((2, num_chains), np.float32),
            np.zeros((2, num_chains), np.float32),
        )
        draws = np.empty((num_steps, 2, num_chains), np.float32)
        for t in range(num_steps):
            grad = PRECISION @ theta + rng.standard_normal(theta.shape, np.float32)
            noise = NOISE_SCALE * rng.standard_normal(theta.shape, np.float32)
            velocity = (1 - ALPHA) * velocity - ETA * grad + noise
            theta = theta + velocity
            draws[t] = theta

    return clocked(run, num_steps * num_chains)
