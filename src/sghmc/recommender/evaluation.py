"""Fit a recommender, score it on held-out ratings, and report: what `sghmc fit-ratings` runs."""

import pathlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from sghmc import display
from sghmc.core.checks import require
from sghmc.estimators.tables import calibration
from sghmc.recommender.matrix_factorization import MatrixFactorization
from sghmc.recommender.rating_scores import split
from sghmc.recommender.ratings import Ratings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


RANKS = (1, 3, 10, 30)
"""Numbers of recommendations that are scored on held-out ratings."""

_PRINTED_RANK = 10
"""The number of recommendations whose scores are printed; the plot shows all."""

_RANKINGS = {"ndcg": "NDCG", "recall": "recall"}


def is_model(path: str | pathlib.Path) -> bool:
    """Check whether a file is a model that `save` wrote, by its first bytes."""
    path, first = pathlib.Path(path), b"sghmc model"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(first)) == first


def fit_and_judge(
    ratings: Ratings,
    holdout: float,
    how: str = "random",
    *,
    users: Any = None,
    items: Any = None,
    **settings: Any,
) -> tuple[MatrixFactorization, dict[str, Any]]:
    """Fit a model, score it on held-out ratings, and add those by `partial_fit`.

    `how` and `holdout` choose them, as for `rating_scores.split`; a holdout of 0 is none. `users`
    and `items` are tables of features, as `MatrixFactorization.fit` takes them.
    """
    seed = settings.get("random_state", 0)
    rows, held_out = np.arange(len(ratings)), None
    if holdout > 0:
        rows, held_out = split(ratings, how, holdout, seed)
    start = time.perf_counter()
    model = MatrixFactorization(**settings).fit(ratings.take(rows), users=users, items=items)
    result: dict[str, Any] = {
        "num_users": ratings.num_users,
        "num_items": ratings.num_items,
        "num_ratings": len(ratings),
        "likelihood": model.likelihood_,
        "seconds": time.perf_counter() - start,
    }
    if model.diagnostics_:
        result["chosen by"] = model.diagnostics_
    if held_out is not None:
        table = ratings.take(held_out)
        result |= {"split": how, "held_out": model.evaluate(table, RANKS)}
        model.partial_fit(table)
    return model, result


def format_scores(judged: dict[str, Any]) -> dict[str, str]:
    """Format the scores of `evaluate` by label, each with its standard error if it has one."""
    names = {"rmse": "RMSE", "log_likelihood": "mean log-likelihood"}
    names |= {"log_probability": "mean log-probability of the level"}
    k = _PRINTED_RANK
    names |= {f"{name}@{k}": f"{label}@{k}" for name, label in _RANKINGS.items()}
    scores = {}
    for name, label in names.items():
        value, error = judged.get(name), judged.get(f"{name}_error")
        if value is not None:
            scores[label] = f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"
    return scores


def plot_rankings(judged: dict[str, Any]) -> "Figure":
    """Plot NDCG@k and recall@k by k, with two standard errors."""
    figure, axis = _square_figure()
    for name, label in _RANKINGS.items():
        known = [k for k in RANKS if judged.get(f"{name}@{k}") is not None]
        values = [judged[f"{name}@{k}"] for k in known]
        bars = [2 * (judged.get(f"{name}@{k}_error") or 0.0) for k in known]
        axis.errorbar(known, values, bars, fmt="o-", label=f"{label}@k")
    axis.set(
        xlabel="k: items recommended to each user",
        ylabel="mean over users",
        xscale="log",
        xticks=RANKS,
        xticklabels=[str(k) for k in RANKS],
        title=f"{judged['num_users_ranked']:,} users with a relevant item held out",
    )
    axis.set_ylim(bottom=0)
    axis.minorticks_off()
    axis.legend(frameon=False)
    return figure


def plot_coverage(judged: dict[str, Any]) -> "Figure":
    """Plot the shares of ratings inside predictive intervals, with two standard errors."""
    figure, axis = _square_figure()
    axis.plot([0, 1], [0, 1], color="gray", linewidth=1)
    levels = [float(level.rstrip("%")) / 100 for level in judged["coverage"]]
    errors = judged.get("coverage_errors", {})
    bars = [2 * (errors.get(level) or 0.0) for level in judged["coverage"]]
    axis.errorbar(levels, list(judged["coverage"].values()), bars, fmt="o-")
    axis.set(
        xlabel="level of the interval",
        ylabel="share of held-out ratings inside",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"{judged['num_ratings']:,} held-out ratings",
    )
    return figure


def _square_figure() -> tuple["Figure", Any]:
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=(5, 5), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def ratings_page(config: dict[str, Any], result: dict[str, Any]) -> str:
    """Render the report of a fitted recommender and its scores on held-out ratings."""
    sizes = {name: f"{result[f'num_{name}']:,}" for name in ("users", "items", "ratings")}
    judged = result.get("held_out")
    if judged is None:
        sections = [
            display.paragraph("No ratings were held out, so there are no scores of predictions.")
        ]
    else:
        drawn = [display.card(display.picture_address(plot_rankings(judged)), "rankings by length")]
        sections = []
        if "coverage" in judged:
            points = [
                (float(level.rstrip("%")) / 100, share, judged["num_ratings"])
                for level, share in judged["coverage"].items()
            ]
            words, is_calibrated, remedy = calibration(points, judged["num_ratings"])
            shares = [(level, f"{share:.1%}") for level, share in judged["coverage"].items()]
            sections += [
                display.verdict(words, is_calibrated),
                display.section("What to do next", display.points([remedy])),
            ]
            picture = display.picture_address(plot_coverage(judged))
            drawn += [
                display.card(picture, "coverage of intervals"),
                display.grid(("predictive interval", "ratings inside"), shares),
            ]
        sections.append(
            display.section(
                f"On {judged['num_ratings']:,} held-out ratings",
                display.facts(format_scores(judged)),
                *drawn,
            )
        )
    run = sizes | {"likelihood": result["likelihood"], "seconds": f"{result['seconds']:.1f}"}
    sections += [display.section("The run", display.facts(run))]
    sections += [display.section("Settings", display.facts(config))] if config else []
    return display.page("Recommender", sections)
