"""Posteriors whose answers are known by a formula or by a sum over a grid, for `verdicts.py`."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

import sghmc

EULER = 0.5772156649015329


class Known(NamedTuple):
    """A target, a start, a reading of a draw by name, and mean and sd of what is read.

    Without a standard deviation (`sd` None) nothing that is said about one is right.
    """

    target: Any
    init: Any
    read: Callable[[Any], dict[str, Any]]
    mean: dict[str, Any]
    sd: dict[str, Any] | None


def _as_x(params) -> dict[str, Any]:
    return {"x": params}


def _of(target, init, mean, sd, read=_as_x) -> Known:
    def named(value) -> dict[str, Any]:
        return value if isinstance(value, dict) else {"x": value}

    return Known(target, init, read, named(mean), None if sd is None else named(sd))


def _potential(potential, init, mean, sd, read=_as_x) -> Known:
    return _of(sghmc.Potential(potential), init, mean, sd, read)


def _by_quadrature(log_density, grids: Iterable[np.ndarray], read=_as_x) -> Known:
    """A target of one or two numbers whose moments are sums over a grid; `read` takes both."""
    grids = list(grids)
    points = np.stack(np.meshgrid(*grids, indexing="ij"), -1).reshape(-1, len(grids))
    points = jnp.asarray(points, jnp.float32)
    logs = np.asarray(jax.vmap(log_density)(points), np.float64)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean, sd = {}, {}
    for name, found in jax.vmap(read)(points).items():
        values = np.asarray(found, np.float64).reshape(len(weights), -1)
        mean[name] = weights @ values
        sd[name] = np.sqrt(weights @ (values - mean[name]) ** 2)
    start = jnp.asarray([float(np.median(grid)) for grid in grids], jnp.float32)
    return _potential(lambda x: -log_density(x), start, mean, sd, read)


# By formula


def gaussian(size, condition) -> Known:
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(size, size)))
    precision = (rotation * np.geomspace(1, condition, size)) @ rotation.T
    matrix, mean = jnp.asarray(precision, jnp.float32), jnp.arange(size, dtype=jnp.float32)
    sd = np.sqrt(np.linalg.inv(precision).diagonal())

    def potential(x):
        return (x - mean) @ matrix @ (x - mean) / 2

    return _potential(potential, jnp.zeros(size), mean, sd)


def mixture(size, share, away, narrow) -> Known:
    """`share` N(0, I) + (1 − share) N(away, narrow² I)."""

    def potential(x):
        first = jnp.log(share) - jnp.sum(x**2) / 2
        rest = jnp.log(1 - share) - jnp.sum((x - away) ** 2) / 2 / narrow**2
        return -jnp.logaddexp(first, rest - size * jnp.log(narrow))

    mean = (1 - share) * away
    square = share + (1 - share) * (narrow**2 + away**2)
    ones = np.ones(size)
    return _potential(potential, jnp.zeros(size), mean * ones, np.sqrt(square - mean**2) * ones)


def banana() -> Known:
    def potential(x):
        return (x[0] / 2) ** 2 / 2 + (x[1] + 0.25 * (x[0] ** 2 - 4)) ** 2 / 2

    return _potential(potential, jnp.zeros(2), [0.0, 0.0], [2.0, 3**0.5])


def funnel(is_centred) -> Known:
    """Neal's, of nine numbers: centred or not, what is read is the same."""

    def potential(p):
        scale = jnp.exp(-p["v"] / 2) if is_centred else 1.0
        width = 4.5 * p["v"] if is_centred else 0.0
        return (p["v"] / 3) ** 2 / 2 + jnp.sum((p["x"] * scale) ** 2) / 2 + width

    init = {"v": jnp.zeros(()), "x": jnp.zeros(9)}
    return _potential(potential, init, {"v": 0.0}, {"v": 3.0}, lambda p: {"v": p["v"]})


def student(size, freedom) -> Known:
    def potential(x):
        return (freedom + 1) / 2 * jnp.sum(jnp.log1p(x**2 / freedom))

    sd = np.sqrt(freedom / (freedom - 2)) * np.ones(size) if freedom > 2 else None
    return _potential(potential, jnp.ones(size), np.zeros(size), sd)


def laplace() -> Known:
    return _potential(lambda x: jnp.sum(jnp.abs(x)), jnp.ones(3), np.zeros(3), np.full(3, 2**0.5))


def log_gamma(shape) -> Known:
    """The logarithm of Gamma numbers is skewed; their means and sds are known."""

    def potential(x):
        return jnp.sum(jnp.exp(x) - shape * x)

    mean, sd = np.full(2, shape), np.full(2, shape**0.5)
    return _potential(potential, jnp.zeros(2), mean, sd, lambda x: {"x": jnp.exp(x)})


def gumbel() -> Known:
    mean, sd = np.full(2, EULER), np.full(2, np.pi / 6**0.5)
    return _potential(lambda x: jnp.sum(x + jnp.exp(-x)), jnp.zeros(2), mean, sd)


def positive_exponential() -> Known:
    """Exponential numbers on their own scale, by a transform."""
    space = sghmc.transforms.Space(sghmc.transforms.Positive())
    target = space.potential(jnp.sum)
    init = space.unconstrain(jnp.ones(3))
    read = lambda z: {"x": space.constrain(z)}  # noqa: E731
    return _of(target, init, np.ones(3), np.ones(3), read)


def normal_mean(count) -> Known:
    """Mean of normal numbers with a known sd."""
    data = 2 + np.random.default_rng(0).normal(size=count).astype(np.float32)
    precision = count + 0.01
    target = sghmc.Posterior(
        lambda m, y: stats.norm.logpdf(y, m, 1.0), lambda m: stats.norm.logpdf(m, 0, 10.0), data
    )
    mean = data.sum(dtype=np.float64) / precision
    return _of(target, jnp.zeros(()), mean, precision**-0.5)


def ignores_example() -> Known:
    """All data in the log-likelihood of each: wrong, and said to be so."""
    data = np.random.default_rng(0).normal(size=400).astype(np.float32)
    target = sghmc.Posterior(
        lambda m, _: jnp.sum(stats.norm.logpdf(data, m, 1.0)),
        lambda m: stats.norm.logpdf(m, 0, 10.0),
        data,
    )
    return _of(target, jnp.zeros(()), data.mean(), 400**-0.5)


def sums_over_rows() -> Known:
    """The example has its part in the log-likelihood of all data, which counts N times."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x @ np.ones(3) + rng.normal(size=400)).astype(np.float32)
    target = sghmc.Posterior(
        lambda b, row: jnp.sum(stats.norm.logpdf(y, x @ b, 1.0)) + 0 * row,
        lambda b: jnp.sum(stats.norm.logpdf(b, 0, 10.0)),
        y,
    )
    covariance = np.linalg.inv(x.T @ x + 0.01 * np.eye(3))
    return _of(target, jnp.zeros(3), covariance @ x.T @ y, np.sqrt(covariance.diagonal()))


def linear(count, size) -> Known:
    """Normal noise of sd 1, a normal prior: data enter by their sums."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, size)).astype(np.float32)
    y = (x @ rng.normal(size=size) + rng.normal(size=count)).astype(np.float32)
    target = sghmc.Posterior(
        lambda b, row: stats.norm.logpdf(row["y"], row["x"] @ b, 1.0),
        lambda b: jnp.sum(stats.norm.logpdf(b, 0, 10.0)),
        {"x": x, "y": y},
    )
    wide = x.astype(np.float64)
    covariance = np.linalg.inv(wide.T @ wide + 0.01 * np.eye(size))
    return _of(target, jnp.zeros(size), covariance @ wide.T @ y, np.sqrt(covariance.diagonal()))


def rates(count, batch_mean) -> Known:
    """Poisson counts with a Gamma(2, 1) prior of their rate, sampled as its logarithm."""
    counts = np.random.default_rng(2).poisson(batch_mean, count).astype(np.float32)
    target = sghmc.Posterior(lambda z, y: y * z - jnp.exp(z), lambda z: 2 * z - jnp.exp(z), counts)
    shape, rate = 2 + counts.sum(dtype=np.float64), 1 + count
    read = lambda z: {"rate": jnp.exp(z)}  # noqa: E731
    return _of(target, jnp.zeros(()), {"rate": shape / rate}, {"rate": shape**0.5 / rate}, read)


def shares() -> Known:
    """Dirichlet shares of five classes as a softmax with one number held at 0."""
    counts = np.array([3.0, 10.0, 40.0, 1.0, 6.0])
    alpha, total = counts + 1, counts.sum() + 5

    def read(z):
        return {"share": jax.nn.softmax(jnp.append(z, 0.0))}

    def potential(z):
        return -jnp.sum(alpha * jnp.log(read(z)["share"]))  # the Jacobian is Π share

    mean = alpha / total
    sd = np.sqrt(mean * (1 - mean) / (total + 1))
    return _potential(potential, jnp.zeros(4), {"share": mean}, {"share": sd}, read)


def schools(is_centred) -> Known:
    """Eight schools, μ ~ N(0, 5), τ half-Cauchy(5): given τ all is normal, so one sum over τ."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    grid = np.linspace(-9, 6, 4_000)
    tau = np.exp(grid)[:, None]
    total = sigma**2 + tau**2
    precision = (1 / total).sum(1) + 1 / 25
    center = (y / total).sum(1) / precision
    logs = (-np.log(total) / 2 - y**2 / total / 2).sum(1) + precision * center**2 / 2
    logs += -np.log(precision) / 2 + grid - np.log1p((tau[:, 0] / 5) ** 2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    share = tau**2 / total
    first = share * y + (1 - share) * center[:, None]
    second = share * sigma**2 + (1 - share) ** 2 / precision[:, None] + first**2
    mean = {"mu": weights @ center, "theta": weights @ first, "log_tau": weights @ grid}
    sd = {
        "mu": np.sqrt(weights @ (1 / precision + center**2) - mean["mu"] ** 2),
        "theta": np.sqrt(weights @ second - mean["theta"] ** 2),
        "log_tau": np.sqrt(weights @ grid**2 - mean["log_tau"] ** 2),
    }

    def read(p):
        theta = p["raw"] if is_centred else p["mu"] + jnp.exp(p["log_tau"]) * p["raw"]
        return {"mu": p["mu"], "log_tau": p["log_tau"], "theta": theta}

    def potential(p):
        tau = jnp.exp(p["log_tau"])
        prior = p["log_tau"] - jnp.log1p((tau / 5) ** 2) + stats.norm.logpdf(p["mu"], 0, 5)
        own = (p["mu"], tau) if is_centred else (0.0, 1.0)
        prior += jnp.sum(stats.norm.logpdf(p["raw"], *own))
        return -prior - jnp.sum(stats.norm.logpdf(jnp.asarray(y), read(p)["theta"], sigma))

    init = {"mu": jnp.zeros(()), "log_tau": jnp.zeros(()), "raw": jnp.zeros(8)}
    return _potential(potential, init, mean, sd, read)


def ring() -> Known:
    def log_density(x):
        return -((jnp.sqrt(jnp.sum(x**2) + 1e-12) - 3) ** 2) / 2 / 0.5**2

    grid = np.linspace(-6, 6, 601)
    found = _by_quadrature(log_density, [grid, grid])
    return found._replace(init=jnp.array([3.0, 0.0]))


def separated() -> Known:
    """A logit of classes that a threshold separates: the prior alone bounds the slope."""
    x = jnp.linspace(-1, 1, 20)
    y = (x > 0).astype(jnp.float32)

    def log_density(b):
        logits = b[0] + b[1] * x
        likelihood = jnp.sum(y * logits - jax.nn.softplus(logits))
        return likelihood + jnp.sum(stats.norm.logpdf(b, 0, 5.0))

    return _by_quadrature(log_density, [np.linspace(-15, 15, 401), np.linspace(-5, 40, 601)])


def double_well(depth) -> Known:
    return _by_quadrature(
        lambda x: -depth * (x[0] ** 2 - 1) ** 2, [np.linspace(-3, 3, 4_001)]
    )._replace(init=jnp.ones(1))


def threshold() -> Known:
    """Binary outcomes of a logit with a standard-normal prior, two numbers."""
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=30), jnp.float32)
    y = jnp.asarray(rng.random(30) < 0.3, jnp.float32)

    def log_density(b):
        logits = b[0] + b[1] * x
        return jnp.sum(y * logits - jax.nn.softplus(logits)) - jnp.sum(b**2) / 2

    return _by_quadrature(log_density, [np.linspace(-6, 6, 501)] * 2)


FORMULAS: dict[str, Callable[[], Known]] = {
    "Gaussian, 2 numbers": lambda: gaussian(2, 10.0),
    "Gaussian, 50 numbers, condition 10⁴": lambda: gaussian(50, 1e4),
    "0.7 N(0, I) + 0.3 N(5, ½² I), 5 numbers": lambda: mixture(5, 0.7, 5.0, 0.5),
    "two modes 8 sds apart": lambda: mixture(1, 0.5, 8.0, 1.0),
    "two modes 2.5 sds apart": lambda: mixture(2, 0.5, 2.5, 1.0),
    "banana": banana,
    "Neal's funnel, centred": lambda: funnel(is_centred=True),
    "Neal's funnel, not centred": lambda: funnel(is_centred=False),
    "Student-t, 5 degrees of freedom": lambda: student(3, 5.0),
    "Cauchy": lambda: student(2, 1.0),
    "Laplace": laplace,
    "log Gamma(½)": lambda: log_gamma(0.5),
    "log Gamma(20)": lambda: log_gamma(20.0),
    "Gumbel": gumbel,
    "exponential, by a transform": positive_exponential,
    "normal mean, N = 500": lambda: normal_mean(500),
    "normal mean, N = 300,000": lambda: normal_mean(300_000),
    "log-likelihood that ignores its example": ignores_example,
    "log-likelihood that sums over rows": sums_over_rows,
    "linear, N = 2,000": lambda: linear(2_000, 5),
    "linear, N = 200,000": lambda: linear(200_000, 10),
    "Poisson rate, N = 50": lambda: rates(50, 0.1),
    "Poisson rate, N = 200,000": lambda: rates(200_000, 3.0),
    "Dirichlet, 5 classes": shares,
    "eight schools, centred": lambda: schools(is_centred=True),
    "eight schools, not centred": lambda: schools(is_centred=False),
    "ring": ring,
    "separated logit": separated,
    "double well, barrier 1": lambda: double_well(1.0),
    "double well, barrier 10": lambda: double_well(10.0),
    "logit, N = 30": threshold,
}
