"""Targets whose moments are known, for `referee.py`: by formulas, quadrature or long runs."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc.posterior.mode import find_mode
from sghmc.results import convergence

NUM_REFERENCE = 2_000
"""Draws of each of 16 chains of what has no formula: HMC on all data, with an accept step."""


class Folders(NamedTuple):
    """Where data are, and where what took long to compute is remembered."""

    data: pathlib.Path | None = None
    cache: pathlib.Path | None = None

    def remembered(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, np.ndarray]:
        file = None if self.cache is None else self.cache / f"{name}.npz"
        if file is None or not file.exists():
            made = {key: np.asarray(value) for key, value in make().items()}
            if file is None:
                return made
            partial = file.with_name(f"{file.stem}-{os.getpid()}.npz")
            np.savez(partial, allow_pickle=False, **made)
            partial.rename(file)  # other processes see all of it or nothing
        with np.load(file) as found:
            return dict(found)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is sampled, what is asked about it, and the truth.

    `stiffest` and `softest` are curvatures at `start`, which every sampler is told alike; `passes`
    is the budget of a run, in gradients over all data.
    """

    target: Any
    start: Any
    mean: np.ndarray
    deviation: np.ndarray
    stiffest: float
    softest: float
    passes: int
    batch_size: int = 1
    keep: Callable[[Any], jax.Array] = jnp.ravel

    @property
    def num_examples(self) -> int:
        is_posterior = isinstance(self.target, sghmc.Posterior)
        return int(self.target.num_examples) if is_posterior else 1


def _posterior(log_likelihood, log_prior, **columns) -> sghmc.Posterior:
    table = {name: np.asarray(column, np.float32) for name, column in columns.items()}
    return sghmc.Posterior(log_likelihood, log_prior, table)


def gaussian(folders: Folders) -> Case:
    """Linear regression, 2,000 rows, ten inputs, condition number 10⁴: exact."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 10)) @ np.linalg.qr(rng.normal(size=(10, 10)))[0]
    x = np.linalg.qr(x)[0] * math.sqrt(2_000) * np.geomspace(0.01, 1, 10)
    y = x @ rng.normal(size=10) + rng.normal(size=2_000)
    precision = x.T @ x + 1e-3 * np.eye(10)
    covariance = np.linalg.inv(precision)
    mean = covariance @ (x.T @ y)
    values = np.linalg.eigvalsh(precision)
    target = _posterior(
        lambda w, row: -0.5 * (row["y"] - row["x"] @ w) ** 2,
        lambda w: -0.5e-3 * jnp.sum(w**2),
        x=x, y=y,
    )  # fmt: skip
    return Case(
        target, jnp.asarray(mean, jnp.float32), mean, np.sqrt(np.diag(covariance)),
        values[-1], values[0], 50_000, 100,
    )  # fmt: skip


def funnel(folders: Folders) -> Case:
    """Neal's: v ~ N(0, 1.5²), nine x ~ N(0, e^v). Asked about v."""

    def potential(theta):
        v, x = theta[0], theta[1:]
        return v**2 / (2 * 1.5**2) + 0.5 * jnp.exp(-v) * jnp.sum(x**2) + 4.5 * v

    return Case(
        sghmc.Potential(potential), jnp.zeros(10), np.zeros(1), np.array([1.5]),
        math.exp(1.5), 1 / 1.5**2, 400_000, keep=lambda theta: theta[:1],
    )  # fmt: skip


def banana(folders: Folders) -> Case:
    """x ~ N(0, 1), y | x ~ N(x², 0.3²)."""

    def potential(theta):
        return theta[0] ** 2 / 2 + (theta[1] - theta[0] ** 2) ** 2 / (2 * 0.09)

    return Case(
        sghmc.Potential(potential), jnp.zeros(2), np.array([0.0, 1.0]),
        np.array([1.0, math.sqrt(2.09)]), (1 + 4) / 0.09, 1.0, 400_000,
    )  # fmt: skip


def double_well(folders: Folders) -> Case:
    """U = θ⁴ − 2θ²."""
    theta = np.linspace(-4, 4, 4_001)
    weight = np.exp(2 * theta**2 - theta**4)
    deviation = math.sqrt(np.sum(weight * theta**2) / np.sum(weight))
    return Case(
        sghmc.Potential(lambda x: jnp.sum(x**4 - 2 * x**2)), jnp.ones(1), np.zeros(1),
        np.array([deviation]), 8.0, 1.0, 400_000,
    )  # fmt: skip


def logistic(folders: Folders) -> Case:
    """100,000 rows, ten inputs. By importance sampling around the mode, where it is Gaussian."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100_000, 10)).astype(np.float32)
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    y = rng.random(100_000) < 1 / (1 + np.exp(-x @ (rng.normal(size=10) / 2)))
    known = folders.remembered("logistic", lambda: _logistic_truth(rng, x.astype(np.float64), y))
    target = _posterior(
        lambda w, row: row["y"] * (row["x"] @ w) - jax.nn.softplus(row["x"] @ w),
        lambda w: -0.5 * jnp.sum(w**2),
        x=x, y=y,
    )  # fmt: skip
    values = known["curvatures"]
    return Case(
        target, jnp.asarray(known["mode"], jnp.float32), known["mean"], known["deviation"],
        values[-1], values[0], 2_000, 500,
    )  # fmt: skip


def _logistic_truth(rng, wide, y) -> dict[str, Any]:
    def value(w):
        score = w @ wide.T
        return np.sum(np.logaddexp(0, score) - y * score, -1) + np.sum(w**2, -1) / 2

    w, precision = np.zeros(10), np.eye(10)
    for _ in range(15):
        p = 1 / (1 + np.exp(-wide @ w))
        precision = (wide * (p * (1 - p))[:, None]).T @ wide + np.eye(10)
        w = w - np.linalg.solve(precision, wide.T @ (p - y) + w)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    z = rng.normal(size=(1_000, 10))
    z = np.concatenate([z, -z])
    draws = w + z @ factor.T
    log = np.concatenate([-value(some) for some in np.split(draws, 40)]) + np.sum(z**2, 1) / 2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    # The Gaussian's moments, corrected by what weights change: their noise is that of the change.
    mean = w + (weight - 1 / len(z)) @ (draws - w)
    square = np.sum(factor**2, 1) + (weight - 1 / len(z)) @ (draws - w) ** 2 - (mean - w) ** 2
    return {
        "mode": w, "mean": mean, "deviation": np.sqrt(square),
        "curvatures": np.linalg.eigvalsh(precision),
    }  # fmt: skip


def hierarchical(folders: Folders) -> Case:
    """20 groups of 50 rows: y ~ N(μ + τzⱼ, 1). Given τ all is Gaussian: quadrature over log τ."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(20), 50)
    y = 1 + 0.3 * rng.normal(size=20)[group] + rng.normal(size=1_000)
    means = y.reshape(20, 50).mean(1)

    log_taus = np.linspace(-7, 2, 2_001)
    rows = []
    for tau in np.exp(log_taus):
        spread = tau**2 + 1 / 50  # of a group's mean around μ
        precision = 20 / spread + 1 / 100
        center = means.sum() / spread / precision
        shrink = tau**2 / spread
        log = -10 * np.log(spread) - 0.5 * np.log(precision) - np.sum(means**2) / (2 * spread)
        log += center**2 * precision / 2 - (np.log(tau) + 1) ** 2 / 2
        # Of (μ, zⱼ) given τ: zⱼ = shrink (ȳⱼ − μ)/τ + N(0, 1 − shrink).
        z = shrink * (means - center) / tau
        variance = (1 - shrink) + (shrink / tau) ** 2 / precision
        rows.append((log, center, 1 / precision, *z, *np.full(20, variance)))
    log, center, spread, *rest = np.array(rows).T
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    first = np.array([center, log_taus, *rest[:20]])
    second = np.array([spread, np.zeros_like(log_taus), *rest[20:]]) + first**2
    mean = first @ weight
    deviation = np.sqrt(second @ weight - mean**2)

    def log_likelihood(theta, row):
        effect = theta[2:].at[row["group"].astype(jnp.int32)].get(mode="promise_in_bounds")
        return -0.5 * (row["y"] - theta[0] - jnp.exp(theta[1]) * effect) ** 2

    def log_prior(theta):
        return -0.5 * (theta[0] ** 2 / 100 + (theta[1] + 1) ** 2 + jnp.sum(theta[2:] ** 2))

    target = _posterior(log_likelihood, log_prior, y=y, group=group)
    start = jnp.asarray(mean, jnp.float32)
    values = np.linalg.eigvalsh(_hessian(target, start))
    return Case(target, start, mean, deviation, values[-1], 1.0, 40_000, 100)


def mixture(folders: Folders) -> Case:
    """Two means of which only the sum is well known (Welling & Teh): two modes, by quadrature."""
    rng = np.random.default_rng(3)
    x = np.where(rng.random(100) < 0.5, 0.0, 1.0) + math.sqrt(2) * rng.normal(size=100)

    def log_likelihood(theta, row):
        away = jnp.stack([row["x"] - theta[0], row["x"] - theta[0] - theta[1]])
        return jax.nn.logsumexp(-(away**2) / 4)

    first, second = np.linspace(-3, 4, 400), np.linspace(-5, 5, 400)
    a, b = np.meshgrid(first, second, indexing="ij")
    log = -(a**2) / 20 - b**2 / 2
    for each in x:
        log += np.logaddexp(-((each - a) ** 2) / 4, -((each - a - b) ** 2) / 4)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    points = np.array([a.ravel(), b.ravel()])
    mean = points @ weight.ravel()
    deviation = np.sqrt(points**2 @ weight.ravel() - mean**2)
    target = _posterior(
        log_likelihood, lambda theta: -(theta[0] ** 2) / 20 - theta[1] ** 2 / 2, x=x
    )
    return Case(target, jnp.array([0.0, 1.0]), mean, deviation, 60.0, 2.0, 80_000, 10)


def network(folders: Folders) -> Case:
    """Six inputs, ten tanh units, the set "yacht", noise of sd 0.3; asked about predictions."""
    assert folders.data is not None
    with np.load(folders.data / "yacht.npz") as file:
        x, y = file["x"], file["y"].ravel()
        held = np.unpackbits(file["is_test"], axis=1, count=int(file["num_rows"])).astype(bool)[0]
    x, y = (x - x[~held].mean(0)) / x[~held].std(0), (y - y[~held].mean()) / y[~held].std()
    size = x.shape[1]

    def outputs(theta, x):
        first, bias = theta[: 10 * size].reshape(size, 10), theta[10 * size : 10 * size + 10]
        return jnp.tanh(x @ first + bias) @ theta[10 * size + 10 : -1] + theta[-1]

    target = _posterior(
        lambda theta, row: -0.5 * ((row["y"] - outputs(theta, row["x"])) / 0.3) ** 2,
        lambda theta: -0.5 * jnp.sum(theta**2),
        x=x[~held], y=y[~held],
    )  # fmt: skip
    points = jnp.asarray(x[held], jnp.float32)
    keep = jax.jit(lambda theta: outputs(theta, points))

    def truth() -> dict[str, Any]:
        guess = jax.random.normal(jax.random.key(0), (10 * size + 21,))
        start = find_mode(target, 0.3 * guess).position
        values = np.linalg.eigvalsh(_hessian(target, start))
        sampler = sghmc.HMC(0.5 / math.sqrt(values[-1]), 128, jitter=0.2)
        run = sghmc.sample(
            jax.random.key(1), target, sampler, start, keep=keep, num_samples=NUM_REFERENCE,
            num_burnin=200, num_chains=16, progress=False,
        )  # fmt: skip
        looked = np.moveaxis(np.asarray(run.positions, np.float64), -1, 0)
        found = convergence.summarize(list(looked))
        return {"start": start, "stiffest": values[-1], **found}

    known = folders.remembered("network", truth)
    return Case(
        target, jnp.asarray(known["start"]), known["mean"], known["sd"], float(known["stiffest"]),
        1.0, 40_000, 50, keep=keep,
    )  # fmt: skip


def _hessian(target, start) -> np.ndarray:
    return np.asarray(jax.hessian(target.potential)(start), np.float64)


CASES = {
    "Gaussian": gaussian,
    "funnel": funnel,
    "banana": banana,
    "double well": double_well,
    "logistic": logistic,
    "hierarchical": hierarchical,
    "mixture": mixture,
    "network": network,
}
