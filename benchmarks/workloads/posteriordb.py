"""Posteriors of posteriordb, whose answers are its reference draws, for `verdicts.py`.

They need `$SGHMC_DATA/posteriordb/*.json`: data, and of 10,000 reference draws mean and standard
deviation of each parameter. The models are the Stan programs of that name in stan-dev/posteriordb.
"""

import functools
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import stats
from jax.scipy.special import logsumexp

import sghmc
from workloads.known import Known


def _half_cauchy(log_sigma, scale):
    return log_sigma - jnp.log1p((jnp.exp(log_sigma) / scale) ** 2)


def _regression(columns, y, log_prior=lambda beta: 0.0, prior_sd=lambda log_sigma: log_sigma):
    """A normal regression on these columns; flat priors of β and σ unless they are given."""
    x = np.stack(np.broadcast_arrays(*columns), -1).astype(np.float32)

    def log_likelihood(p, row):
        return stats.norm.logpdf(row["y"], row["x"] @ p["beta"], jnp.exp(p["log_sigma"]))

    target = sghmc.Posterior(
        log_likelihood,
        lambda p: log_prior(p["beta"]) + prior_sd(p["log_sigma"]),
        {"x": x, "y": np.asarray(y, np.float32)},
    )
    # A start as a user gives it: a mean for the intercept, the scale of y for its noise.
    beta = jnp.zeros(x.shape[1])
    init = {"beta": beta, "log_sigma": jnp.log(jnp.std(jnp.asarray(y, jnp.float32)))}
    return target, init, lambda p: {"beta": p["beta"], "sigma": jnp.exp(p["log_sigma"])}


def _cauchy_sd(log_sigma):
    return _half_cauchy(log_sigma, 2.5)


def _earnings(name, d):
    height, male, earn = d["height"], d["male"], d["earn"]
    logs = np.log(earn)
    z = (height - height.mean()) / height.std(ddof=1)
    return {
        "earn_height": lambda: _regression([1.0, height], earn),
        "log10earn_height": lambda: _regression([1.0, height], np.log10(earn)),
        "logearn_height": lambda: _regression([1.0, height], logs),
        "logearn_height_male": lambda: _regression([1.0, height, male], logs),
        "logearn_interaction_z": lambda: _regression([1.0, z, male, z * male], logs),
        "logearn_logheight_male": lambda: _regression([1.0, np.log(height), male], logs),
    }[name]()


def _kidiq(name, d):
    y, hs, iq = d["kid_score"], d["mom_hs"], d["mom_iq"]
    if name == "kidscore_mom_work":
        return _regression([1.0, *((d["mom_work"] == level) * 1.0 for level in (2, 3, 4))], y)
    if name.startswith("kidscore_interaction_c"):
        is_second = name.endswith("c2")
        hs = hs - (0.5 if is_second else hs.mean())
        iq = iq - (100 if is_second else iq.mean())
        return _regression([1.0, hs, iq, hs * iq], y)
    columns = {
        "kidscore_interaction": [1.0, hs, iq, hs * iq],
        "kidscore_momhs": [1.0, hs],
        "kidscore_momhsiq": [1.0, hs, iq],
    }[name]
    return _regression(columns, y, prior_sd=_cauchy_sd)


def _mesquite(name, d):
    shape = [d[key] for key in ("diam1", "diam2", "canopy_height", "total_height", "density")]
    if name == "mesquite":
        return _regression([1.0, *shape, d["group"]], d["weight"])
    first, second, canopy, total, density = map(np.log, shape)
    volume, area = first + second + canopy, first + second
    columns = {
        "logmesquite": [first, second, canopy, total, density, d["group"]],
        "logmesquite_logva": [volume, area, d["group"]],
        "logmesquite_logvash": [volume, area, first - second, total, d["group"]],
        "logmesquite_logvolume": [volume],
    }[name]
    return _regression([1.0, *columns], np.log(d["weight"]))


def _nes(name, d):
    ages = [(d["age_discrete"] == level) * 1.0 for level in (2, 3, 4)]
    columns = [1.0, d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]
    return _regression(columns, d["partyid7"])


def _kilpisjarvi(name, d):
    def log_prior(beta):
        alpha = stats.norm.logpdf(beta[0], d["pmualpha"], d["psalpha"])
        return alpha + stats.norm.logpdf(beta[1], d["pmubeta"], d["psbeta"])

    target, init, read = _regression([1.0, d["x"]], d["y"], log_prior)

    def named(p):
        found = read(p)
        return {
            "alpha": found["beta"][0], "beta": found["beta"][1], "sigma": found["sigma"],
        }  # fmt: skip

    return target, init, named


def _blr(name, d):
    columns = list(d["X"].T)
    return _regression(
        columns,
        d["y"],
        lambda beta: jnp.sum(stats.norm.logpdf(beta, 0, 10)),
        lambda log_sigma: log_sigma + stats.norm.logpdf(jnp.exp(log_sigma), 0, 10),
    )


def _autoregression(name, d):
    y, lags = d["y"], int(d["K"])
    columns = [y[lags - k : len(y) - k] for k in range(1, lags + 1)]

    def log_prior(beta):
        return jnp.sum(stats.norm.logpdf(beta, 0, 10))

    target, init, read = _regression([1.0, *columns], y[lags:], log_prior, _cauchy_sd)

    def named(p):
        found = read(p)
        return {
            "alpha": found["beta"][0], "beta": found["beta"][1:], "sigma": found["sigma"],
        }  # fmt: skip

    return target, init, named


def _arma(name, d):
    y = jnp.asarray(d["y"], jnp.float32)

    def read(p):
        return {name: p[name] for name in ("mu", "phi", "theta")} | {
            "sigma": jnp.exp(p["log_sigma"])
        }

    def potential(p):
        first = y[0] - p["mu"] - p["phi"] * p["mu"]

        def step(error, pair):
            error = pair[1] - (p["mu"] + p["phi"] * pair[0] + p["theta"] * error)
            return error, error

        errors = jnp.append(lax.scan(step, first, (y[:-1], y[1:]))[1], first)
        prior = stats.norm.logpdf(p["mu"], 0, 10) + _cauchy_sd(p["log_sigma"])
        prior += stats.norm.logpdf(p["phi"], 0, 2) + stats.norm.logpdf(p["theta"], 0, 2)
        return -prior - jnp.sum(stats.norm.logpdf(errors, 0, jnp.exp(p["log_sigma"])))

    zero = jnp.zeros(())
    init = {"mu": zero, "phi": zero, "theta": zero, "log_sigma": zero}
    return sghmc.Potential(potential), init, read


def _gaussian_process(name, d):
    x, y = jnp.asarray(d["x"], jnp.float32), jnp.asarray(d["y"], jnp.float32)

    def potential(p):
        rho, alpha, sigma = (jnp.exp(p[name]) for name in ("rho", "alpha", "sigma"))
        covariance = alpha**2 * jnp.exp(-((x[:, None] - x[None]) ** 2) / 2 / rho**2)
        covariance += sigma * jnp.eye(len(x))
        density = stats.multivariate_normal.logpdf(y, jnp.zeros(len(x)), covariance)
        prior = 24 * p["rho"] - 4 * rho + stats.norm.logpdf(alpha, 0, 2)
        prior += stats.norm.logpdf(sigma, 0, 1) + p["rho"] + p["alpha"] + p["sigma"]
        return -(density + prior)

    zero = jnp.zeros(())
    init = {"rho": zero, "alpha": zero, "sigma": zero}
    return sghmc.Potential(potential), init, lambda p: jax.tree.map(jnp.exp, p)


def _forward(rows, emissions):
    """Log-likelihood of a hidden Markov chain with a flat start; `rows` are its transitions."""

    def step(log_state, emission):
        moved = logsumexp(log_state[:, None] + jnp.log(rows), 0)
        return moved + emission, None

    return logsumexp(lax.scan(step, emissions[0], emissions[1:])[0])


_TWO_STATES = sghmc.transforms.Space(
    {"theta1": sghmc.transforms.Simplex(), "theta2": sghmc.transforms.Simplex()}
)


def _pair(first, log_gap):
    """Two positive numbers in ascending order."""
    return jnp.exp(first) + jnp.array([0.0, 1.0]) * jnp.exp(log_gap)


def _markov(names, log_density):
    """Two hidden states; of each name a pair of positive numbers in ascending order."""

    def split(p):
        values = {name: p[name] for name in ("theta1", "theta2")}
        return values | {name: _pair(*p[name]) for name in names}

    def potential(p):
        pairs = sum(jnp.sum(p[name]) for name in names)
        values = split(p)
        rows = jnp.stack([values["theta1"], values["theta2"]])
        prior, emissions = log_density(values)
        return -prior - pairs - _forward(rows, emissions)

    half = jnp.full(2, 0.5)
    start = {"theta1": half, "theta2": half} | {name: jnp.zeros(2) for name in names}
    space = _TWO_STATES
    init = space.unconstrain(start)
    return space.potential(potential), init, lambda p: split(space.constrain(p))


def _drives(name, d):
    u, v = (jnp.asarray(d[name], jnp.float32)[:, None] for name in ("u", "v"))
    alpha = jnp.asarray(d["alpha"], jnp.float32)

    def log_density(p):
        prior = jnp.sum((alpha - 1) * jnp.log(jnp.stack([p["theta1"], p["theta2"]])))
        for rate in (p["phi"], p["lambda"]):
            prior += jnp.sum(stats.norm.logpdf(rate, jnp.array([0.0, 3.0]), 1.0))
        emissions = jnp.log(p["phi"]) - p["phi"] * u + jnp.log(p["lambda"]) - p["lambda"] * v
        return prior, emissions

    return _markov(("phi", "lambda"), log_density)


def _markov_example(name, d):
    y = jnp.asarray(d["y"], jnp.float32)[:, None]

    def log_density(p):
        prior = jnp.sum(stats.norm.logpdf(p["mu"], jnp.array([3.0, 10.0]), 1.0))
        return prior, stats.norm.logpdf(y, p["mu"], 1.0)

    return _markov(("mu",), log_density)


def _kinetics(name, d):
    """One compartment, first-order absorption, Michaelis–Menten elimination; by Runge–Kutta."""
    times = np.concatenate([[d["t0"]], d["times"]])
    steps = jnp.asarray(np.diff(times)[:, None] / 12 * np.ones(12), jnp.float32)
    begins = jnp.asarray(times[:-1, None] + np.diff(times)[:, None] * np.arange(12) / 12)
    seen, dose, volume = jnp.log(jnp.asarray(d["C_hat"], jnp.float32)), d["D"], d["V"]

    def potential(logs):
        p = jax.tree.map(jnp.exp, logs)

        def slope(t, c):
            absorbed = jnp.exp(-p["k_a"] * t) * dose * p["k_a"] / volume
            return absorbed - p["V_m"] / volume * c / (p["K_m"] + c)

        def step(c, at):
            t, h = at
            first = slope(t, c)
            second = slope(t + h / 2, c + h / 2 * first)
            third = slope(t + h / 2, c + h / 2 * second)
            last = slope(t + h, c + h * third)
            return c + h / 6 * (first + 2 * second + 2 * third + last), None

        def interval(c, at):
            c, _ = lax.scan(step, c, at)
            return c, c

        _, found = lax.scan(interval, jnp.zeros(()), (begins.astype(jnp.float32), steps))
        prior = sum(_half_cauchy(leaf, 1.0) for leaf in jax.tree.leaves(logs))
        error = stats.norm.logpdf(seen, jnp.log(jnp.maximum(found, 1e-6)), p["sigma"])
        return -prior - jnp.sum(error)

    init = {name: jnp.zeros(()) for name in ("k_a", "K_m", "V_m", "sigma")}
    return sghmc.Potential(potential), init, lambda p: jax.tree.map(jnp.exp, p)


_MODELS = {
    "nes": _nes, "blr": _blr, "kilpisjarvi": _kilpisjarvi, "arK": _autoregression, "arma11": _arma,
    "gp_regr": _gaussian_process, "hmm_drive_0": _drives, "hmm_example": _markov_example,
    "one_comp_mm_elim_abs": _kinetics, "mesquite": _mesquite,
}  # fmt: skip


def _model(name: str) -> Callable[[str, dict[str, Any]], Any]:
    if name in _MODELS:
        return _MODELS[name]
    families = {"kidscore": _kidiq, "logmesquite": _mesquite}
    return next((make for word, make in families.items() if word in name), _earnings)


def _load(path: pathlib.Path) -> Known:
    content = json.loads(path.read_text())
    name = content["model_name"]
    data = {key: np.asarray(value, np.float64) for key, value in content["data"].items()}
    found = _model(name)(name, {key: x[()] for key, x in data.items()})
    moments: dict[str, dict[str, list[float]]] = {"mean": {}, "sd": {}}
    for entry, values in content["reference"].items():
        root = re.sub(r"\[.*", "", entry)
        for kind, by_name in moments.items():
            by_name.setdefault(root, []).append(values[kind])
    target, init, read = found
    return Known(target, init, read, moments["mean"], moments["sd"])


def posteriors() -> dict[str, Callable[[], Known]]:
    """Return every posterior whose file is there, by its name."""
    folder = pathlib.Path(os.environ.get("SGHMC_DATA", "../shared/data")) / "posteriordb"
    return {path.stem: functools.partial(_load, path) for path in sorted(folder.glob("*.json"))}
