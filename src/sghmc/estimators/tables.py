"""Fits tables and judges the model on held-out rows, for `sghmc fit` and `sghmc predict`."""

import csv
import datetime
import io
import unicodedata
import warnings
from typing import Any, NamedTuple

import numpy as np

from sghmc.core.version import __version__
from sghmc.data.table_files import Columns
from sghmc.estimators.encoding import DEFAULTS, Encoding, Options
from sghmc.estimators.linear import BayesianLinearRegression, BayesianLogisticRegression
from sghmc.estimators.mlp_classifier import BayesianMLPClassifier
from sghmc.estimators.mlp_regressor import BayesianMLPRegressor
from sghmc.estimators.table_page import verdict_of
from sghmc.estimators.table_scores import compare, inspect, judge

TASKS = ("classification", "regression")
KINDS = {
    ("classification", "mlp"): BayesianMLPClassifier,
    ("classification", "linear"): BayesianLogisticRegression,
    ("regression", "mlp"): BayesianMLPRegressor,
    ("regression", "linear"): BayesianLinearRegression,
}
_MAX_CLASSES = 20
"""Largest number of whole numbers that are taken for classes; more are a quantity."""
_FORMULA = ("=", "+", "-", "@")
"""Signs that a spreadsheet takes for the beginning of a formula, which it runs."""


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
    options: Options = DEFAULTS,
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
    y = table.get(target)
    task = detect_task(y) if task is None and y is not None else task
    if y is not None and (task not in TASKS or (task, kind) not in KINDS):
        raise ValueError(
            f"task must be one of {', '.join(TASKS)} and model mlp or linear, but they are "
            f"{task!r} and {kind!r}."
        )
    problems = _problems(table, target, task)
    encoding, taken, doubts = Encoding.of(table, target, options, problems)
    assert y is not None  # else there was a problem
    assert task is not None
    for doubt in doubts:
        warnings.warn(doubt, UserWarning, stacklevel=2)
    values = encoding.read(table).values
    x = encoding.expanded(values)
    train, held = _split(y, task, test_fraction, seed)
    model = KINDS[task, kind](random_state=seed, progress=progress, **settings)
    model.fit(x[train], y[train])
    result = {
        "task": task,
        "model": type(model).__name__,
        "target": target,
        "num_train": len(train),
        "num_test": len(held),
        "inputs": encoding.names,
        "columns": [_taken_target(target, y, task), *taken],
        "doubts": doubts,
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "settings": {name: str(value) for name, value in model.get_params().items()},
        **judge(task, model, x[held], y[held]),
        **compare(task, model, x[train], y[train], x[held], y[held]),
        **inspect(task, model, encoding, values[held], y[held]),
    }
    if hasattr(model, "diagnostics"):
        found = model.diagnostics()
        result["convergence"] = str(found)
        result["troubles"] += found.troubles
    predictions = as_csv(predicted(model, x[held], rows=held, truth=y[held]))
    model.partial_fit(x[held], y[held])
    model.table_ = encoding.plain()
    return Fit(model, result | {"verdict": verdict_of(result).verdict}, predictions)


def _problems(table: Columns, target: str, task: str | None) -> list[str]:
    """Return what keeps a column from being a target."""
    if target not in table:
        return [f"There is no column {target!r} to predict: the table has {', '.join(table)}."]
    y = table[target]
    is_text, fault = y.dtype == object, ""
    is_odd = (
        [v is None if is_text else not np.isfinite(v) for v in y] if y.dtype.kind != "M" else []
    )
    if y.dtype.kind == "M" or (is_text and not all(isinstance(v, str | None) for v in y)):
        fault = f"holds {y[0]!s}: give a column of numbers or classes"
    elif any(is_odd):
        fault = (
            f"has {sum(is_odd):,} missing or infinite values in {len(y):,} rows: leave these out"
        )
    elif task == "regression" and is_text:
        fault = f"holds text such as {y[0]!r}, but a regression needs numbers"
    elif task == "classification" and len(set(y.tolist())) == 1:
        fault = f"has one class only, {y[0]!s}: there is nothing to tell"
    return [f"The target {target!r} {fault}."] if fault else []


def _taken_target(target: str, y: np.ndarray, task: str) -> str:
    """Return what the target was taken for, with the option that changes it."""
    count = len(set(y.tolist()))
    if task == "classification":
        other = "" if y.dtype == object else " (--task regression takes it for a number)"
        return f"target: {target}, {count} classes{other}"
    is_count = y.dtype.kind in "iu" and y.min() >= 0
    kind = "a count, modelled as a number" if is_count else "a number"
    return (
        f"target: {target}, {kind} (--task classification takes its {count:,} values for classes)"
    )


def encoding_of(model: Any) -> Encoding:
    """Return the encoding of the columns that a model was fitted to."""
    if not hasattr(model, "table_"):
        raise ValueError(
            "The model was not fitted to a table by `sghmc fit`: it does not know its columns."
        )
    return Encoding.restored(model.table_)


def predict_table(model: Any, table: Columns) -> dict[str, list]:
    """Return predictions with their uncertainty, by column, and in the last what is odd of a row.

    A row with numbers that cannot be read has no prediction.
    """
    encoding = encoding_of(model)
    values, is_bad, flags = encoding.read(table)
    good = np.flatnonzero(~is_bad)
    if len(good) == 0:
        raise ValueError(f"No row can be predicted: in row 1 {'; '.join(flags[0])}.")
    x = encoding.expanded(values[good])
    if hasattr(model, "outside_range"):
        is_outside = model.outside_range(x)
        for name, places in encoding.places().items():
            for row in good[is_outside[:, places].any(1)]:
                flags[int(row)].append(f"{name} is outside the range of the fitted rows")
    found = predicted(model, x, rows=good)
    columns: dict[str, list] = {name: [None] * len(values) for name in found}
    for name, cells in found.items():
        for row, cell in zip(good, cells, strict=True):
            columns[name][row] = cell
    columns["row"] = list(range(1, len(values) + 1))
    return columns | {"flag": ["; ".join(flags.get(row, ())) for row in range(len(values))]}


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
