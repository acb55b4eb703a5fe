"""Fits tables and judges the model on held-out rows, for `sghmc fit` and `sghmc predict`."""

import csv
import io
import math
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sghmc import display
from sghmc.core.checks import require
from sghmc.data.table_files import Columns
from sghmc.estimators.encoding import Encoding
from sghmc.estimators.linear import BayesianLinearRegression, BayesianLogisticRegression
from sghmc.estimators.mlp_classifier import BayesianMLPClassifier
from sghmc.estimators.mlp_regressor import BayesianMLPRegressor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS = ("classification", "regression")
KINDS = {
    ("classification", "mlp"): BayesianMLPClassifier,
    ("classification", "linear"): BayesianLogisticRegression,
    ("regression", "mlp"): BayesianMLPRegressor,
    ("regression", "linear"): BayesianLinearRegression,
}
_MAX_CLASSES = 20
"""Largest number of whole numbers that are taken for classes; more are a quantity."""
_NUM_BINS = 10
"""Number of bins of confidence and of levels of intervals, as in the literature on calibration."""
_FORMULA = ("=", "+", "-", "@")
"""Signs that a spreadsheet takes for the beginning of a formula, which it runs."""
_BLUE, _GRAY = "#0072b2", "#888888"


class Fit(NamedTuple):
    """A model, its scores, and its predictions for the held-out rows."""

    model: Any
    result: dict[str, Any]
    predictions: str


def detect_task(target: np.ndarray) -> str:
    """Return the task: text, booleans and few whole numbers are classes."""
    if target.dtype.kind in "Ob":
        return "classification"
    is_whole = target.dtype.kind in "iu"
    return TASKS[0] if is_whole and len(np.unique(target)) <= _MAX_CLASSES else TASKS[1]


def fit_table(
    table: Columns,
    target: str,
    *,
    task: str | None = None,
    kind: str = "mlp",
    test_fraction: float = 0.2,
    ignored: list[str] | None = None,
    seed: int = 0,
    progress: bool = False,
    num_steps: int | None = None,
    **settings: Any,
) -> Fit:
    """Fit most rows, judge on the rest, then let the model take those in too."""
    if num_steps is not None:
        if kind != "mlp":
            raise ValueError(f"num_steps is a setting of networks, but the model is {kind!r}.")
        settings["num_steps"] = num_steps
    encoding = Encoding.of(table, target, ignored or [])
    y = table[target]
    task = detect_task(y) if task is None else task
    if task not in TASKS or (task, kind) not in KINDS:
        raise ValueError(
            f"task must be one of {', '.join(TASKS)} and model mlp or linear, but they are "
            f"{task!r} and {kind!r}."
        )
    if task == "regression" and y.dtype == object:
        raise ValueError(
            f"The target {target!r} holds text such as {y[0]!r}, but a regression needs numbers."
        )
    x = encoding.matrix(table)
    train, held = _split(y, task, test_fraction, seed)
    model = KINDS[task, kind](random_state=seed, progress=progress, **settings)
    model.fit(x[train], y[train])
    judge = _judge_classes if task == "classification" else _judge_numbers
    result = {
        "task": task,
        "model": type(model).__name__,
        "target": target,
        "num_train": len(train),
        "num_test": len(held),
        "inputs": encoding.names,
        **judge(model, x[held], y[held]),
    }
    constant, troubles = _constant_log_likelihood(task, y[train], y[held]), []
    if result["log_likelihood"] < constant or (result.get("r2") or 0) < 0:
        troubles.append(
            f"no better than a constant: mean log-likelihood {result['log_likelihood']:.4g} of the "
            f"held-out rows, {constant:.4g} without any input"
        )
    if hasattr(model, "diagnostics"):
        found = model.diagnostics()
        result["convergence"] = str(found)
        troubles += found.troubles
    result["troubles"] = troubles
    predictions = as_csv(predicted(model, x[held], rows=held, truth=y[held]))
    model.partial_fit(x[held], y[held])
    model.table_ = encoding.plain()
    return Fit(model, result, predictions)


def encoding_of(model: Any) -> Encoding:
    """Return the encoding of the columns that a model was fitted to."""
    if not hasattr(model, "table_"):
        raise ValueError(
            "The model was not fitted to a table by `sghmc fit`: it does not know its columns."
        )
    return Encoding.restored(model.table_)


def predict_table(model: Any, table: Columns) -> dict[str, list]:
    """Return predictions with their uncertainty, by column."""
    x = encoding_of(model).matrix(table)
    return predicted(model, x, rows=np.arange(len(x)))


def predicted(model: Any, x: np.ndarray, *, rows: np.ndarray, truth=None) -> dict[str, list]:
    """Return columns of predictions; rows are numbered from 1, without the table's header."""
    if hasattr(model, "classes_"):
        p = model.predict_proba(x)
        unsure = model.predict_uncertainty(x)
        columns = {"prediction": model.classes_[p.argmax(1)], "confidence": p.max(1)}
        columns |= {f"p({label})": p[:, k] for k, label in enumerate(model.classes_)}
        columns |= {"entropy": unsure.entropy, "mutual_information": unsure.mutual_information}
    else:
        unsure = model.predict_uncertainty(x)
        low, high = model.predict_interval(x, 0.9).T
        columns = {"prediction": model.predict(x), **unsure._asdict()}
        columns |= {"low_90": low, "high_90": high}
    columns = {"row": rows + 1} | ({} if truth is None else {"truth": truth}) | columns
    return {name: column.tolist() for name, column in columns.items()}


def as_csv(columns: dict[str, list]) -> str:
    """Format columns as CSV that a spreadsheet can safely open.

    A label that begins like a formula gets an apostrophe before it: labels come from tables that
    somebody else may have written.

    >>> as_csv({"row": [1, 2], "prediction": ["=1+1", -3.5]})
    "row,prediction\\n1,'=1+1\\n2,-3.5\\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, columns))
    writer.writerows(map(_harmless, row) for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def _harmless(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    # A spreadsheet may skip blanks and unseen characters, and read signs of full width.
    seen = (
        c for c in unicodedata.normalize("NFKC", cell) if unicodedata.category(c)[0] not in "CZ"
    )
    text = f"'{cell}" if next(seen, "") in _FORMULA or cell.startswith(("\t", "\r")) else cell
    # A carriage return by itself is not quoted, and ends a row for those who read it.
    return text.replace("\r", "\n")


def _split(y: np.ndarray, task: str, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows to fit and rows to judge by, every class in its proportion."""
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction must be between 0 and 1, but is {fraction}.")
    generator = np.random.default_rng(seed)
    groups = [np.arange(len(y))]
    if task == "classification":
        groups = [np.flatnonzero(y == label) for label in np.unique(y)]
    shuffled = [generator.permutation(group) for group in groups]
    held = [group[: min(len(group) - 1, round(fraction * len(group)))] for group in shuffled]
    held = np.sort(np.concatenate(held))
    if len(held) == 0:
        raise ValueError(
            f"{len(y)} rows are too few to hold out {fraction:.0%}: take a larger test fraction or "
            f"more rows."
        )
    return np.setdiff1d(np.arange(len(y)), held), held


def _constant_log_likelihood(task: str, seen: np.ndarray, y: np.ndarray) -> float:
    """Return the mean log-likelihood under the seen rows' Gaussian or frequencies of classes."""
    if task == "classification":
        labels, counts = np.unique(seen, return_counts=True)
        return float(np.log(counts / len(seen))[np.searchsorted(labels, y)].mean())
    scale = max(float(np.std(seen)), np.finfo(float).tiny)
    errors = (y - np.mean(seen)) / scale
    return float(np.mean(-0.5 * errors**2) - np.log(scale) - 0.5 * np.log(2 * np.pi))


def _judge_classes(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    import jax.numpy as jnp

    from sghmc.results.scores import class_scores

    p = model.predict_proba(x)
    labels = np.searchsorted(model.classes_, y)
    scores = class_scores(jnp.asarray(p, jnp.float32), jnp.asarray(labels, jnp.int32))
    error, nll, brier, ece = (float(score) for score in scores)
    is_right = p.argmax(1) == labels
    return {
        "accuracy": 1 - error,
        "log_likelihood": -nll,
        "brier": brier,
        "ece": ece,
        "reliability": _reliability(p.max(1), is_right),
    }


def _reliability(confidence: np.ndarray, is_right: np.ndarray) -> dict[str, list[float]]:
    """Return mean confidence, accuracy and count of each bin of confidence that has rows."""
    bins = np.minimum((confidence * _NUM_BINS).astype(int), _NUM_BINS - 1)
    used = [bins == b for b in range(_NUM_BINS) if np.any(bins == b)]
    return {
        "expected": [float(confidence[each].mean()) for each in used],
        "observed": [float(is_right[each].mean()) for each in used],
        "count": [int(each.sum()) for each in used],
    }


def _judge_numbers(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return scores; calibration is how often the truth lies in central intervals, by level."""
    mean = model.predict(x)
    levels = (np.arange(_NUM_BINS) + 0.5) / _NUM_BINS
    place = np.abs(2 * model.predict_cdf(x, y) - 1)
    covered = [float(np.mean(place <= level)) for level in levels]
    spread = float(np.sum((y - y.mean()) ** 2))
    return {
        "r2": 1 - float(np.sum((y - mean) ** 2)) / spread if spread > 0 else None,
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "log_likelihood": float(model.log_likelihood(x, y).mean()),
        "ece": float(np.mean(np.abs(np.array(covered) - levels))),
        "reliability": {
            "expected": levels.tolist(),
            "observed": covered,
            "count": [len(y)] * len(levels),
        },
    }


def plot_reliability(result: dict[str, Any]) -> "Figure":
    """Plot observed against expected shares: a calibrated model lies on the diagonal."""
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=(5, 5), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=_GRAY, linewidth=1)
    reliability = result["reliability"]
    axis.plot(reliability["expected"], reliability["observed"], "o-", color=_BLUE)
    is_classifier = result["task"] == "classification"
    axis.set(
        xlabel="confidence" if is_classifier else "level of the interval",
        ylabel="accuracy" if is_classifier else "share of held-out rows inside",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"{result['num_test']} held-out rows, calibration error {result['ece']:.3f}",
    )
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def summary(result: dict[str, Any]) -> list[str]:
    """Return the scores in lines of plain words."""
    names = {
        "accuracy": "accuracy",
        "r2": "R²",
        "rmse": "root mean squared error",
        "log_likelihood": "mean log-likelihood",
        "ece": "calibration error (ECE)",
    }
    lines = [f"{result['model']} on {result['num_train']} rows, {len(result['inputs'])} inputs."]
    lines.append(f"On {result['num_test']} held-out rows:")
    shown = [(label, result[name]) for name, label in names.items() if result.get(name) is not None]
    lines += [f"  {label:<26}{value:10.4f}" for label, value in shown]
    lines += [f"Chains: {result['convergence']}."] if "convergence" in result else []
    return lines + [f"Doubtful: {trouble}." for trouble in result.get("troubles", [])]


# The page.

_MAX_Z_SCORE = 3.5
"""Largest z-score of a calibrated model: of ten, one is larger in one of 200 cases."""
_SCORES = {
    "accuracy": "accuracy",
    "r2": "R²",
    "rmse": "root mean squared error",
    "log_likelihood": "mean log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
}


def table_page(result: dict[str, Any]) -> str:
    """Return the page of a model that was fitted to a table and judged on held-out rows."""
    reliability = result["reliability"]
    points = list(zip(*(reliability[k] for k in ("expected", "observed", "count")), strict=True))
    words, is_calibrated, remedy = calibration(points, result["num_test"])
    if result.get("troubles"):
        # Calibration is no comfort where the fit itself is doubtful.
        words, is_calibrated, remedy = result["troubles"][0], False, "; ".join(result["troubles"])
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
                display.card(display.picture_address(plot_reliability(result)), "reliability plot"),
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


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
