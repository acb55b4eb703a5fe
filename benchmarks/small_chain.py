"""Steps a second on Fig. 3's 2-D Gaussian, one chain, every draw kept with its diagnostics.

    python benchmarks/small_chain.py

Side by side in one run, repeated in turn: `sghmc.sample`, and the loop that one would write by hand
in jax (lax.scan, a key split in every step, nothing recorded but the draws).
"""

import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import sghmc

NUM_STEPS = 2_000_000
NUM_STEPS_BY_HAND = 100_000
NUM_REPEATS = 5
ETA = ALPHA = 0.05
PRECISION = np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]])).astype(np.float32)


def potential(theta):
    return 0.5 * theta @ jnp.asarray(PRECISION) @ theta


TARGET = sghmc.Potential(potential)
SAMPLER = sghmc.SGHMC.from_learning_rate(ETA, ALPHA, gradient_noise=1.0)


def ours(seed: int) -> float:
    start = time.perf_counter()
    sghmc.sample(
        jax.random.key(seed),
        TARGET,
        SAMPLER,
        jnp.zeros(2),
        gradient=sghmc.NoisyGradient(1.0),
        num_samples=NUM_STEPS,
        progress=False,
    )
    return NUM_STEPS / (time.perf_counter() - start)


@jax.jit
def by_hand_loop(key):
    def step(carry, key):
        theta, velocity = carry
        of_gradient, of_noise = jax.random.split(key)
        grad = jax.grad(potential)(theta) + jax.random.normal(of_gradient, (2,))
        noise = jnp.sqrt(2 * ETA * (ALPHA - ETA / 2)) * jax.random.normal(of_noise, (2,))
        velocity = (1 - ALPHA) * velocity - ETA * grad + noise
        return (theta + velocity, velocity), theta + velocity

    keys = jax.random.split(key, NUM_STEPS_BY_HAND)
    return lax.scan(step, (jnp.zeros(2), jnp.zeros(2)), keys)[1]


def by_hand(seed: int) -> float:
    start = time.perf_counter()
    by_hand_loop(jax.random.key(seed)).block_until_ready()
    return NUM_STEPS_BY_HAND / (time.perf_counter() - start)


def main() -> None:
    for program in (ours, by_hand):
        program(0)  # compiles
    rates = {"sghmc.sample": [], "jax by hand": []}
    for repeat in range(1, NUM_REPEATS + 1):
        rates["sghmc.sample"].append(ours(repeat))
        rates["jax by hand"].append(by_hand(repeat))
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print("| program | steps/s, median | lowest | highest | × by hand |")
    print("| --- | --- | --- | --- | --- |")
    for name, values in rates.items():
        ratio = middle[name] / middle["jax by hand"]
        print(
            f"| {name} | {middle[name]:.3g} | {min(values):.3g} | {max(values):.3g} | {ratio:.1f} |"
        )
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
