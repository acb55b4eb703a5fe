"""Fig. 1: histograms of five samplers against the density they should sample.

Hamiltonian Monte Carlo with exact and with noisy gradients, each with and without the accept step,
and SGHMC, on U = −2θ² + θ⁴ and on U = ½θ². One evaluation of the noisy gradient a step, as in
Alg. 1; the published script has two, which makes the naive sampler's error smaller. `sghmc`
resamples as Alg. 2 is printed, `sghmc_repaired` as the library does unless asked otherwise.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper
from sghmc.gradients import FullBatch, Gradient
from sghmc.gradients.noise import NoisyGradient
from sghmc.paper import Claim, draw
from sghmc.paper.literal import LiteralSGHMC
from sghmc.posterior.target import Potential
from sghmc.samplers import Sampler
from sghmc.samplers.hmc import HMC
from sghmc.samplers.sghmc import SGHMC

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

TARGETS = {
    "double_well": lambda theta: -2 * theta**2 + theta**4,
    "gaussian": lambda theta: theta**2 / 2,
}
_MAX_THETA = 10.0
"""Bins reach from −10 to 10: the naive sampler's Gaussian has a standard deviation of 1.5."""
_NUM_QUADRATURE_NODES = 8
"""Nodes of Gauss–Legendre quadrature in a bin: exact to rounding for densities this smooth."""
LIMITS = {
    "hmc": 0.02,
    "hmc_no_mh": 0.02,
    "naive": 0.02,
    "naive_no_mh": 0.08,
    "sghmc": 0.025,
    "sghmc_repaired": 0.025,
}
"""Largest total variation on the double well at full size; for `naive_no_mh` the smallest."""
LABELS = {
    "hmc": "Standard HMC (with MH)",
    "hmc_no_mh": "Standard HMC (no MH)",
    "naive": "Naive stochastic gradient HMC (with MH)",
    "naive_no_mh": "Naive stochastic gradient HMC (no MH)",
    "sghmc": "SGHMC",
    "sghmc_repaired": "SGHMC, repaired resampling",
}


@dataclasses.dataclass(frozen=True)
class Figure1Config:
    """Settings: `num_draws` draws of each sampler, one chain from 0, `num_steps` steps a draw."""

    step_size: float = 0.1
    num_steps: int = 50
    num_draws: int = 80_000
    friction: float = 3.0
    gradient_noise: float = 4.0
    """Variance V of the noisy gradient."""
    bin_width: float = 0.1


QUICK = {"num_draws": 8_000}


def run(config: Figure1Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    result: dict[str, Any] = {"bin_width": config.bin_width, "curves": {}}
    for target, target_key in zip(TARGETS, jax.random.split(key, len(TARGETS)), strict=True):
        edges, truth = true_bins(TARGETS[target], config.bin_width)
        middles = (edges[:-1] + edges[1:]) / 2
        curves = {"middles": middles.tolist(), "truth": (truth / config.bin_width).tolist()}
        result[target], result["curves"][target] = {}, curves
        for i, (name, setting) in enumerate(_settings(config).items()):
            draws, acceptance = _draw(
                config, TARGETS[target], *setting, jax.random.fold_in(target_key, i), progress
            )
            share = np.histogram(draws, edges)[0] / len(draws)
            result[target][name] = {
                "total_variation": total_variation(share, truth),
                "acceptance": acceptance,
                "variance": float(draws.var()),
            }
            curves[name] = (share / config.bin_width).tolist()
    return result


def _settings(config: Figure1Config) -> dict[str, tuple[Sampler, Gradient, int]]:
    """Return sampler, gradient and thinning by name; every draw takes equally many gradients."""
    exact, noisy = FullBatch(), NoisyGradient(config.gradient_noise)
    steps = config.num_steps
    settings: dict[str, tuple[Sampler, Gradient, int]] = {}
    for name, gradient in {"hmc": exact, "naive": noisy}.items():
        settings[name] = (HMC(config.step_size, steps), gradient, 1)
        settings[f"{name}_no_mh"] = (HMC(config.step_size, steps, metropolis=False), gradient, 1)
    for name, algorithm in {"sghmc": LiteralSGHMC, "sghmc_repaired": SGHMC}.items():
        noise = {"gradient_noise": config.gradient_noise, "resample_every": steps}
        sampler = algorithm(config.step_size, config.friction, **noise)
        settings[name] = (sampler, noisy, steps)
    return settings


def _draw(config, potential, sampler, gradient, thinning, key, progress):
    """Return the draws of one chain, and the mean acceptance probability (1 without MH)."""
    samples = draw(
        key,
        Potential(potential),
        sampler,
        jnp.zeros(()),
        gradient=gradient,
        num_samples=config.num_draws,
        thinning=thinning,
        progress=progress,
    )
    acceptance = samples.info.acceptance
    mean = 1.0 if acceptance is None else float(acceptance.mean(dtype=np.float64))
    return samples.positions[0].astype(np.float64), mean


def true_bins(potential, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Return bin edges, and the bins' probabilities under exp(−U) by Gauss–Legendre quadrature."""
    count = round(_MAX_THETA / width)
    edges = width * np.arange(-count, count + 1)
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_QUADRATURE_NODES)
    points = edges[:-1, None] + width * (nodes + 1) / 2
    mass = np.exp(-potential(points)) @ weights
    return edges, mass / mass.sum()


def total_variation(share: np.ndarray, truth: np.ndarray) -> float:
    """Return ½ Σ |share − truth|; what lies outside the bins counts as one more bin."""
    outside = abs(share.sum() - truth.sum())
    return float((np.abs(share - truth).sum() + outside) / 2)


def plot(result: dict[str, Any]) -> "Figure":
    figure, axes = paper.panels(2, (11, 4.6))
    titles = {"double_well": r"$U(\theta)=-2\theta^2+\theta^4$", "gaussian": r"$U=\theta^2/2$"}
    for axis, (target, title) in zip(axes, titles.items(), strict=True):
        curves = result["curves"][target]
        for name, style in _STYLES.items():
            label = "True distribution" if name == "truth" else LABELS[name]
            line = {"label": label, "markersize": 4, "linewidth": 0.8, **style}
            axis.plot(curves["middles"], curves[name], **line)
        axis.set(title=title, xlabel=r"$\theta$", ylabel="density", ylim=(0, None))
        axis.set_xlim(*((-2, 2) if target == "double_well" else (-4, 4)))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


_STYLES: dict[str, dict[str, Any]] = {
    "truth": {"color": paper.COLORS["truth"], "linewidth": 2.5},
    "hmc": {"color": paper.COLORS["blue"], "marker": "x", "linestyle": "--"},
    "hmc_no_mh": {"color": paper.SKY, "marker": "v", "linestyle": "--"},
    "naive": {"color": paper.COLORS["green"], "marker": "s", "linestyle": "--"},
    "naive_no_mh": {"color": paper.PURPLE, "marker": "o", "linestyle": "--"},
    "sghmc": {"color": paper.COLORS["red"], "marker": "^", "linestyle": "--"},
}


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    distance = {name: row["total_variation"] for name, row in result["double_well"].items()}
    right = max(distance[name] for name in ("hmc", "hmc_no_mh", "sghmc", "sghmc_repaired"))
    naive, accepted = distance["naive_no_mh"], result["double_well"]["naive"]["acceptance"]
    return [
        Claim(
            "Even without an accept step HMC and SGHMC are close to the true distribution.",
            f"At most {right:.3f} away in total variation.",
            right < naive / 2,
        ),
        Claim(
            "Naive stochastic gradient HMC diverges significantly from the truth.",
            f"{naive:.3f} away in total variation.",
            naive > LIMITS["naive_no_mh"],
        ),
        Claim(
            "A (costly) accept step corrects that.",
            f"{distance['naive']:.3f} away, {accepted:.0%} accepted.",
            distance["naive"] < naive / 2,
        ),
    ]


def table(result: dict[str, Any]) -> "Table":
    rows = []
    for name, limit in LIMITS.items():
        double_well, gaussian = result["double_well"][name], result["gaussian"][name]
        rows.append(
            (
                LABELS[name].replace("stochastic gradient", "SG"),
                f"{double_well['total_variation']:.4f}",
                f"{'≥' if name == 'naive_no_mh' else '≤'} {limit:g}",
                f"{gaussian['total_variation']:.4f}",
                f"{double_well['acceptance']:.1%}",
            )
        )
    title = "Fig. 1: distance from the true distribution (total variation)"
    headings = ("sampler", "double well", "limit", "gaussian", "accepted")
    return paper.table(title, headings, rows)
