"""The accept step on a subset against that on all data: rows looked at, and what it costs in bias.

    python benchmarks/samplers.py austerity [--draws 1000]

Naive HMC, trajectories of batches of 1,000 of 10,000 rows, on a linear regression whose posterior
is known; each accept step as a row. `data` is the share of all rows that a decision looked at, the
variance that of the draws over the posterior's, a mean over chains and coordinates, with the
standard error over chains. Seconds are a run's without compilation, of all chains together: rows in
random order cost more than a pass over the data, and chains wait for the slowest.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import sghmc

NUM_EXAMPLES, NUM_FEATURES = 10_000, 4
NUM_CHAINS = 16
BATCH_SIZE, LOOK = 1_000, 500
ERRORS = (0.001, 0.01, 0.05, 0.1, 0.2)


def regression() -> tuple[sghmc.Posterior, np.ndarray, np.ndarray]:
    """The posterior, its mean, and a root L of its covariance, L Lᵀ."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(NUM_EXAMPLES, NUM_FEATURES))
    labels = rows.sum(1) + rng.normal(size=NUM_EXAMPLES)
    covariance = np.linalg.inv(rows.T @ rows + np.eye(NUM_FEATURES))
    posterior = sghmc.Posterior(
        lambda weights, example: -((example[1] - example[0] @ weights) ** 2) / 2,
        lambda weights: -jnp.sum(weights**2) / 2,
        (jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)),
    )
    return posterior, covariance @ rows.T @ labels, np.linalg.cholesky(covariance)


def row(name: str, metropolis: bool | sghmc.Austerity, num_samples: int) -> str:
    posterior, mean, root = regression()
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.Whitened(sghmc.HMC(0.2, 4, metropolis=metropolis), mean, root),
        jnp.asarray(mean, jnp.float32),
        gradient=sghmc.Minibatch(BATCH_SIZE, replacement=False),
        num_samples=num_samples,
        num_chains=NUM_CHAINS,
        progress=False,
    )
    white = (np.asarray(samples.positions, np.float64) - mean) @ np.linalg.inv(root).T
    ratios = np.mean(white**2, axis=(1, 2))
    error = ratios.std(ddof=1) / NUM_CHAINS**0.5
    share = samples.info.data_share
    data = f"{share.mean():.1%}" if share is not None else "100 %" if metropolis else "0 %"
    assert samples.info.acceptance is not None
    seconds = samples.seconds - samples.startup_seconds
    return (
        f"| {name} | {data} | {samples.info.acceptance.mean():.1%} | "
        f"{ratios.mean():.3f} ± {error:.3f} | {seconds:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000, help="of each chain")
    num_samples = parser.parse_args().draws
    print("| accept step | data | accepted | variance / exact | seconds |")
    print("| --- | --- | --- | --- | --- |")
    print(row("all data", True, num_samples), flush=True)
    for error in ERRORS:
        print(row(f"error={error}", sghmc.Austerity(error, LOOK), num_samples), flush=True)
    print(row("none", False, num_samples))
