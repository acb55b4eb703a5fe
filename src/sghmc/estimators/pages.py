"""The page of what `sghmc fit` found: how good, and how sure."""

import math
from typing import Any

from sghmc import display
from sghmc.estimators import tables

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
    words, is_calibrated, remedy = calibration(points, result["num_test"])
    scores = {label: result[name] for name, label in _SCORES.items() if name in result}
    is_classifier = result["task"] == "classification"
    heads = ("confidence", "accuracy") if is_classifier else ("level", "share inside")
    return display.page(
        f"{result['model']} of {result['target']}",
        [
            display.verdict(words, is_calibrated),
            display.section("What to do next", display.points([remedy])),
            display.section(
                f"On {result['num_test']:,} held-out rows",
                display.facts({name: _shown(value) for name, value in scores.items()}),
            ),
            display.section(
                "Predictive check: what was promised against what was seen",
                display.card(
                    display.picture_address(tables.plot_reliability(result)), "reliability plot"
                ),
                display.grid(
                    (*heads, "rows"),
                    [(f"{e:.3f}", f"{o:.3f}", f"{count:,}") for e, o, count in points],
                ),
            ),
            display.section(
                "The model",
                display.facts(
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


def calibration(points: list[tuple[float, float, int]], num_rows: int) -> tuple[str, bool, str]:
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
