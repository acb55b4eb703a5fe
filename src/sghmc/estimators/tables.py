"""Fit a table and judge the model on held-out rows: the work of `sghmc fit` and `sghmc predict`."""

import csv
import io
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
_MOST_CLASSES = 20
"""Of whole numbers: more different ones are taken for a quantity."""
_NUM_BINS = 10
"""Of confidence, and levels of intervals: as in the literature on calibration."""
_FORMULA = ("=", "+", "-", "@")
"""Signs that a spreadsheet takes for the beginning of a formula, which it runs."""
_BLUE, _GRAY = "#0072b2", "#888888"


class Fit(NamedTuple):
    """The model, what it is worth, and its predictions for the held-out rows."""

    model: Any
    result: dict[str, Any]
    predictions: str


def detect_task(target: np.ndarray) -> str:
    """Text, booleans and few whole numbers are classes."""
    if target.dtype.kind in "Ob":
        return "classification"
    is_whole = target.dtype.kind in "iu"
    return TASKS[0] if is_whole and len(np.unique(target)) <= _MOST_CLASSES else TASKS[1]


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
    if hasattr(model, "diagnostics"):
        result["convergence"] = str(model.diagnostics())
    predictions = as_csv(predicted(model, x[held], rows=held, truth=y[held]))
    model.partial_fit(x[held], y[held])
    model.table_ = encoding.plain()
    return Fit(model, result, predictions)


def encoding_of(model: Any) -> Encoding:
    """What a fitted model knows about its columns."""
    if not hasattr(model, "table_"):
        raise ValueError(
            "The model was not fitted to a table by `sghmc fit`: it does not know its columns."
        )
    return Encoding.restored(model.table_)


def predict_table(model: Any, table: Columns) -> dict[str, list]:
    """Predictions with their uncertainty, by column."""
    x = encoding_of(model).matrix(table)
    return predicted(model, x, rows=np.arange(len(x)))


def predicted(model: Any, x: np.ndarray, *, rows: np.ndarray, truth=None) -> dict[str, list]:
    """Columns with an entry for each row, numbered from 1 as in the table without its header."""
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
    """Columns as a spreadsheet or any other program reads them.

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
    """Rows to fit and rows to judge by; of every class some to fit, in its proportion."""
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
    """Mean confidence, accuracy and count of each bin of confidence that has rows."""
    bins = np.minimum((confidence * _NUM_BINS).astype(int), _NUM_BINS - 1)
    used = [bins == b for b in range(_NUM_BINS) if np.any(bins == b)]
    return {
        "expected": [float(confidence[each].mean()) for each in used],
        "observed": [float(is_right[each].mean()) for each in used],
        "count": [int(each.sum()) for each in used],
    }


def _judge_numbers(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Calibration here: how often the truth lies in the central intervals, level by level."""
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
    """What was promised against what was seen: on the diagonal the model is calibrated."""
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
    """What came out, in plain words."""
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
    return lines + ([f"Chains: {result['convergence']}."] if "convergence" in result else [])
