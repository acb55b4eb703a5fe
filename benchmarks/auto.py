"""sample(…, "auto", …) against long NUTS runs, on posteriors of many kinds.

    python benchmarks/auto.py [--only NAME …] [--reference DRAWS] [--json FILE]

No setting is given but the batch size. For each posterior: the largest error of any standard
deviation and of any mean, relative to those of a long run of NumPyro's NUTS, with the Monte Carlo
error that the two runs leave, what was chosen, and whether the tuner promised it.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from numpy.typing import ArrayLike

import sghmc
from sghmc.results.diagnostics import autocorrelation_time


def design(rng, count, size, condition=1.0, scales: ArrayLike = 1.0):
    """Standardized columns with a correlation matrix of about this condition number, scaled."""
    x = rng.normal(size=(count, size))
    if condition > 1:
        rotation, _ = np.linalg.qr(rng.normal(size=(size, size)))
        x = x @ (rotation * np.geomspace(1, condition**-0.5, size)) @ rotation.T
        x = (x - x.mean(0)) / x.std(0)
    return x * np.broadcast_to(scales, size)


def normal_prior(scale):
    return lambda params: sum(
        jnp.sum(norm.logpdf(leaf, 0, scale)) for leaf in jax.tree.leaves(params)
    )


def table(**columns):
    return {name: np.asarray(column, np.float32) for name, column in columns.items()}


def gram_potential(features, residual, log_prior):
    """U of a model y ~ N(·, sd²) whose residuals are features @ residual(params): data enter by
    one small matrix, so that NUTS is quick however many rows there are; for double precision.
    """
    features = np.asarray(features, np.float64)
    gram, count = features.T @ features, len(features)

    def potential(p):
        weights = residual(p)
        squares = weights @ jnp.asarray(gram) @ weights
        return count * p["log_sd"] + 0.5 * squares * jnp.exp(-2 * p["log_sd"]) - log_prior(p)

    return sghmc.Potential(potential)


def linear(count, size, condition, seed=0):
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.01, 100, size)
    x = design(rng, count, size, condition, scales)
    y = x @ (rng.normal(size=size) / scales) + 0.7 * rng.normal(size=count)

    def log_likelihood(p, row):
        mean = p["intercept"] + row["x"] @ (p["slopes"] / scales.astype(np.float32))
        return norm.logpdf(row["y"], mean, jnp.exp(p["log_sd"]))

    def residual(p):
        slopes = p["slopes"] / scales.astype(np.float32)
        return jnp.concatenate([-p["intercept"][None], -slopes, jnp.ones(1)])

    start = {"intercept": jnp.zeros(()), "slopes": jnp.zeros(size), "log_sd": jnp.zeros(())}
    data, prior = table(x=x, y=y), normal_prior(10.0)
    features = np.column_stack([np.ones(count), data["x"], data["y"]])
    posterior = sghmc.Posterior(log_likelihood, prior, data)
    return posterior, start, gram_potential(features, residual, prior)


def badly_scaled(count, size, seed=0):
    """Columns of scales 0.01 to 100 as they are, with a prior in each column's own scale."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.01, 100, size)
    x = design(rng, count, size, 100.0, scales)
    y = rng.random(count) < 1 / (1 + np.exp(-x @ (rng.normal(size=size) * 0.5 / scales)))
    widths = (10 / scales).astype(np.float32)

    def log_likelihood(b, row):
        return row["y"] * (row["x"] @ b) - jax.nn.softplus(row["x"] @ b)

    def log_prior(b):
        return jnp.sum(norm.logpdf(b, 0, widths))

    return sghmc.Posterior(log_likelihood, log_prior, table(x=x, y=y)), jnp.zeros(size)


def logistic(count, size, condition, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size, condition)
    y = rng.random(count) < 1 / (1 + np.exp(-x @ (rng.normal(size=size) * 0.5)))

    def log_likelihood(b, row):
        return row["y"] * (row["x"] @ b) - jax.nn.softplus(row["x"] @ b)

    return sghmc.Posterior(log_likelihood, normal_prior(5.0), table(x=x, y=y)), jnp.zeros(size)


def student(count, size, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size, 10.0)
    y = x @ rng.normal(size=size) + 0.5 * rng.standard_t(3, size=count)

    def log_likelihood(p, row):
        z = (row["y"] - row["x"] @ p["slopes"]) / jnp.exp(p["log_scale"])
        dof = 4.0
        return -p["log_scale"] - 0.5 * (dof + 1) * jnp.log1p(z**2 / dof)

    start = {"slopes": jnp.zeros(size), "log_scale": jnp.zeros(())}
    return sghmc.Posterior(log_likelihood, normal_prior(5.0), table(x=x, y=y)), start


def poisson(count, size, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size, 30.0)
    x[:, 0] = 1
    y = rng.poisson(np.exp(x @ (rng.normal(size=size) * 0.3)))

    def log_likelihood(b, row):
        return row["y"] * (row["x"] @ b) - jnp.exp(row["x"] @ b)

    return sghmc.Posterior(log_likelihood, normal_prior(3.0), table(x=x, y=y)), jnp.zeros(size)


def schools():
    """Eight schools, non-centered: eight examples, ten parameters."""
    y = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
    sigma = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]

    def log_likelihood(p, row):
        effect = p["mean"] + jnp.exp(p["log_spread"]) * p["raw"][row["group"].astype(int)]
        return norm.logpdf(row["y"], effect, row["sigma"])

    def log_prior(p):
        spread = jnp.exp(p["log_spread"])
        half_cauchy = p["log_spread"] - jnp.log1p((spread / 5) ** 2)
        return norm.logpdf(p["mean"], 0, 5) + half_cauchy + jnp.sum(norm.logpdf(p["raw"]))

    start = {"mean": jnp.zeros(()), "log_spread": jnp.zeros(()), "raw": jnp.zeros(8)}
    data = table(y=y, sigma=sigma, group=np.arange(8))
    return sghmc.Posterior(log_likelihood, log_prior, data), start


def hierarchical(count, groups, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, count)
    x = rng.normal(size=count)
    effects = 1.0 + 0.6 * rng.normal(size=groups)
    y = effects[group] + 0.5 * x + 0.8 * rng.normal(size=count)

    def log_likelihood(p, row):
        intercept = p["mean"] + jnp.exp(p["log_spread"]) * p["raw"][row["group"].astype(int)]
        return norm.logpdf(row["y"], intercept + p["slope"] * row["x"], jnp.exp(p["log_sd"]))

    def log_prior(p):
        parts = [p["mean"], p["slope"], p["log_spread"], p["log_sd"]]
        return sum(norm.logpdf(part, 0, 2) for part in parts) + jnp.sum(norm.logpdf(p["raw"]))

    def residual(p):
        intercepts = p["mean"] + jnp.exp(p["log_spread"]) * p["raw"]
        return jnp.concatenate([-intercepts, -p["slope"][None], jnp.ones(1)])

    zero = jnp.zeros(())
    start = {"mean": zero, "slope": zero, "log_spread": zero, "log_sd": zero}
    start["raw"] = jnp.zeros(groups)
    data = table(y=y, x=x, group=group)
    features = np.column_stack([np.eye(groups)[group], data["x"], data["y"]])
    posterior = sghmc.Posterior(log_likelihood, log_prior, data)
    return posterior, start, gram_potential(features, residual, log_prior)


def negative_binomial(count, size, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size)
    mean = np.exp(1 + x @ (rng.normal(size=size) * 0.3))
    y = rng.poisson(mean * rng.gamma(2.0, 0.5, size=count))

    def log_likelihood(p, row):
        log_mean, dispersion = p["intercept"] + row["x"] @ p["slopes"], jnp.exp(p["log_dispersion"])
        total = jnp.logaddexp(jnp.log(dispersion), log_mean)
        return (
            gammaln(row["y"] + dispersion)
            - gammaln(dispersion)
            + dispersion * (jnp.log(dispersion) - total)
            + row["y"] * (log_mean - total)
        )

    zero = jnp.zeros(())
    start = {"intercept": zero, "slopes": jnp.zeros(size), "log_dispersion": zero}
    return sghmc.Posterior(log_likelihood, normal_prior(2.0), table(x=x, y=y)), start


def softmax(count, size, classes, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size)
    logits = x @ rng.normal(size=(size, classes))
    y = np.argmax(logits + rng.gumbel(size=logits.shape), 1)

    def log_likelihood(b, row):
        return jax.nn.log_softmax(row["x"] @ b)[row["y"].astype(int)]

    start = jnp.zeros((size, classes))
    return sghmc.Posterior(log_likelihood, normal_prior(1.0), table(x=x, y=y)), start


def mixture(count, seed=0):
    """Two Gaussians with ordered means."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(count) < 0.3, rng.normal(-1.5, 0.7, count), rng.normal(1.5, 1.0, count))

    def log_likelihood(p, row):
        low, gap = p["low"], jnp.exp(p["log_gap"])
        share = jax.nn.log_sigmoid(p["logit"]), jax.nn.log_sigmoid(-p["logit"])
        return jnp.logaddexp(
            share[0] + norm.logpdf(row["y"], low, jnp.exp(p["log_sd"][0])),
            share[1] + norm.logpdf(row["y"], low + gap, jnp.exp(p["log_sd"][1])),
        )

    start = {
        "low": jnp.asarray(-1.0),
        "log_gap": jnp.zeros(()),
        "logit": jnp.zeros(()),
        "log_sd": jnp.zeros(2),
    }
    return sghmc.Posterior(log_likelihood, normal_prior(2.0), table(y=y)), start


def survival(count, size, seed=0):
    """Weibull survival times, a third of them censored."""
    rng = np.random.default_rng(seed)
    x = design(rng, count, size)
    times = rng.weibull(1.5, count) * np.exp(x @ (rng.normal(size=size) * 0.4))
    limit = np.quantile(times, 0.67)
    is_seen = times < limit

    def log_likelihood(p, row):
        shape = jnp.exp(p["log_shape"])
        z = shape * (row["log_time"] - p["intercept"] - row["x"] @ p["slopes"])
        return row["is_seen"] * (p["log_shape"] + z) - jnp.exp(z)

    zero = jnp.zeros(())
    start = {"log_shape": zero, "intercept": zero, "slopes": jnp.zeros(size)}
    data = table(x=x, log_time=np.log(np.minimum(times, limit)), is_seen=is_seen)
    return sghmc.Posterior(log_likelihood, normal_prior(2.0), data), start


def banana():
    def potential(p):
        return 0.5 * (p[0] / 2) ** 2 + 0.5 * (p[1] + 0.25 * (p[0] ** 2 - 4)) ** 2

    return sghmc.Potential(potential), jnp.zeros(2)


CASES = {
    "linear, N = 50, condition 10⁴": lambda: linear(50, 4, 1e4),
    "linear, N = 100,000, condition 10⁴": lambda: linear(100_000, 20, 1e4),
    "logistic, N = 200, scales 10⁴": lambda: badly_scaled(200, 5),
    "logistic, N = 2,000, condition 10⁴": lambda: logistic(2_000, 10, 1e4),
    "logistic, N = 100,000, condition 10⁴": lambda: logistic(100_000, 30, 1e4),
    "Student-t, N = 300": lambda: student(300, 5),
    "Student-t, N = 50,000": lambda: student(50_000, 8),
    "Poisson, N = 100": lambda: poisson(100, 4),
    "Poisson, N = 50,000": lambda: poisson(50_000, 10),
    "eight schools": schools,
    "hierarchical, N = 1,000, 20 groups": lambda: hierarchical(1_000, 20),
    "hierarchical, N = 20,000, 50 groups": lambda: hierarchical(20_000, 50),
    "negative binomial, N = 500": lambda: negative_binomial(500, 4),
    "softmax, N = 1,000": lambda: softmax(1_000, 5, 3),
    "mixture, N = 300": lambda: mixture(300),
    "survival, N = 5,000": lambda: survival(5_000, 6),
    "banana": banana,
}


def nuts(key, target, start, num_draws):
    """Draws of NumPyro's NUTS, axes (chain, draw, raveled parameter)."""
    from numpyro.infer import MCMC, NUTS

    size = sum(leaf.size for leaf in jax.tree.leaves(start))
    kernel = NUTS(potential_fn=target.potential, dense_mass=size <= 200)
    mcmc = MCMC(
        kernel,
        num_warmup=1_000,
        num_samples=num_draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    starts = jax.tree.map(lambda leaf: jnp.zeros((4, *leaf.shape)) + leaf, start)
    mcmc.run(key, init_params=starts)
    return flat(mcmc.get_samples(group_by_chain=True))


def flat(positions):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(positions)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)


def moments(draws):
    """Mean and sd of each parameter with their Monte Carlo errors."""
    mean, sd = draws.mean((0, 1)), draws.std((0, 1))
    squares = (draws - mean) ** 2
    return mean, sd, standard_error(draws), standard_error(squares) / (2 * sd)


def standard_error(draws):
    times = np.maximum(2 * autocorrelation_time(draws) - 1, 0.2)
    return draws.std((0, 1)) * np.sqrt(times / (draws.shape[0] * draws.shape[1]))


def compare(name, make, seed, reference_draws):
    target, start, *quick = make()
    with jax.enable_x64(bool(quick)):
        cheapest = quick[0] if quick else target
        draws = nuts(jax.random.key(seed), cheapest, start, reference_draws)
    reference = moments(draws)
    began = time.perf_counter()
    samples = sghmc.sample(
        jax.random.key(seed + 1),
        target,
        "auto",
        start,
        num_samples=2_000,
        num_chains=4,
        progress=False,
    )
    seconds = time.perf_counter() - began
    ours = moments(flat(samples.positions))
    sd = reference[1]
    sd_error, mean_error = ours[1] / sd - 1, (ours[0] - reference[0]) / sd
    sd_noise, mean_noise = (np.hypot(ours[i], reference[i]) / sd for i in (3, 2))
    worst_sd, worst_mean = np.argmax(np.abs(sd_error)), np.argmax(np.abs(mean_error))
    return {
        "name": name,
        "sd_error": float(sd_error[worst_sd]),
        "sd_noise": float(sd_noise[worst_sd]),
        "mean_error": float(mean_error[worst_mean]),
        "mean_noise": float(mean_noise[worst_mean]),
        "estimator": samples.tuning.estimator,
        "step_size": samples.tuning.step_size,
        "is_met": samples.tuning.is_met,
        "tune_seconds": samples.tuning.seconds,
        "seconds": seconds,
        "notes": list(samples.tuning.notes),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", type=int, default=4_000, help="draws a chain of NUTS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("| posterior | worst sd | worst mean (sds) | gradient | step | promised | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for name in options.only:
        row = compare(name, CASES[name], options.seed, options.reference)
        rows.append(row)
        print(
            f"| {name} | {100 * row['sd_error']:+.1f} % ± {100 * row['sd_noise']:.1f} "
            f"| {row['mean_error']:+.3f} ± {row['mean_noise']:.3f} | {row['estimator']} "
            f"| {row['step_size']:.3g} | {'yes' if row['is_met'] else 'no'} "
            f"| {row['seconds']:.0f} ({row['tune_seconds']:.0f} tuning) |",
            flush=True,
        )
        for note in row["notes"]:
            print(f"    {note}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
