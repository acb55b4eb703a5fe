"""A logistic regression on a million rows: "auto" against NumPyro's NUTS, in one run.

    python benchmarks/million.py [--rows N] [--columns D] [--batch N] [--chains K] [--json FILE]

Nothing is set by hand but the batch size. The truth is the Laplace approximation: at this N the
posterior is Gaussian to within a small part of a percent. NUTS gets the mode as its start and the
posterior's covariance as its mass, so that it need only find a step size; its run is short and its
effective draws are counted as ours are. It sees the potential as one matrix product over all rows,
the quickest way there is. Also shown: what the paper's own rule (η = 0.1/N, α = 0.1,
plain minibatches) gives.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc.posterior.mode import find_mode, hessian
from sghmc.results.convergence import slowest_time


def make(num_rows: int, num_columns: int):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    x[:, 0] = 1
    weights = 0.5 * rng.normal(size=num_columns) / np.sqrt(num_columns) * 3
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ weights))).astype(np.float32)

    def log_likelihood(weights, row):
        logit = row["x"] @ weights
        return row["y"] * logit - jax.nn.softplus(logit)

    def log_prior(weights):
        return -0.5 * jnp.sum(weights**2)

    return sghmc.Posterior(log_likelihood, log_prior, {"x": x, "y": y}), jnp.zeros(num_columns)


def effective(draws: np.ndarray) -> float:
    """Independent draws that all of these are worth, for the slowest mean."""
    time_in_draws = slowest_time(np.asarray(draws, np.float64))
    return draws.shape[0] * draws.shape[1] / max(1.0, 2 * time_in_draws - 1)


def dependence(draws: np.ndarray) -> float:
    """How much the chains' mean at a moment varies, over what it would if chains were independent.

    Above 1, chains that share batches move alike, and effective draws are fewer by that factor.
    """
    away = draws - draws.mean((0, 1))
    return float(np.mean(len(draws) * away.mean(0).var(0) / away.var((0, 1))))


def errors(draws: np.ndarray, center: np.ndarray, spread: np.ndarray) -> dict[str, float]:
    flat = draws.reshape(-1, draws.shape[-1]).astype(np.float64)
    return {
        "largest_sd_error": float(np.max(np.abs(flat.std(0) / spread - 1))),
        "mean_sd_ratio": float(np.mean(flat.std(0) / spread)),
        "largest_mean_error": float(np.max(np.abs(flat.mean(0) - center) / spread)),
    }


def ours(posterior, start, options, center, spread):
    gradient = sghmc.Minibatch(options.batch)
    began = time.perf_counter()
    tuned = sghmc.tune(
        jax.random.key(1),
        posterior,
        start,
        batch_size=gradient.batch_size,
        num_chains=options.chains,
    )
    tuning = time.perf_counter() - began
    print(tuned.report, flush=True)
    samples = sghmc.sample(
        jax.random.key(2),
        posterior,
        tuned.sampler,
        tuned.init,
        gradient=tuned.gradient,
        init_axis=0,
        num_chains=options.chains,
        num_samples=options.draws,
        thinning=tuned.thinning,
        progress=False,
    )
    seconds = samples.seconds - samples.startup_seconds
    alike = dependence(samples.positions)
    count = effective(samples.positions) / max(1.0, alike)
    return {
        "effective_draws": count,
        "dependence_of_chains": alike,
        "seconds": seconds,
        "tune_seconds": tuning,
        "compile_seconds": samples.startup_seconds,
        "per_second": count / seconds,
        "per_second_with_tuning": count / (samples.seconds + tuning),
        "microseconds_a_step": 1e6 * seconds / samples.num_steps,
        **errors(samples.positions, center, spread),
    }


def papers_rule(posterior, start, options, center, spread):
    sampler = sghmc.SGHMC.from_learning_rate(0.1 / posterior.num_examples, 0.1)
    samples = sghmc.sample(
        jax.random.key(3),
        posterior,
        sampler,
        jnp.asarray(center, jnp.float32),
        gradient=sghmc.Minibatch(500),
        num_chains=options.chains,
        num_samples=500,
        num_burnin=100,
        thinning=40,
        progress=False,
    )
    return errors(samples.positions, center, spread)


def nuts(posterior, options, center, covariance, spread):
    from numpyro.infer import MCMC, NUTS

    x, y = posterior.data["x"], posterior.data["y"]

    def potential(weights):
        logits = x @ weights
        return 0.5 * jnp.sum(weights**2) + jnp.sum(jax.nn.softplus(logits) - y * logits)

    kernel = NUTS(
        potential_fn=potential,
        dense_mass=True,
        inverse_mass_matrix=jnp.asarray(covariance, jnp.float32),
        adapt_mass_matrix=False,
        step_size=0.5,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=options.nuts_warmup,
        num_samples=options.nuts_draws,
        num_chains=1,
        progress_bar=False,
    )
    start = jnp.asarray(center, jnp.float32)
    began = time.perf_counter()
    mcmc.warmup(jax.random.key(4), init_params=start)
    warmed = time.perf_counter()
    mcmc.run(jax.random.key(5), init_params=start)  # the first run compiles
    again = time.perf_counter()
    mcmc.run(jax.random.key(6), init_params=start)
    seconds = time.perf_counter() - again
    draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    count = effective(draws)
    return {
        "effective_draws": count,
        "seconds": seconds,
        "warmup_seconds": warmed - began,
        "per_second": count / seconds,
        **errors(draws, center, spread),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--nuts-warmup", type=int, default=20)
    parser.add_argument("--nuts-draws", type=int, default=60)
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    posterior, start = make(options.rows, options.columns)
    mode = find_mode(posterior, start)
    covariance = np.linalg.inv(hessian(posterior, mode.position))
    center, spread = np.asarray(mode.position, np.float64), np.sqrt(np.diag(covariance))
    result = {"device": str(jax.devices()[0]), "options": vars(options) | {"json": None}}
    if "auto" not in options.skip:
        result["auto"] = ours(posterior, start, options, center, spread)
        print(json.dumps(result["auto"], indent=1), flush=True)
    if "rule" not in options.skip:
        result["paper's rule"] = papers_rule(posterior, start, options, center, spread)
        print(json.dumps(result["paper's rule"], indent=1), flush=True)
    if "nuts" not in options.skip:
        result["nuts"] = nuts(posterior, options, center, covariance, spread)
        print(json.dumps(result["nuts"], indent=1), flush=True)
        if "auto" in result:
            result["ratio"] = result["auto"]["per_second"] / result["nuts"]["per_second"]
            print(f"effective draws per second: {result['ratio']:.0f} × NUTS")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
