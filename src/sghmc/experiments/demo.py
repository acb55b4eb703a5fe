"""The demonstration: a posterior from minibatches, held against exact HMC on all the data.

A Bayesian logistic regression on scikit-learn's breast cancer data (569 tumors, 30 features, an
intercept). It is small enough that exact HMC is cheap, so that the answer is known, and stiff
enough that a careless setting shows: with too large a step or too small a batch the standard
deviations come out too large.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.display import page as html
from sghmc.experiments import pages, pictures
from sghmc.gradients.base import Gradient
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.minibatch import Minibatch
from sghmc.posterior.posterior import Posterior
from sghmc.results import diagnostics
from sghmc.samplers.base import Sampler
from sghmc.samplers.hmc import HMC
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_NUM_NEWTON_STEPS = 20
_NUM_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Config:
    """Steps and frictions are relative to the posterior's curvature H at its mode.

    With mass H and friction C·H every direction oscillates with frequency 1, whatever the scales
    and correlations of the features. What is left of the bias is the minibatch's: a relative error
    ε Ṽ/(2C) of the variance, Ṽ ≤ 1.8 N/n here. That asks for a small step.
    """

    batch_size: int = 64
    step_size: float = 0.02
    friction: float = 1.5
    thinning: int = 50
    hmc_step_size: float = 0.35
    hmc_num_steps: int = 6
    prior_sd: float = 1.0
    num_samples: int = 8_000
    num_burnin: int = 200
    num_chains: int = 4
    close_means: float = 0.1
    close_sds: float = 0.1

    @classmethod
    def quick(cls) -> "Config":
        return cls(step_size=0.1, thinning=10, num_samples=200, num_burnin=20, num_chains=2)


def run(config: Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    """Means, standard deviations, effective sizes and times of both samplers."""
    posterior, names = breast_cancer_posterior(config.prior_sd)
    mode, curvature = mode_and_curvature(posterior, len(names))
    start_key, hmc_key, sghmc_key = jax.random.split(key, 3)
    # Starts wider than the posterior, so that R-hat can tell whether the chains have met.
    normals = np.asarray(jax.random.normal(start_key, (config.num_chains, len(names))))
    spread = np.linalg.inv(np.linalg.cholesky(curvature))
    starts = (mode + 2 * normals @ spread).astype(np.float32)

    def measure(key, sampler: Sampler, gradient: Gradient, thinning: int) -> dict[str, Any]:
        samples = sample(
            key,
            posterior,
            sampler,
            starts,
            init_axis=0,
            gradient=gradient,
            num_samples=config.num_samples,
            num_burnin=config.num_burnin,
            thinning=thinning,
            num_chains=config.num_chains,
            progress=progress,
        )
        table = diagnostics.summary(samples.to_arviz())  # what it says is judged below
        return {
            "mean": table["mean"].tolist(),
            "sd": table["sd"].tolist(),
            "effective_size": table["ess_bulk"].tolist(),
            "r_hat": table["r_hat"].tolist(),
            "seconds": samples.seconds,
            "seconds_after_startup": samples.seconds - samples.startup_seconds,
        }

    hmc = HMC(config.hmc_step_size, config.hmc_num_steps, mass=curvature)
    sghmc = SGHMC(config.step_size, friction=config.friction * curvature, mass=curvature)
    exact = measure(hmc_key, hmc, FullBatch(), 1)
    minibatch = measure(sghmc_key, sghmc, Minibatch(config.batch_size), config.thinning)
    return {
        "names": names,
        "num_examples": posterior.num_examples,
        "batch_size": config.batch_size,
        "hmc": exact,
        "sghmc": minibatch,
        **_compare(exact, minibatch, config),
    }


def _compare(exact: dict[str, Any], minibatch: dict[str, Any], config: Config) -> dict[str, Any]:
    """Differences of the means in standard deviations, and ratios of the standard deviations.

    `chance_…` is what Monte Carlo error alone exceeds, in 31 comparisons, about once in 70 runs.
    """
    sd = np.array(exact["sd"])
    differences = (np.array(minibatch["mean"]) - np.array(exact["mean"])) / sd
    ratios = np.array(minibatch["sd"]) / sd
    worst_mean = int(np.abs(differences).argmax())
    worst_sd = int(np.abs(np.log(ratios)).argmax())
    sizes = (np.array(run["effective_size"]) for run in (exact, minibatch))
    chance = 3.5 * float(np.sqrt(sum(1 / size for size in sizes)).max())
    agrees = abs(differences[worst_mean]) < config.close_means + chance
    agrees &= abs(ratios[worst_sd] - 1) < config.close_sds + chance / np.sqrt(2)
    return {
        "mean_differences": differences.tolist(),
        "sd_ratios": ratios.tolist(),
        "worst_mean": worst_mean,
        "worst_sd": worst_sd,
        "chance_mean_difference": chance,
        "chance_sd_deviation": chance / float(np.sqrt(2)),
        "agrees": bool(agrees),
    }


def breast_cancer_posterior(prior_sd: float) -> tuple[Posterior, list[str]]:
    """Logistic regression on standardized features with an intercept; prior N(0, prior_sd²)."""
    from sklearn.datasets import load_breast_cancer

    table: Any = load_breast_cancer()
    features = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    rows = np.column_stack([np.ones(len(features)), features]).astype(np.float32)

    def log_likelihood(coefficients, example):
        row, is_benign = example
        logit = row @ coefficients
        return is_benign * logit - jax.nn.softplus(logit)

    def log_prior(coefficients):
        return -0.5 * jnp.sum(coefficients**2) / prior_sd**2

    data = (rows, table.target.astype(np.float32))
    names = ["intercept", *(str(name) for name in table.feature_names)]
    return Posterior(log_likelihood, log_prior, data), names


def mode_and_curvature(posterior: Posterior, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The mode, by Newton's method from 0 (the potential is convex), and the Hessian there."""

    @jax.jit
    def look(coefficients):
        return posterior.gradient(coefficients), jax.hessian(posterior.potential)(coefficients)

    mode = np.zeros(size, np.float32)
    for _ in range(_NUM_NEWTON_STEPS):
        grad, curvature = look(mode)
        mode = mode - np.linalg.solve(curvature, grad)
    grad, curvature = (np.asarray(array, np.float64) for array in look(mode))
    curvature = (curvature + curvature.T) / 2
    # A mode search that stopped early makes everything built on the curvature wrong, silently.
    distance = np.sqrt(grad @ np.linalg.solve(curvature, grad))
    if not distance < 0.01:
        raise ValueError(f"Newton's method stopped {distance:.2g} standard deviations off the mode")
    return mode, curvature


def table(result: dict[str, Any]) -> "Table":
    """The first coefficients and the two that disagree most, in 80 columns."""
    from rich.table import Table

    shown = Table(title="Posterior of a logistic regression: exact HMC and minibatch SGHMC")
    shown.add_column("coefficient", max_width=22)
    for heading in ("HMC\nmean", "\nsd", "SGHMC\nmean", "\nsd", "ESS\nHMC", "ESS\nSGHMC"):
        shown.add_column(heading, justify="right")
    shown.add_column("sd\nratio", justify="right")
    worst = {"worst mean": result["worst_mean"], "worst sd": result["worst_sd"]}
    rows = [(result["names"][i], i) for i in range(_NUM_SHOWN)]
    rows += [(f"{label}: {result['names'][i]}", i) for label, i in worst.items()]
    for number, (label, i) in enumerate(rows):
        numbers = [
            f"{result[sampler][quantity][i]:.2f}"
            for sampler in ("hmc", "sghmc")
            for quantity in ("mean", "sd")
        ]
        sizes = [f"{result[sampler]['effective_size'][i]:,.0f}" for sampler in ("hmc", "sghmc")]
        ratio = f"{result['sd_ratios'][i]:.3f}"
        shown.add_row(label, *numbers, *sizes, ratio, end_section=number == _NUM_SHOWN - 1)
    return shown


def verdict(result: dict[str, Any]) -> str:
    """What came out, in plain words."""
    exact, minibatch = result["hmc"], result["sghmc"]
    cost = _seconds_a_draw(minibatch) / _seconds_a_draw(exact)
    difference = abs(result["mean_differences"][result["worst_mean"]])
    deviation = abs(result["sd_ratios"][result["worst_sd"]] - 1)
    count = len(result["names"])
    agreement = "agrees" if result["agrees"] else "DOES NOT AGREE"
    return (
        f"SGHMC, which sees {result['batch_size']} of {result['num_examples']} rows a step, "
        f"{agreement} with exact HMC: over all {count} coefficients the means differ by at most "
        f"{difference:.2f} standard deviations and the standard deviations by at most "
        f"{100 * deviation:.1f} % (Monte Carlo error alone: up to "
        f"{result['chance_mean_difference']:.2f} and {100 * result['chance_sd_deviation']:.1f} %). "
        f"It took {minibatch['seconds']:.1f} s, HMC {exact['seconds']:.1f} s; an effective draw "
        f"costs it {cost:.2g} times what it costs HMC on so few rows. Minibatches pay where a pass "
        f"over the data is slow."
    )


def page(config: dict[str, Any], result: dict[str, Any]) -> str:
    """The report as HTML."""
    agrees = result["agrees"]
    words = "minibatch SGHMC " + ("agrees" if agrees else "does not agree") + " with exact HMC"
    return html.page(
        "Demonstration: a posterior from minibatches",
        [
            html.verdict(words, agrees),
            html.paragraph(verdict(result)),
            html.section("Both posteriors", pages.drawing(plot(result), "all coefficients")),
            html.section("Some coefficients", pages.rich_table(table(result))),
            html.section("Settings", html.facts(config)),
        ],
    )


def _seconds_a_draw(run: dict[str, Any]) -> float:
    """Of an effective draw of the median coefficient, compilation left out."""
    return run["seconds_after_startup"] / float(np.median(run["effective_size"]))


def plot(result: dict[str, Any]) -> "Figure":
    """Every coefficient's mean and two standard deviations, and the ratios of the latter."""
    figure, (forest, ratios) = pictures.panels(2, (11, 8))
    places = np.arange(len(result["names"]))
    for shift, sampler, label, color in (
        (-0.17, "hmc", "HMC, all rows", pictures.COLORS["truth"]),
        (0.17, "sghmc", f"SGHMC, batches of {result['batch_size']}", pictures.COLORS["red"]),
    ):
        forest.errorbar(
            result[sampler]["mean"],
            places + shift,
            xerr=2 * np.array(result[sampler]["sd"]),
            fmt="o",
            markersize=3,
            color=color,
            label=label,
        )
    forest.set(xlabel="coefficient: mean ± 2 sd", title="both posteriors")
    forest.set_yticks(places, result["names"], fontsize=8)
    forest.invert_yaxis()
    ratios.axvspan(0.9, 1.1, color="#eeeeee", label="within 10 %")
    ratios.axvline(1.0, color=pictures.COLORS["truth"], linewidth=1)
    ratios.plot(result["sd_ratios"], places, "o", markersize=4, color=pictures.COLORS["red"])
    ratios.set(xlabel="sd of SGHMC / sd of HMC", title="standard deviations")
    ratios.set_yticks(places, [""] * len(places))
    ratios.set_ylim(forest.get_ylim())
    ratios.legend(frameon=False, loc="upper right")
    figure.legend(*forest.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
