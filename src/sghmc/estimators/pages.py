"""Pages of what `sghmc fit` and `sghmc fit-ratings` found: how good, and how sure."""

import math
from typing import Any

from sghmc.display import page, pictures
from sghmc.estimators.recommender import ratings
from sghmc.estimators.table import tabular

_LARGEST_Z = 3.5
"""Ten comparisons of a calibrated model have a larger one in one of 200 cases."""
_SCORES = {
    "accuracy": "accuracy",
    "r2": "R²",
    "rmse": "root mean squared error",
    "log_likelihood": "mean log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
}


def table_page(result: dict[str, Any]) -> str:
    """Of a model that was fitted to a table and judged on held-out rows."""
    reliability = result["reliability"]
    points = list(zip(*(reliability[k] for k in ("expected", "observed", "count")), strict=True))
    words, is_calibrated, remedy = _calibration(points, result["num_test"])
    scores = {label: result[name] for name, label in _SCORES.items() if name in result}
    is_classifier = result["task"] == "classification"
    heads = ("confidence", "accuracy") if is_classifier else ("level", "share inside")
    return page.page(
        f"{result['model']} of {result['target']}",
        [
            page.verdict(words, is_calibrated),
            page.section("What to do next", page.points([remedy])),
            page.section(
                f"On {result['num_test']:,} held-out rows",
                page.facts({name: _shown(value) for name, value in scores.items()}),
            ),
            page.section(
                "Predictive check: what was promised against what was seen",
                page.card(pictures.address(tabular.plot_reliability(result)), "reliability plot"),
                page.grid(
                    (*heads, "rows"),
                    [(f"{e:.3f}", f"{o:.3f}", f"{count:,}") for e, o, count in points],
                ),
            ),
            page.section(
                "The model",
                page.facts(
                    {
                        "task": result["task"],
                        "rows fitted before judging": f"{result['num_train']:,}",
                        "inputs": ", ".join(map(str, result["inputs"])),
                        **({"chains": result["convergence"]} if "convergence" in result else {}),
                    }
                ),
            ),
        ],
    )


def ratings_page(config: dict[str, Any], result: dict[str, Any]) -> str:
    """Of a recommender that was judged on held-out ratings."""
    sizes = {name: f"{result[f'num_{name}']:,}" for name in ("users", "items", "ratings")}
    judged = result.get("held_out")
    if judged is None:
        sections = [page.paragraph("No ratings were held out, so its predictions were not judged.")]
    else:
        drawn = [page.card(pictures.address(ratings.plot_rankings(judged)), "rankings by length")]
        sections = []
        if "coverage" in judged:
            points = [
                (float(level.rstrip("%")) / 100, share, judged["num_ratings"])
                for level, share in judged["coverage"].items()
            ]
            words, is_calibrated, remedy = _calibration(points, judged["num_ratings"])
            shares = [(level, f"{share:.1%}") for level, share in judged["coverage"].items()]
            sections += [
                page.verdict(words, is_calibrated),
                page.section("What to do next", page.points([remedy])),
            ]
            picture = pictures.address(ratings.plot_coverage(judged))
            drawn += [
                page.card(picture, "coverage of intervals"),
                page.grid(("predictive interval", "ratings inside"), shares),
            ]
        sections.append(
            page.section(
                f"On {judged['num_ratings']:,} held-out ratings",
                page.facts(ratings.told_scores(judged)),
                *drawn,
            )
        )
    run = sizes | {"likelihood": result["likelihood"], "seconds": f"{result['seconds']:.1f}"}
    sections += [page.section("The run", page.facts(run))]
    sections += [page.section("Settings", page.facts(config))] if config else []
    return page.page("Recommender", sections)


def _calibration(points: list[tuple[float, float, int]], num_rows: int) -> tuple[str, bool, str]:
    """Whether shares are as promised, in words; and what to do."""
    scores = [
        (observed - expected) / math.sqrt(max(expected * (1 - expected), 1e-3) / count)
        for expected, observed, count in points
    ]
    worst = max(scores, key=abs)
    if abs(worst) < _LARGEST_Z:
        return (
            f"as sure as it should be, as far as {num_rows:,} held-out cases can tell",
            True,
            "Nothing needs mending. More held-out cases tell more.",
        )
    if worst < 0:
        return (
            "too sure: promises are kept less often than they are made",
            False,
            "Do not take probabilities and intervals at their word: look for rows that depend on "
            "each other, a target that leaks or drifts, or let another model try.",
        )
    return (
        "not sure enough: promises are kept more often than they are made",
        False,
        "Predictions are better than they say: a model with less noise may fit.",
    )


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
