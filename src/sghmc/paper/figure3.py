"""Fig. 3: SGLD and SGHMC on a bivariate Gaussian with correlation 0.9 and a noisy gradient.

For five settings each: the error of the covariance against the autocorrelation time 1 + Σρ_s, and
both from the exact law of the step. The time uses the known mean 0 and a fixed window of lags: over
all lags, with the sample mean removed, the sum would be ½ whatever the chain. `script_time` is what
the published script computes, 1 + Σ 2(1 − j/n) up to the first lag whose autocovariance is under
0.05: it counts lags instead of adding correlations, so it is no autocorrelation time. SGHMC's own
error is so small that at ten million steps Monte Carlo error is most of what is measured.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper, theory
from sghmc.gradients.noise import NoisyGradient
from sghmc.paper import Claim, draw
from sghmc.posterior.target import Potential
from sghmc.samplers import Sampler
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.sghmc import SGHMC

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

COVARIANCE = np.array([[1.0, 0.9], [0.9, 1.0]])
GRADIENT_NOISE = 1.0
# One target for all runs, so that the loop is compiled once for each sampler.
_TARGET = Potential(lambda theta: theta @ (np.linalg.inv(COVARIANCE).astype("f4") @ theta) / 2)
_ENTRIES = ((0, 0), (0, 1), (1, 1))
_BLOCK_DRAWS = 1 << 18
"""Number of draws that are converted to double precision at a time: 4 MB."""
_MIN_AUTOCOVARIANCE = 1e-8
"""Autocovariances below this share of the variance add nothing to a standard error."""
_SCRIPT_AUTOCOVARIANCE = 0.05
"""Autocovariance below which the published script stops counting lags."""


@dataclasses.dataclass(frozen=True)
class Figure3Config:
    """Settings: `num_steps` steps of one chain from 0, all kept, for each setting; V̂ is exact."""

    num_steps: int = 10_000_000
    windows: tuple[int, ...] = (200, 350, 600, 1000, 1600)
    sgld_step_sizes: tuple[float, ...] = tuple(0.18 * 0.8**i for i in range(5))
    sghmc_step_sizes: tuple[float, ...] = tuple(0.05 * 0.36**i for i in range(5))
    momentum_decays: tuple[float, ...] = tuple(0.05 * 0.6**i for i in range(5))
    num_first: int = 50
    first_step_size: float = 0.05
    first_momentum_decay: float = 0.035


QUICK = {"num_steps": 200_000}


def run(config: Figure3Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    keys = iter(jax.random.split(key, 2 * len(config.windows) + 2))
    result: dict[str, Any] = {"sgld": [], "sghmc": [], "first": {}}
    settings = {
        "sgld": [(size, None) for size in config.sgld_step_sizes],
        "sghmc": list(zip(config.sghmc_step_sizes, config.momentum_decays, strict=True)),
    }
    for name, tried in settings.items():
        for (step_size, decay), window in zip(tried, config.windows, strict=True):
            measured = _measure(config, _sampler(step_size, decay), window, next(keys), progress)
            result[name].append({"step_size": step_size, "momentum_decay": decay, **measured})
    for name, decay in (("sgld", None), ("sghmc", config.first_momentum_decay)):
        sampler = _sampler(config.first_step_size, decay)
        result["first"][name] = (
            _draw(sampler, config.num_first, next(keys), False).astype(float).tolist()
        )
    return result


def _sampler(step_size: float, momentum_decay: float | None) -> Sampler:
    """Return SGLD, or SGHMC where there is a momentum decay, that knows the gradient's noise."""
    if momentum_decay is None:
        return SGLD(step_size, gradient_noise=GRADIENT_NOISE)
    return SGHMC.from_learning_rate(step_size, momentum_decay, gradient_noise=GRADIENT_NOISE)


def _draw(sampler: Sampler, num_steps: int, key: jax.Array, progress: bool) -> np.ndarray:
    samples = draw(
        key,
        _TARGET,
        sampler,
        jnp.zeros(2),
        gradient=NoisyGradient(GRADIENT_NOISE),
        num_samples=num_steps,
        progress=progress,
    )
    return samples.positions[0]


def _measure(config, sampler, window, key, progress) -> dict[str, Any]:
    """Return autocorrelation time and error of one run, each with its exact value."""
    draws = _draw(sampler, config.num_steps, key, progress)
    law = theory.stationary_law(sampler, np.linalg.inv(COVARIANCE), GRADIENT_NOISE)
    lagged = autocovariances(draws, window)
    covariance = second_moments(draws)
    scores = (covariance - law.covariance) / covariance_errors(sampler, len(draws))
    return {
        "autocorrelation_time": float(np.mean(lagged.sum(axis=0) / lagged[0])),
        "exact_autocorrelation_time": float(law.autocorrelation_time.mean()),
        "covariance_error": float(np.abs(covariance - COVARIANCE).mean()),
        "exact_covariance_error": float(np.abs(law.covariance - COVARIANCE).mean()),
        "covariance": [float(covariance[entry]) for entry in _ENTRIES],
        "exact_covariance": [float(law.covariance[entry]) for entry in _ENTRIES],
        "covariance_z_scores": [float(scores[entry]) for entry in _ENTRIES],
        "script_time": float(np.mean([script_time(column, len(draws)) for column in lagged.T])),
    }


def _blocks(draws: np.ndarray, length: int, overlap: int = 0):
    """Yield parts of the draws in double precision, so that memory stays that of the draws."""
    for start in range(0, len(draws), length):
        yield draws[start : start + length + overlap].astype(np.float64)


def second_moments(draws: np.ndarray) -> np.ndarray:
    """Return the sample covariance about the known mean 0."""
    return np.sum([part.T @ part for part in _blocks(draws, _BLOCK_DRAWS)], axis=0) / len(draws)


def autocovariances(draws: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of θ_t θ_{t+s} for lags s = 0, …, window, by FFT of blocks."""
    size = max(_BLOCK_DRAWS, 1 << (2 * window).bit_length())
    length = size - window
    total = np.zeros((window + 1, draws.shape[1]))
    for ahead in _blocks(draws, length, window):
        here = np.fft.rfft(ahead[:length], size, axis=0)
        products = np.fft.irfft(here.conj() * np.fft.rfft(ahead, size, axis=0), size, axis=0)
        total += products[: window + 1]
    return total / (len(draws) - np.arange(window + 1))[:, None]


def covariance_errors(sampler: Sampler, num_steps: int) -> np.ndarray:
    """Return Monte Carlo standard errors of the sample covariance's entries, from the exact law.

    For a stationary Gaussian chain with Γ_s = Cov(θ_{t+s}, θ_t), n times the variance of entry ij
    is Σ_s (Γ_s,ii Γ_s,jj + Γ_s,ij Γ_s,ji) over all lags, negative ones included.
    """
    precision = np.linalg.inv(COVARIANCE)
    step = theory.affine_map(sampler, precision, GRADIENT_NOISE).transition
    lagged = theory.stationary_law(sampler, precision, GRADIENT_NOISE).state_covariance
    total, size = np.zeros((2, 2)), np.abs(lagged).max()
    weight = 1
    while np.abs(lagged).max() > _MIN_AUTOCOVARIANCE * size:
        part = lagged[:2, :2]
        total += weight * (np.outer(part.diagonal(), part.diagonal()) + part * part.T)
        lagged, weight = step @ lagged, 2
    return np.sqrt(total / num_steps)


def script_time(autocovariance: np.ndarray, num_steps: int) -> float:
    """Return the published script's number; its lag j averages the autocovariances beside it."""
    beside = (autocovariance[:-2] + autocovariance[2:]) / 2
    is_small = np.append(beside < _SCRIPT_AUTOCOVARIANCE, True)
    lags = np.arange(1, is_small.argmax() + 1)
    return float(1 + np.sum(2 * (1 - lags / num_steps)))


def plot(result: dict[str, Any]) -> "Figure":
    figure, (error_axis, first_axis) = paper.panels(2, (11, 4.6))
    for name, (label, color, marker) in _STYLES.items():
        points = result[name]
        styles = {"": {"marker": marker, "label": label}}
        styles["exact_"] = {"linestyle": ":", "label": f"{label}, exact law"}
        for prefix, style in styles.items():
            x, y = (
                [point[prefix + quantity] for point in points]
                for quantity in ("autocorrelation_time", "covariance_error")
            )
            error_axis.loglog(x, y, color=color, **style)
        x, y = zip(*result["first"][name], strict=True)
        style = {"marker": marker, "markersize": 5, "fillstyle": "none", "label": label}
        first_axis.plot(x, y, color=color, linewidth=0.5, **style)
    error_axis.set(xlabel="autocorrelation time", ylabel="mean absolute error of the covariance")
    error_axis.set_xticks([2, 5, 10, 20], labels=["2", "5", "10", "20"])
    error_axis.set_xticks([], minor=True)
    error_axis.legend(frameon=False)
    _contours(first_axis)
    first_axis.set(xlabel=r"$\theta_1$", ylabel=r"$\theta_2$", xlim=(-2.6, 2.6), ylim=(-2.6, 2.6))
    first_axis.set_aspect("equal")
    first_axis.set_title(f"first {len(result['first']['sgld'])} samples")
    first_axis.legend(frameon=False, loc="upper left")
    return figure


def _contours(axis) -> None:
    grid = np.linspace(-3, 3, 200)
    x, y = np.meshgrid(grid, grid)
    precision = np.linalg.inv(COVARIANCE)
    square = precision[0, 0] * x**2 + 2 * precision[0, 1] * x * y + precision[1, 1] * y**2
    axis.contour(x, y, square, levels=[0.25, 1, 2.25, 4, 6.25], colors="#bbbbbb", linewidths=0.8)


_STYLES = {
    "sgld": ("SGLD", paper.COLORS["blue"], "x"),
    "sghmc": ("SGHMC", paper.COLORS["red"], "o"),
}


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    times, errors, exact = (
        {name: [point[quantity] for point in result[name]] for name in _STYLES}
        for quantity in ("autocorrelation_time", "covariance_error", "exact_covariance_error")
    )

    def is_below(values: dict[str, list[float]]) -> bool:
        pairs = zip(values["sghmc"], values["sgld"], strict=True)
        return all(ours < theirs for ours, theirs in pairs)

    return [
        Claim(
            "As the step decreases, SGLD has low error but a high autocorrelation time.",
            f"Error {errors['sgld'][0]:.3f} to {errors['sgld'][-1]:.3f}, time "
            f"{times['sgld'][0]:.1f} to {times['sgld'][-1]:.1f}.",
            errors["sgld"][-1] < errors["sgld"][0] and times["sgld"][-1] > times["sgld"][0],
        ),
        Claim(
            "SGHMC achieves even lower error at very low autocorrelation times.",
            f"Error {errors['sghmc'][0]:.4f} to {errors['sghmc'][-1]:.4f}, time "
            f"{times['sghmc'][0]:.1f} to {times['sghmc'][-1]:.1f}.",
            # In a short run Monte Carlo error may hide a difference that the exact laws have.
            None
            if is_below(exact) and not is_below(errors)
            else is_below(errors) and is_below(times),
        ),
    ]


def table(result: dict[str, Any]) -> "Table":
    rows = []
    for name, (label, *_) in _STYLES.items():
        for point in result[name]:
            decay = point["momentum_decay"]
            rows.append(
                (
                    label,
                    f"{point['step_size']:.5f}",
                    "" if decay is None else f"{decay:.4f}",
                    f"{point['autocorrelation_time']:.2f} "
                    f"({point['exact_autocorrelation_time']:.2f})",
                    f"{point['covariance_error']:.5f} ({point['exact_covariance_error']:.5f})",
                    f"{max(point['covariance_z_scores'], key=abs):+.1f}",
                )
            )
    headings = ("", "η", "α", "time", "error of the covariance", "worst z")
    return paper.table("Fig. 3: measured (exact)", headings, rows)
