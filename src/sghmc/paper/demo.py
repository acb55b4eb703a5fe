"""The demonstration: a posterior over a million rows, by "auto" and by HMC in the same seconds.

It is a linear regression on generated rows, whose posterior is known by linear algebra:

    y = xᵀβ + N(0, 1),   β ~ N(0, PRIOR_SD²)
    β | data ~ N(m, Λ⁻¹),   Λ = XᵀX + I/PRIOR_SD²,   m = Λ⁻¹Xᵀy

Neighbouring columns are correlated and each has its own unit, so the posterior is as badly scaled
as those of real tables.

`"auto"` starts from 0 without any knowledge, and all its time counts. HMC needs a pass over all
rows for every gradient. It gets what NUTS would have to find: a start, the scale of every
coefficient, the step size and the length of a trajectory; its compilation does not count. Both are
compared to the exact posterior.
"""

import dataclasses
import itertools
import math
import pathlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import display as html
from sghmc import paper
from sghmc.paper import draw
from sghmc.posterior.posterior import Posterior
from sghmc.results.samples import Samples
from sghmc.samplers.hmc import HMC

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PRIOR_SD = 100.0
_UNIT_DECADES = 1.0
"""Decimal exponents of the columns' units lie between minus this and this."""
_CHUNK_ROWS = 1 << 16
"""Number of rows that are converted to double precision at a time."""


class Gaussian(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def correlation(self) -> np.ndarray:
        return self.covariance / np.outer(self.sd, self.sd)


class Regression(NamedTuple):
    x: np.ndarray
    y: np.ndarray

    def posterior(self) -> Posterior:
        def log_likelihood(coefficients, row):
            x, y = row
            return -0.5 * (y - x @ coefficients) ** 2

        def log_prior(coefficients):
            return -0.5 * jnp.sum(coefficients**2) / PRIOR_SD**2

        return Posterior(log_likelihood, log_prior, (self.x, self.y))

    def answer(self) -> Gaussian:
        """Return the exact posterior, in double precision."""
        width = self.x.shape[1]
        precision, vector = np.eye(width) / PRIOR_SD**2, np.zeros(width)
        for first in range(0, len(self.x), _CHUNK_ROWS):
            rows = self.x[first : first + _CHUNK_ROWS].astype(np.float64)
            precision += rows.T @ rows
            vector += rows.T @ self.y[first : first + _CHUNK_ROWS]
        covariance = np.linalg.inv(precision)
        return Gaussian(covariance @ vector, (covariance + covariance.T) / 2)


def make_regression(num_rows: int, num_columns: int, correlation: float, seed: int) -> Regression:
    """Generate an intercept and columns, each of which is correlated with the one before."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((num_columns, num_rows), np.float32)
    rest = np.float32(np.sqrt(1 - correlation**2))
    for i in range(2, num_columns):
        x[i] = np.float32(correlation) * x[i - 1] + rest * x[i]
    x[0] = 1
    units = 10 ** generator.uniform(-_UNIT_DECADES, _UNIT_DECADES, num_columns)
    units[0] = 1
    coefficients = generator.standard_normal(num_columns) / units
    x = np.ascontiguousarray((x * units.astype(np.float32)[:, None]).T)
    noise = generator.standard_normal(num_rows, np.float32)
    return Regression(x, x @ coefficients.astype(np.float32) + noise)


_SPARE_FACTOR = 1.1
"""Factor on the number of trajectories that fit into HMC's seconds; late draws are dropped."""
_HMC_STEP_SIZE = 1.3
"""Step size in standard deviations of the stiffest direction, where 2 is unstable.

At 1.3 nine tenths are accepted here, and a gradient is worth most: a tenth more than at 1, as much
as at 1.4.
"""
_NUM_TIMED_GRADIENTS = 5
"""Number of gradients that are timed to estimate how many trajectories fit into the seconds."""
_HMC_JITTER = 0.2
"""Relative jitter of HMC's step size, so that no direction is periodic in every trajectory."""
_NUM_COEFFICIENTS_SHOWN = 8
"""Number of coefficients in the table; the report's picture has all."""


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Settings: HMC has the seconds that "auto" took, within `least_seconds` and `most_seconds`.

    An answer is close if the root mean square error of its means, in standard deviations, is below
    `close_means`, and every standard deviation right to within `close_sds`.
    """

    num_rows: int = 1_000_000
    num_columns: int = 20
    correlation: float = 0.95
    num_samples: int = 2_000
    num_chains: int = 4
    least_seconds: float = 10.0
    most_seconds: float = 15.0
    close_means: float = 0.1
    close_sds: float = 0.1


QUICK = {"num_rows": 20_000, "num_columns": 4, "num_samples": 200, "least_seconds": 1.0}


def run(config: DemoConfig, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    """Run both samplers and compare them to the exact answer."""
    data_key, auto_key, hmc_key = jax.random.split(key, 3)
    seed = int(jax.random.bits(data_key))
    data = make_regression(config.num_rows, config.num_columns, config.correlation, seed)
    posterior, answer = data.posterior(), data.answer()
    began = time.perf_counter()
    samples = draw(
        auto_key,
        posterior,
        "auto",
        jnp.zeros(config.num_columns),
        num_samples=config.num_samples,
        num_chains=config.num_chains,
        progress=progress,
    )
    seconds = time.perf_counter() - began
    auto = judged(samples.positions, answer, seconds)
    limit = min(max(seconds, config.least_seconds), config.most_seconds)
    hmc = judged(_run_hmc(config, posterior, answer, limit, hmc_key, progress), answer, limit)
    return result_of(answer, auto, hmc, config)


def result_of(
    answer: Gaussian, auto: dict[str, Any], hmc: dict[str, Any], config: DemoConfig
) -> dict[str, Any]:
    """Return the result from what `judged` found of both samplers: which is close, and closer."""

    def is_close(found: dict[str, Any]) -> bool:
        return (
            found["num_draws"] > 0
            and found["rms_mean_error"] < config.close_means
            and found["worst_sd_error"] < config.close_sds
        )

    is_ahead = auto["num_draws"] > 0 and (
        hmc["num_draws"] == 0 or auto["rms_mean_error"] < hmc["rms_mean_error"]
    )
    return {
        "num_rows": config.num_rows,
        "exact": {"mean": answer.mean.tolist(), "sd": answer.sd.tolist()},
        "auto": auto,
        "hmc": hmc,
        "pair": _pair(answer),
        "auto_is_close": is_close(auto),
        "hmc_is_close": is_close(hmc),
        "auto_is_ahead": is_ahead,
    }


def fair_hmc(answer: Gaussian) -> HMC:
    """Return HMC set by the posterior's variances, its stiffest and its slowest direction.

    In units of standard deviations a direction has the frequency 1/√λ, λ an eigenvalue of the
    correlation matrix. A quarter turn of the slowest, π/2 √λ_max, makes draws nearly independent.
    """
    spread = np.sqrt(np.linalg.eigvalsh(answer.correlation))
    step_size = _HMC_STEP_SIZE * float(spread[0])
    num_steps = math.ceil(math.pi / 2 * spread[-1] / step_size)
    return HMC(step_size, num_steps, mass=1 / answer.sd**2, jitter=_HMC_JITTER)


def _run_hmc(
    config: DemoConfig, posterior: Posterior, answer: Gaussian, limit: float, key, progress
) -> np.ndarray:
    """Run HMC and return the draws that came within the limit."""
    sampler = fair_hmc(answer)
    starts = jnp.tile(jnp.asarray(answer.mean, jnp.float32), (config.num_chains, 1))
    pace = (sampler.num_steps + 1) * _seconds_a_gradient(posterior, starts)
    samples = draw(
        key,
        posterior,
        sampler,
        starts,
        init_axis=0,
        num_chains=config.num_chains,
        num_samples=math.ceil(_SPARE_FACTOR * limit / pace),
        progress=progress,
    )
    return within(samples, limit)


def _seconds_a_gradient(posterior: Posterior, starts: jax.Array) -> float:
    """Time a gradient of all chains together, without compilation."""
    gradient = jax.jit(jax.vmap(posterior.gradient))
    gradient(starts).block_until_ready()
    began = time.perf_counter()
    for _ in range(_NUM_TIMED_GRADIENTS):
        gradient(starts).block_until_ready()
    return (time.perf_counter() - began) / _NUM_TIMED_GRADIENTS


def within(samples: Samples, limit: float) -> np.ndarray:
    """Return the draws that came within the limit, counted from the end of compilation."""
    assert samples.clock is not None
    return samples.positions[:, samples.clock - samples.startup_seconds <= limit]


def judged(positions: np.ndarray, answer: Gaussian, seconds: float) -> dict[str, Any]:
    """Compare draws (chain, draw, coefficient) to the answer, in its standard deviations.

    `worth` is the number of independent draws whose means would be as far off on average. A single
    draw has no standard deviation: then only `seconds` and `num_draws` are returned.
    """
    draws = positions.reshape(-1, positions.shape[-1]).astype(np.float64)
    if len(draws) < 2:
        return {"seconds": seconds, "num_draws": 0}
    draws = (draws - answer.mean) / answer.sd
    errors, ratios = draws.mean(0), draws.std(0, ddof=1)
    square = float(np.mean(errors**2))
    step = max(1, len(draws) // _MAX_POINTS)
    return {
        "seconds": seconds,
        "num_draws": len(draws),
        "mean_errors": errors.tolist(),
        "sd_ratios": ratios.tolist(),
        "rms_mean_error": math.sqrt(square),
        "worst_sd_error": float(np.abs(ratios - 1).max()),
        "worth": 1 / square,
        "points": draws[::step, _pair(answer)["columns"]].tolist(),
    }


def _pair(answer: Gaussian) -> dict[str, Any]:
    """Return the two coefficients that are most correlated, and their correlation."""
    correlation = np.triu(answer.correlation, 1)
    i, j = np.unravel_index(np.abs(correlation).argmax(), correlation.shape)
    return {"columns": [int(i), int(j)], "correlation": float(correlation[i, j])}


def verdict(result: dict[str, Any]) -> str:
    """Return the result in words."""
    auto, hmc = result["auto"], result["hmc"]
    close = "has" if result["auto_is_close"] else "DOES NOT HAVE"
    words = (
        f'In {auto["seconds"]:.1f} s "auto" {close} the posterior of '
        f"{len(result['exact']['sd'])} coefficients given {result['num_rows']:,} rows: "
        f"{_distance(auto)}."
    )
    if hmc["seconds"] < auto["seconds"]:
        words += " So as not to take too long, HMC had less time."
    also = " That is close, too." if result["hmc_is_close"] else ""
    ahead = "" if result["auto_is_ahead"] else ' HERE HMC IS AHEAD OF "auto".'
    return words + (
        f" Exact HMC, given all that it could adapt to, after {hmc['seconds']:.1f} s: "
        f"{_distance(hmc)}.{also}{ahead}"
    )


def _distance(found: dict[str, Any]) -> str:
    if not found["num_draws"]:
        return "no draw yet"
    return (
        f"means {found['rms_mean_error']:.3f} standard deviations off, as those of "
        f"{found['worth']:,.0f} independent draws would be, and standard deviations off by at most "
        f"{100 * found['worst_sd_error']:.1f} %"
    )


def table(result: dict[str, Any]) -> "Table":
    """Return a table of some coefficients, and of all of them together."""
    found = [result[name] for name in ("auto", "hmc")]

    def both(shown) -> list[str]:
        return [shown(each) if each["num_draws"] else "–" for each in found]

    rows = []
    exact = zip(result["exact"]["mean"], result["exact"]["sd"], strict=True)
    for i, (mean, sd) in enumerate(itertools.islice(exact, _NUM_COEFFICIENTS_SHOWN)):
        errors = both(lambda each, i=i: f"{each['mean_errors'][i]:+.2f}")
        ratios = both(lambda each, i=i: f"{each['sd_ratios'][i]:.2f}")
        rows.append((f"coefficient {i}", f"{mean:.4f}", f"{sd:.4f}", *errors, *ratios))
    errors = both(lambda each: f"{each['rms_mean_error']:.3f}")
    ratios = both(lambda each: f"{1 + each['worst_sd_error']:.2f}")
    rows.append(("all: rms, worst", "", "", *errors, *ratios))
    headings = ("", "mean", "sd", "auto off", "HMC off", "auto sd", "HMC sd")
    title = f"A posterior over {result['num_rows']:,} rows (errors in exact sds)"
    return paper.table(title, headings, rows)


def page(config: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the report as HTML."""
    words = '"auto" has the posterior' if result["auto_is_close"] else '"auto" misses the posterior'
    return html.page(
        "Demonstration: a posterior over many rows",
        [
            html.verdict(words, result["auto_is_close"] and result["auto_is_ahead"]),
            html.paragraph(verdict(result)),
            html.section("The same seconds", paper.drawing(plot(result), "draws and errors")),
            html.section("Some coefficients", paper.rich_table(table(result))),
            html.section("Settings", html.facts(config)),
        ],
    )


# The picture, for bright and dark pages alike: its background is transparent.

_MAX_POINTS = 600
"""Largest number of points in a cloud: more would be one blot, and a larger file."""
_PICTURE_INCHES = (8, 3.1)
"""Size of the picture: 800 pixels wide on a page, where a point is a pixel and a third."""
_INK = "#808890"
"""Color that is visible on white and on black."""
_COLORS = {"auto": "#d55e00", "hmc": "#3d8fd1"}
"""Colors that are visible on white and on black, and distinct for the color-blind."""
_LABELS = {"auto": '"auto"', "hmc": "exact HMC"}


def plot(result: dict[str, Any]) -> "Figure":
    """Draw the draws of the two most correlated coefficients, and the errors of all."""
    with html.inked(_INK, font_size=8):
        figure, axes = paper.panels(3, _PICTURE_INCHES)
        for axis, name in zip(axes, _LABELS, strict=False):
            _draw_cloud(axis, name, result)
        _draw_errors(axes[-1], result)
    return figure


def save_picture(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture for a page 800 pixels wide, at two screen pixels for each."""
    plot(result).savefig(path, dpi=200, transparent=True)


def _draw_cloud(axis, name: str, result: dict[str, Any]) -> None:
    found, pair = result[name], result["pair"]
    for radius in (1, 2, 3):
        axis.plot(*_ellipse(radius, pair["correlation"]), color=_INK, linewidth=0.8)
    if found["num_draws"]:
        points = np.array(found["points"])
        size = 2 if len(points) > _MAX_POINTS / 2 else 8
        axis.scatter(*points.T, s=size, color=_COLORS[name], linewidths=0)
    else:
        axis.text(0, 0, "no draw yet", ha="center", va="center")
    axis.text(0.03, 0.03, "ellipses: exact", transform=axis.transAxes)
    i, j = pair["columns"]
    limits = (-4.2, 4.2)  # in standard deviations
    axis.set(xlim=limits, ylim=limits, aspect="equal")
    axis.set(xlabel=f"coefficient {i}, exact sds", ylabel=f"coefficient {j}")
    title = f"{_LABELS[name]}: {found['num_draws']:,} draws in {found['seconds']:.0f} s"
    axis.set_title(title, color=_COLORS[name], fontsize=9, fontweight="bold")


def _ellipse(radius: float, correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points at distance `radius` from the mean of two correlated standard normals."""
    angle = np.linspace(0, 2 * math.pi, 200)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    return x, correlation * x + math.sqrt(1 - correlation**2) * y


def _draw_errors(axis, result: dict[str, Any]) -> None:
    """Draw a point for each coefficient: the nearer to the cross, the better."""
    axis.axvline(0, color=_INK, linewidth=0.8)
    axis.axhline(1, color=_INK, linewidth=0.8)
    shown = [name for name in reversed(_LABELS) if result[name]["num_draws"]]
    for name in shown:
        found, style = result[name], {"color": _COLORS[name], "markersize": 3.5}
        axis.plot(found["mean_errors"], found["sd_ratios"], "o", label=_LABELS[name], **style)
    reach = max(map(abs, axis.get_xlim()))
    axis.set(xlim=(-reach, reach), xlabel="error of the mean, exact sds", ylabel="sd / exact sd")
    axis.set_title(f"all {len(result['exact']['sd'])} coefficients", fontsize=9)
    if shown:
        axis.legend(frameon=False, loc="best")
