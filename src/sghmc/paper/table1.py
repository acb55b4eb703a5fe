"""Table 1: matrix factorization of MovieLens ratings, five folds as chains of one program.

SGD, SGD with momentum, SGLD and SGHMC with the paper's settings; `best` runs our own instead:
SGHMC with a mass matched to each row, priors with means, large batches in shuffled epochs.
Errors are in stars, of predictions within the range of the ratings; `unclipped` has them without.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sghmc import paper
from sghmc.paper import Claim, methods
from sghmc.paper.methods import (
    LABELS,
    OPTIMIZERS,
    MethodSettings,
    Problem,
    Recipe,
    Schedule,
)
from sghmc.results.samples import Samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PAPER = {
    "sgd": (0.8538, 0.0009),
    "momentum": (0.8539, 0.0009),
    "sgld": (0.8412, 0.0009),
    "sghmc": (0.8411, 0.0011),
}
"""RMSE in the paper and its standard error."""
_MAX_STANDARD_ERRORS = 3
"""Largest difference from the paper's number that agrees with it, in standard errors."""

SETTINGS = MethodSettings(
    sgd=0.4e-5,
    momentum=0.4e-6,
    sgld=8 / 800_000,
    sghmc=0.4 / 800_000,
    momentum_decay=0.05,
    regularizer=4.0,
)
"""Settings of the authors' scripts: for SGLD and SGHMC they divide 8 and 0.4 by the 800,000
training ratings, where the paper prints 0.8e-5 and 0.4e-6."""
FULL = Schedule(
    batch_size=4_000,
    num_steps=2_000_000,
    num_burnin=100_000,
    average_every=2_000,
    gibbs_every=2_000,
    num_quiet=4_000,
)
SMALL = Schedule(4_000, 20_000, 10_000, average_every=50, gibbs_every=500, num_quiet=1_000)
BEST = Schedule(40_000, 100_000, 10_000, average_every=50, gibbs_every=500, num_quiet=3_000)
BEST_SMALL = dataclasses.replace(BEST, num_steps=8_000, num_burnin=4_000)


@dataclasses.dataclass(frozen=True)
class Table1Config:
    """Settings of the paper's table, and of our own recipe, which `best` runs instead.

    Predictions enter the average every `average_every` steps, if given, else as the schedule says.
    Without an accelerator and without `full` a run has the small schedule.
    """

    data: str | None = None
    dataset: str = "ml-1m"
    full: bool = False
    best: bool = False
    average_every: int | None = None
    methods: tuple[str, ...] = tuple(LABELS)
    num_folds: int = 5
    rank: int = 20
    settings: MethodSettings = SETTINGS
    schedule: Schedule = FULL
    small_schedule: Schedule = SMALL
    best_schedule: Schedule = BEST
    best_small_schedule: Schedule = BEST_SMALL
    best_step: float = 0.06
    best_decay: float = 0.1


QUICK = {
    "dataset": "synthetic",
    "full": True,
    "rank": 4,
    "settings": MethodSettings(3e-4, 3e-5, 1e-4, 1e-5, momentum_decay=0.05, regularizer=4.0),
    "schedule": Schedule(500, 3_000, 1_000, average_every=50, gibbs_every=100, num_quiet=200),
    "best_schedule": Schedule(2_000, 2_000, 1_000, average_every=50, gibbs_every=50, num_quiet=300),
}


def run(config: Table1Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    config, note = _sized(config)
    problem = Problem.of(methods.named_ratings(config.dataset, config.data), config.num_folds)
    names = ("best",) if config.best else config.methods
    rows = {name: _row(config, name, problem, key, progress) for name in names}
    return {"note": note, "methods": rows}


def _sized(config: Table1Config) -> tuple[Table1Config, str]:
    """Return the config with the schedule that runs in `schedule`, and a note about it."""
    full = config.best_schedule if config.best else config.schedule
    schedule, note = full, f"{full.num_steps:,} steps"
    if methods.is_cut(config):
        schedule = config.best_small_schedule if config.best else config.small_schedule
        note = (
            f"no accelerator: {schedule.num_steps:,} steps, where the full run (--full) has "
            f"{full.num_steps:,}"
        )
    if config.average_every is not None:
        schedule = dataclasses.replace(schedule, average_every=config.average_every)
    return dataclasses.replace(config, schedule=schedule), note


def _recipe(config: Table1Config, name: str, problem: Problem) -> Recipe:
    shared = problem, config.rank, config.schedule
    if name == "best":
        return methods.ours(*shared, config.best_step, config.best_decay)
    return methods.papers(*shared, name, config.settings)


def _last(score: str, name: str, samples: Samples, problem: Problem) -> np.ndarray:
    """Return the final error of each fold, in stars."""
    values = methods.over_time(name, samples)[score]
    return problem.spread * values[:, -1].astype(np.float64)


def _row(config: Table1Config, name: str, problem: Problem, key, progress) -> dict[str, Any]:
    recipe, regularizer = _recipe(config, name, problem), config.settings.regularizer
    samples = methods.sample_folds(recipe, name, problem, regularizer, key, progress)
    schedule, scores = config.schedule, methods.over_time(name, samples)
    assert samples.clock is not None
    trace = {score: problem.spread * scores[score].mean(0) for score in ("rmse", "unclipped")}
    row: dict[str, Any] = {
        score: _over_folds(_last(score, name, samples, problem)) for score in trace
    }
    row["seconds"] = samples.seconds
    row["seconds_after_compilation"] = samples.seconds - samples.startup_seconds
    if name not in OPTIMIZERS:
        trace["log_likelihood"] = scores["log_likelihood"].mean(0) - math.log(problem.spread)
        row["log_likelihood"] = float(trace["log_likelihood"][-1])
        row["coverage"] = methods.coverage(samples.averages, problem)
    draws = 1 + np.arange(samples.num_draws)
    trace["steps"] = schedule.num_burnin + schedule.average_every * draws
    trace["seconds_after_compilation"] = samples.clock - samples.startup_seconds
    row["trace"] = {quantity: values.tolist() for quantity, values in trace.items()}
    return row


def _over_folds(values: np.ndarray) -> dict[str, Any]:
    return {
        "mean": float(values.mean()),
        "standard_error": float(values.std(ddof=1) / np.sqrt(len(values))),
        "folds": values.tolist(),
    }


def plot(result: dict[str, Any]) -> "Figure":
    figure, axes = paper.panels(2, (11, 4.2))
    for axis, quantity in zip(axes, ("rmse", "log_likelihood"), strict=True):
        for name, row in result["methods"].items():
            trace = row["trace"]
            if quantity in trace:
                color = methods.COLORS.get(name, methods.OURS)
                axis.plot(trace["steps"], trace[quantity], color=color, label=_label(name))
        axis.set_xlabel("steps")
    axes[0].set(ylabel="test RMSE (stars)", title="Error of the prediction")
    axes[1].set(ylabel="log-likelihood of a test rating", title="Predictive density")
    axes[0].legend(frameon=False)
    return figure


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    rows = {name: row["rmse"] for name, row in result["methods"].items()}
    is_the_papers = config["dataset"] == "ml-1m"
    found = [_claim(name, row, is_the_papers) for name, row in rows.items()]
    if set(LABELS) <= set(rows):
        optimized = min(rows[name]["mean"] for name in OPTIMIZERS)
        sampled = {name: rows[name]["mean"] for name in ("sgld", "sghmc")}
        shown = ", ".join(f"{LABELS[name]} {mean:.4f}" for name, mean in sampled.items())
        found.append(
            Claim(
                "SGHMC and SGLD give better predictions than the optimizers.",
                f"{shown}; the better optimizer {optimized:.4f}.",
                max(sampled.values()) < optimized,
            )
        )
    return found


def _claim(name: str, row: dict[str, Any], is_comparable: bool) -> Claim:
    """Compare an RMSE to the paper's: agreement is within three standard errors of the difference.

    On other ratings than the paper's there is no verdict. Our own recipe is compared to the paper's
    SGHMC, and may be better.
    """
    is_ours = name not in PAPER
    paper, paper_error = PAPER["sghmc" if is_ours else name]
    mean, error = row["mean"], row["standard_error"]
    excess = (mean - paper) / math.hypot(error, paper_error)
    is_close = excess < _MAX_STANDARD_ERRORS and (is_ours or excess > -_MAX_STANDARD_ERRORS)
    return Claim(
        f"{LABELS['sghmc' if is_ours else name]}: RMSE {paper:.4f} ± {paper_error:.4f}",
        f"{_label(name)}: {mean:.4f} ± {error:.4f}"
        + ("" if is_comparable else ", of other ratings"),
        is_close if is_comparable else None,
    )


def table(result: dict[str, Any]) -> "Table":
    rows = []
    for name, row in result["methods"].items():
        rmse, published = row["rmse"], PAPER.get(name)
        rows.append(
            (
                methods.SHORT.get(name, "SGHMC, ours"),
                f"{rmse['mean']:.4f} ± {rmse['standard_error']:.4f}",
                f"{published[0]:.4f} ± {published[1]:.4f}" if published else "",
                f"{row['log_likelihood']:.4f}" if "log_likelihood" in row else "",
                f"{row['coverage']['95%']:.1%}" if "coverage" in row else "",
                f"{row['seconds_after_compilation']:.1f}",
            )
        )
    headings = ("method", "RMSE", "the paper's", "log-lik", "in 95 %", "s")
    return paper.table(f"Table 1: {result['note']}", headings, rows)


def _label(name: str) -> str:
    return LABELS.get(name, "SGHMC, our best")
