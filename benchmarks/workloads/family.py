"""Every sampler on three targets: error and bias at an equal number of gradients.

    python benchmarks/samplers.py equal-cost [--quick] [--only TARGET …] [--json FILE]

Targets: a correlated Gaussian with exact gradients; a double well with gradient noise of known
variance; a logistic regression of 100,000 rows in batches of 500. Each sampler takes steps of
several sizes, x in units of the stiffest direction's time scale, and is ranked by its best: others
than the reader cannot know that x beforehand, so this flatters all of them alike. Friction is
twice the slowest frequency, or what the gradient noise needs if that is more; V̂ is handed to those
that subtract one. HMC pays for all data; the rows that replicas' swaps look at are not counted.

error: root mean square, over chains, of errors of means and standard deviations, in standard
deviations: what one chain of this cost gives. bias: the same of all chains together, with its own
Monte Carlo error. A fifth of the gradients are burn-in. Sixty-four chains know an error of one
parameter to about 6 %: samplers that differ by less than a tenth are tied.
"""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate

import sghmc
from sghmc.paper.literal import LiteralSGNHT

BURN_IN = 0.2


@dataclasses.dataclass(frozen=True)
class Target:
    """What is sampled, its exact moments, and the scales that settings are given in."""

    target: Any
    gradient: Any
    mean: np.ndarray
    deviation: np.ndarray
    stiffest: float
    """The largest curvature."""
    softest: float
    noise: np.ndarray | float = 0.0
    """V, of the gradient estimate."""
    cost: float = 1.0
    """Of an exact gradient, in estimates of one."""
    metric: Callable = jnp.ones_like
    budget: int = 20_000
    num_chains: int = 64
    factor: np.ndarray = dataclasses.field(default_factory=lambda: np.eye(1))
    """The Cholesky factor of the covariance."""


def gaussian(quick: bool) -> Target:
    """Ten coordinates of variance 1, every two neighbours correlated by 0.9."""
    size = 10
    covariance = 0.9 ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    precision = np.linalg.inv(covariance)
    curvatures = np.linalg.eigvalsh(precision)
    matrix = jnp.asarray(precision, jnp.float32)
    return Target(
        sghmc.Potential(lambda x: x @ (matrix @ x) / 2),
        sghmc.FullBatch(),
        np.zeros(size),
        np.ones(size),
        stiffest=curvatures[-1],
        softest=curvatures[0],
        factor=np.linalg.cholesky(covariance),
    )


def double_well(quick: bool) -> Target:
    """The paper's U = −2θ² + θ⁴ with gradient noise of variance 4."""

    def moment(power):
        return scipy.integrate.quad(lambda x: x**power * np.exp(2 * x**2 - x**4), -5, 5)[0]

    deviation = np.array([math.sqrt(moment(2) / moment(0))])
    return Target(
        sghmc.Potential(lambda x: jnp.sum(-2 * x**2 + x**4)),
        sghmc.NoisyGradient(4.0),
        np.zeros(1),
        deviation,
        stiffest=8.0,  # at the wells
        softest=1.0,
        noise=4.0,
        metric=lambda x: jnp.sqrt(1 + (12 * x**2 - 4) ** 2) / 8,
    )


def logistic(quick: bool) -> Target:
    """Ten standardized inputs, prior N(0, 1). Exact moments by importance sampling at the mode."""
    count, size, batch = (5_000 if quick else 100_000), 10, 500
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, size)).astype(np.float32)
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    truth = rng.normal(size=size) / 2
    y = (rng.random(count) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
    posterior = sghmc.Posterior(
        lambda w, row: row["y"] * (row["x"] @ w) - jax.nn.softplus(row["x"] @ w),
        lambda w: -jnp.sum(w**2) / 2,
        {"x": x, "y": y},
    )
    mode, covariance, scores = _mode(x.astype(float), y.astype(float))
    mean, deviation = _reference(x.astype(float), y.astype(float), mode, covariance)
    curvatures = np.linalg.eigvalsh(np.linalg.inv(covariance))
    return Target(
        posterior,
        sghmc.Minibatch(batch),
        mean,
        deviation,
        stiffest=curvatures[-1],
        softest=curvatures[0],
        noise=count**2 / batch * np.cov(scores.T),
        cost=count / batch,
        budget=10_000,
        num_chains=16,
        factor=np.linalg.cholesky(covariance),
    )


def _mode(x, y):
    """By Newton's method; with the scores of all rows there."""

    def looked_at(w):
        p = 1 / (1 + np.exp(-x @ w))
        covariance = np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x + np.eye(len(w)))
        return covariance, x * (p - y)[:, None]

    w = np.zeros(x.shape[1])
    for _ in range(20):
        covariance, scores = looked_at(w)
        w = w - covariance @ (scores.sum(0) + w)
    return w, *looked_at(w)


def _reference(x, y, mode, covariance, num_pairs=2_000):
    """Moments by importance sampling from the Gaussian at the mode, in antithetic pairs.

    Weighted means of what the Gaussian leaves over: where weights are near 1 errors are tiny.
    """
    z = np.random.default_rng(1).normal(size=(num_pairs, len(mode)))
    moves = np.concatenate([z, -z]) @ np.linalg.cholesky(covariance).T

    def log_density(w):
        return y @ (x @ w) - np.sum(np.logaddexp(0, x @ w)) - w @ w / 2

    logs = np.array([log_density(mode + move) for move in moves])
    weights = np.exp(logs - log_density(mode) + np.sum(np.concatenate([z, z]) ** 2, 1) / 2)
    weights = weights / weights.mean()
    shift = np.mean((weights - 1)[:, None] * moves, 0)
    variance = covariance.diagonal() + np.mean((weights - 1)[:, None] * moves**2, 0) - shift**2
    return mode + shift, np.sqrt(variance)


TARGETS = {"gaussian": gaussian, "double well": double_well, "logistic": logistic}


def samplers(target: Target) -> dict[str, Callable]:
    """Of each name, the sampler with steps of size x."""
    size, noise = len(target.mean), np.asarray(target.noise)
    largest_noise = np.linalg.norm(noise, 2) if noise.ndim == 2 else float(noise)

    def step(x, curvature=target.stiffest):
        return x / math.sqrt(curvature)

    def friction(x):
        return max(2 * math.sqrt(target.softest), 0.55 * step(x) * largest_noise)

    def trajectory(x):
        return max(1, round(1.5 / (step(x) * math.sqrt(target.softest))))

    def whitened(x):
        of_z = target.factor.T @ noise @ target.factor if noise.ndim == 2 else noise
        need = 0.55 * x * (np.linalg.norm(of_z, 2) if noise.ndim == 2 else float(of_z))
        inner = sghmc.SGHMC(x, max(2.0, need), gradient_noise=of_z)
        return sghmc.Whitened(inner, jnp.asarray(target.mean, jnp.float32), target.factor)

    with_noise: dict[str, Any] = {"gradient_noise": target.noise}
    made: dict[str, Callable] = {
        "SGHMC": lambda x: sghmc.SGHMC(step(x), friction(x), **with_noise),
        "SGHMC, middle": lambda x: sghmc.SGHMC(
            step(x), friction(x), **with_noise, observe="middle"
        ),
        "BAOAB": lambda x: sghmc.BAOAB(step(x), friction(x), **with_noise),
        "OBABO": lambda x: sghmc.OBABO(step(x), friction(x), **with_noise),
        "SGNHT": lambda x: sghmc.SGNHT(step(x), friction(x)),
        "SGNHT, diagonal": lambda x: sghmc.SGNHT(step(x), friction(x), thermostat="diagonal"),
        "SGNHT, literal": lambda x: LiteralSGNHT(step(x), friction(x)),
        "SGRHMC": lambda x: sghmc.SGRHMC(step(x), target.metric, friction(x), is_separable=True),
        "SGLD": lambda x: sghmc.SGLD(x**2 / target.stiffest, **with_noise),
        "PSGLD": lambda x: sghmc.PSGLD(step(x**2), damping=math.sqrt(target.stiffest)),
        "HMC": lambda x: sghmc.HMC(step(x), trajectory(x), jitter=0.2),
        "ReplicaExchange SGHMC": lambda x: sghmc.ReplicaExchange(
            sghmc.SGHMC(step(x), friction(x), **with_noise),
            (1.0, 2.0, 4.0),
            batch_size=None if target.cost == 1 else 500,
        ),
        "Cyclical SGHMC": lambda x: sghmc.Cyclical(sghmc.SGHMC(step(x), friction(x)), 100),
    }
    if size > 1:
        made["Whitened SGHMC"] = whitened
    return made


class Moment(eqx.Module):
    """A mean over draws. A Module, unlike a closure, does not make each run compile anew."""

    center: jax.Array
    power: int

    def __call__(self, position):
        return (position - self.center) ** self.power


def nothing(position):
    return ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    sampler: str
    x: float
    error: float
    bias: float
    bias_error: float
    seconds: float
    refusal: str = ""


def measure(name, make, target: Target, x: float, budget: int, num_chains: int) -> Outcome:
    failed = (math.inf, math.nan, math.nan)
    try:
        sampler = make(x)
        cost = sampler.prepare(jnp.asarray(target.mean, jnp.float32)).num_gradients
    except ValueError as refusal:
        return Outcome(name, x, *failed, 0.0, str(refusal))
    is_exact = isinstance(sampler, sghmc.HMC)
    num_steps = int(budget / (cost * (target.cost if is_exact else 1)))
    if num_steps < 5:
        return Outcome(name, x, *failed, 0.0, f"only {num_steps} steps")
    num_burnin = int(BURN_IN * num_steps)
    key, start = jax.random.split(jax.random.key(0))
    spread = jax.random.normal(start, (num_chains, len(target.mean))) * target.deviation
    center = jnp.asarray(target.mean, jnp.float32)
    began = time.perf_counter()
    samples = sghmc.sample(
        key,
        target.target,
        sampler,
        jnp.asarray(target.mean + spread, jnp.float32),
        gradient=sghmc.FullBatch() if is_exact else target.gradient,
        num_samples=num_steps - num_burnin,
        num_burnin=num_burnin,
        num_chains=num_chains,
        init_axis=0,
        keep=nothing,
        averages={"shift": Moment(center, 1), "square": Moment(center, 2)},
        throw=False,
        progress=False,
    )
    seconds = time.perf_counter() - began
    shift, square = (np.asarray(samples.averages[name]) for name in ("shift", "square"))
    if not np.all(np.isfinite(square)):
        return Outcome(name, x, *failed, seconds, "diverged")
    deviation = target.deviation
    errors = np.concatenate([shift / deviation, np.sqrt(square) / deviation - 1], axis=1)
    together = np.concatenate([shift.mean(0) / deviation, np.sqrt(square.mean(0)) / deviation - 1])
    return Outcome(
        name,
        x,
        error=math.sqrt(np.mean(errors**2)),
        bias=math.sqrt(np.mean(together**2)),
        bias_error=math.sqrt(np.mean(errors.var(0, ddof=1)) / num_chains),
        seconds=seconds,
    )


def run(name: str, quick: bool) -> list[Outcome]:
    """Every sampler at every x, best first."""
    target = TARGETS[name](quick)
    budget, num_chains = (2_000, 16) if quick else (target.budget, target.num_chains)
    sizes = (0.5,) if quick else (0.1, 0.2, 0.4, 0.7, 1.0, 1.4)
    outcomes = [
        measure(sampler, make, target, x, budget, num_chains)
        for sampler, make in samplers(target).items()
        for x in sizes
        if not (quick and ", " in sampler)
    ]
    best = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.error):
        best.setdefault(outcome.sampler, outcome)
    print(f"\n{name}: {budget} gradients a chain, {num_chains} chains\n")
    print("| | sampler | x | error of a chain | bias | ± | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for rank, o in enumerate(best.values(), 1):
        print(
            f"| {rank} | {o.sampler} | {o.x:g} | {o.error:.3f} | {o.bias:.4f} | {o.bias_error:.4f} "
            f"| {o.seconds:.1f} |",
            flush=True,
        )
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, without variants")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--json", type=Path, help="write every outcome here")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    outcomes = {name: run(name, options.quick) for name in options.only}
    if options.json:
        rows = {name: [dataclasses.asdict(o) for o in found] for name, found in outcomes.items()}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
