"""The verdict on a fitted table, its lines for a terminal, and its page with pictures."""

import dataclasses
import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from sghmc import display
from sghmc.core.checks import require
from sghmc.results.health import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _GRAY = "#0072b2", "#888888"
_MAX_Z_SCORE = 3.5
"""Largest z-score of a calibrated model: of ten, one is larger in one of 200 cases."""
_BAR_LEVELS = 0.05, 0.95
_SCORES = {
    "accuracy": "accuracy",
    "r2": "R²",
    "rmse": "root mean squared error",
    "log_likelihood": "mean log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
}


@dataclasses.dataclass(frozen=True, repr=False)
class TableVerdict(Verdict):
    """The verdict on a model of a table: what is wrong, what to mind, what speaks for it."""

    reasons: tuple[str, ...]
    calibration: str
    remedy: str
    cares: tuple[str, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def evidence(self) -> dict[str, str]:
        return {"calibration": self.calibration, "what to do": self.remedy}

    @property
    def words(self) -> str:
        """Return the level with its first reason."""
        return f"{self.level}: {(*self.reasons, *self.cares, self.calibration)[0]}"


def verdict_of(result: dict[str, Any]) -> TableVerdict:
    """Judge a result: first beside a constant and other models, then its chains and calibration."""
    words, is_calibrated, remedy = calibration(_points(result), result["num_test"])
    reasons, cares = tuple(result.get("troubles", ())), tuple(result.get("cares", ()))
    if not is_calibrated:
        is_unsure = words.startswith("not sure")
        reasons, cares = (reasons, (*cares, words)) if is_unsure else ((*reasons, words), cares)
    return TableVerdict(reasons, words, remedy, cares)


def _points(result: dict[str, Any]) -> list[tuple[float, float, int]]:
    reliability = result["reliability"]
    return list(zip(*(reliability[k] for k in ("expected", "observed", "count")), strict=True))


def calibration(points: list[tuple[float, float, int]], num_rows: int) -> tuple[str, bool, str]:
    """Return words on calibration, whether shares are as promised, and what to do."""
    scores = [
        (observed - expected) / math.sqrt(max(expected * (1 - expected), 1e-3) / count)
        for expected, observed, count in points
    ]
    worst = max(scores, key=abs)
    if abs(worst) < _MAX_Z_SCORE:
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


def summary(result: dict[str, Any]) -> list[str]:
    """Return verdict and scores in lines of plain words."""
    verdict = verdict_of(result)
    lines = [f"Verdict: {verdict.words}."]
    lines += [f"Mind also: {each}." for each in (*verdict.reasons, *verdict.cares)[1:]]
    lines.append(
        f"{result['model']} on {result['num_train']} rows, {len(result['inputs'])} inputs."
    )
    lines += [f"{each[0].upper()}{each[1:]}." for each in result.get("columns", ())]
    lines.append(f"On {result['num_test']} held-out rows:")
    shown = {label: result[name] for name, label in _SCORES.items() if result.get(name) is not None}
    lines += [f"  {label:<26}{value:10.4f}" for label, value in shown.items()]
    for name, scores in result.get("rivals", {}).items():
        told = ", ".join(f"{_SCORES[each]} {value:.4f}" for each, value in scores.items())
        lines.append(f"  {name}: {told}")
    lines += [f"Chains: {result['convergence']}."] if "convergence" in result else []
    return [textwrap.fill(line, 80, subsequent_indent="  ") for line in lines]


def table_page(result: dict[str, Any]) -> str:
    """Return the page of a model that was fitted to a table and judged on held-out rows."""
    verdict = verdict_of(result)
    scores = {label: result[name] for name, label in _SCORES.items() if name in result}
    is_classifier = result["task"] == "classification"
    heads = ("confidence", "accuracy") if is_classifier else ("level", "share inside")
    told = [*verdict.reasons, *verdict.cares]
    told += [] if told else [verdict.remedy]
    about = {
        "task": result["task"],
        "rows fitted before judging": f"{result['num_train']:,}",
        "inputs": ", ".join(map(str, result["inputs"])),
        **({"chains": result["convergence"]} if "convergence" in result else {}),
        **{name: result[name] for name in ("date",) if name in result},
        **({"version": f"sghmc {result['version']}"} if "version" in result else {}),
        **result.get("settings", {}),
    }
    return display.page(
        f"{result['model']} of {result['target']}",
        [
            display.verdict(verdict.words, verdict.is_sound),
            display.section("What to do next", display.points(told)),
            display.section(
                f"On {result['num_test']:,} held-out rows",
                display.facts({name: _shown(value) for name, value in scores.items()}),
                *_rivals(result),
            ),
            display.section(
                "Predictive check: what was promised against what was seen",
                _card(plot_reliability(result), "reliability plot"),
                display.grid(
                    (*heads, "rows"),
                    [(f"{e:.3f}", f"{o:.3f}", f"{count:,}") for e, o, count in _points(result)],
                ),
            ),
            *_inputs(result),
            display.section("The model", display.facts(about)),
        ],
    )


def _rivals(result: dict[str, Any]) -> list[str]:
    rivals = result.get("rivals", {})
    if not rivals:
        return []
    names = list(next(iter(rivals.values())))
    rows = {"this model": {name: result[name] for name in names}} | rivals
    cells = [(name, *(f"{row[each]:.4f}" for each in names)) for name, row in rows.items()]
    return [display.grid(("beside others", *(_SCORES[name] for name in names)), cells)]


def _inputs(result: dict[str, Any]) -> list[str]:
    """Return the sections on the columns: what they were taken for, and what they are worth."""
    parts = []
    if "columns" in result:
        told = [*result["columns"], *result.get("doubts", ())]
        parts.append(display.section("What columns were taken for", display.points(told)))
    if importance := result.get("importance"):
        unit = "mean log-likelihood" if result["task"] == "classification" else "RMSE"
        parts.append(
            display.section(
                "Permutation importance",
                display.paragraph(
                    f"What {unit} loses on held-out rows when a column is shuffled, with its "
                    f"standard deviation over five shuffles."
                ),
                display.rows(
                    "importance", ("column", "loss", "standard deviation"), importance.items()
                ),
            )
        )
    if effects := result.get("dependence"):
        parts.append(
            display.section(
                "Partial dependence",
                display.paragraph("The mean prediction for held-out rows, had all the same value."),
                *(_card(plot_effect(each), f"effect of {each['column']}") for each in effects),
            )
        )
    return parts


def _card(figure: "Figure", words: str) -> str:
    return display.card(display.picture_address(figure, format="svg"), words)


def plot_reliability(result: dict[str, Any]) -> "Figure":
    """Plot observed against expected shares: a calibrated model lies on the diagonal.

    Bars are 90 % intervals of the shares, by the number of rows in each.
    """
    figure, axis = _axis(5)
    axis.plot([0, 1], [0, 1], color=_GRAY, linewidth=1)
    expected, observed, count = map(np.array, zip(*_points(result), strict=True))
    ends = stats.beta.ppf(
        np.array(_BAR_LEVELS)[:, None], observed * count + 0.5, (1 - observed) * count + 0.5
    )
    bars = np.maximum([observed - ends[0], ends[1] - observed], 0)
    axis.errorbar(expected, observed, bars, fmt="o-", color=_BLUE, elinewidth=1)
    is_classifier = result["task"] == "classification"
    axis.set(
        xlabel="confidence" if is_classifier else "level of the interval",
        ylabel="accuracy" if is_classifier else "share of held-out rows inside",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"{result['num_test']} held-out rows, calibration error {result['ece']:.3f}",
    )
    return figure


def plot_effect(effect: dict[str, Any]) -> "Figure":
    """Plot the mean prediction against a column's values, a line for each class."""
    figure, axis = _axis(3)
    for mean in effect["mean"]:
        axis.plot(effect["at"], mean, "o-", markersize=3)
    axis.set(xlabel=display.printable(effect["column"]), ylabel="mean prediction")
    return figure


def _axis(height: float) -> tuple["Figure", Any]:
    figure = require("matplotlib.figure", extra="plots").Figure((5, height), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
