"""Posteriors of many kinds, as a user would write them down, for `answer.py`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from numpy.typing import ArrayLike

import sghmc


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


def linear(count, size, condition=1.0, spread=1.0, seed=0):
    """Columns whose scales span a factor of `spread`."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(spread**-0.5, spread**0.5, size)
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


def logistic(count, size, condition=1.0, seed=0):
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


def poisson(count, size, condition=30.0, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size, condition)
    x[:, 0] = 1
    y = rng.poisson(np.exp(x @ (rng.normal(size=size) * 0.3)))

    def log_likelihood(b, row):
        return row["y"] * (row["x"] @ b) - jnp.exp(row["x"] @ b)

    return sghmc.Posterior(log_likelihood, normal_prior(3.0), table(x=x, y=y)), jnp.zeros(size)


def gamma(count, size, seed=0):
    rng = np.random.default_rng(seed)
    x = design(rng, count, size)
    y = rng.gamma(2.0, np.exp(0.5 + x @ (rng.normal(size=size) * 0.3)) / 2)

    def log_likelihood(p, row):
        shape, log_mean = jnp.exp(p["log_shape"]), p["intercept"] + row["x"] @ p["slopes"]
        rate = shape * jnp.exp(-log_mean)
        density = (shape - 1) * jnp.log(row["y"]) - rate * row["y"]
        return shape * jnp.log(rate) - gammaln(shape) + density

    zero = jnp.zeros(())
    start = {"intercept": zero, "slopes": jnp.zeros(size), "log_shape": zero}
    return sghmc.Posterior(log_likelihood, normal_prior(2.0), table(x=x, y=y)), start


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


def plate(count, size, seed=0):
    """A logistic regression as a NumPyro model, with its arguments."""
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(seed)
    x = design(rng, count, size)
    y = rng.random(count) < 1 / (1 + np.exp(-0.3 - x @ (rng.normal(size=size) * 0.5)))

    def model(x, y):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([size]).to_event(1))
        with numpyro.plate("rows", count):
            numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)

    return model, table(x=x, y=y)


@dataclasses.dataclass(frozen=True)
class Case:
    """`make(seed=…)` gives a posterior, a start, and for some a potential that is quick to judge.

    The seed is that of the data; `is_model` says that it gives a NumPyro model and its arguments,
    and `num_reference` how many draws of a chain NUTS needs to be the judge.
    """

    make: Callable[..., Any]
    is_issue: bool = False
    is_model: bool = False
    num_reference: int = 10_000


def _of(function, *args, **settings):
    def make(seed=0):
        return function(
            *args, **settings, **({} if function in (schools, banana) else {"seed": seed})
        )

    return make


SMALL = {
    "linear, N = 2,000": Case(_of(linear, 2_000, 5), is_issue=True),
    "Poisson, N = 5,000": Case(_of(poisson, 5_000, 5), is_issue=True),
    "gamma, N = 400": Case(_of(gamma, 400, 3), is_issue=True),
    "hierarchical, N = 1,000, 30 groups": Case(_of(hierarchical, 1_000, 30), is_issue=True),
    "NumPyro plate, N = 20,000": Case(_of(plate, 20_000, 6), is_issue=True, is_model=True),
    "linear, N = 50, condition 10⁴, scales 10⁴": Case(_of(linear, 50, 4, 1e4, 1e4)),
    "logistic, N = 200, scales 10⁴": Case(_of(badly_scaled, 200, 5)),
    "logistic, N = 2,000, condition 10⁴": Case(_of(logistic, 2_000, 10, 1e4)),
    "Student-t, N = 300": Case(_of(student, 300, 5)),
    "eight schools": Case(_of(schools), num_reference=80_000),
    "hierarchical, N = 20,000, 50 groups": Case(_of(hierarchical, 20_000, 50)),
    "negative binomial, N = 500": Case(_of(negative_binomial, 500, 4)),
    "softmax, N = 1,000": Case(_of(softmax, 1_000, 5, 3)),
    "mixture, N = 300": Case(_of(mixture, 300)),
    "survival, N = 5,000": Case(_of(survival, 5_000, 6)),
    "banana": Case(_of(banana), num_reference=80_000),
}
LARGE = {
    "logistic, N = 200,000": Case(_of(logistic, 200_000, 20), num_reference=2_500),
    "Poisson, N = 200,000": Case(_of(poisson, 200_000, 10), num_reference=2_500),
    "linear, N = 500,000": Case(_of(linear, 500_000, 20, 1e4, 1e4), num_reference=2_500),
    "Student-t, N = 200,000": Case(_of(student, 200_000, 8), num_reference=2_500),
}
CASES = {**SMALL, **LARGE}
