"""Scores of a model on held-out rows, beside simpler models, and what its inputs are worth."""

import contextlib
from typing import Any, NamedTuple

import numpy as np

from sghmc.estimators.encoding import Encoding

_NUM_BINS = 10
"""Number of bins of confidence and of levels of intervals, as in the literature on calibration."""
_MAX_CV_ROWS = 20_000
"""Largest number of rows from which a rival's residuals are cross-validated."""
_MIN_RATIO, _SURE_RATIO = 1.1, 1.5
"""Ratios of root mean squared errors from which a rival is better: if the difference is clear, and
in any case."""
_MIN_GAIN, _CLEAR_ERRORS = 0.02, 2.0
"""Gain of log-likelihood a row, and standard errors, from which a rival is clearly better."""
_LEAST_PROBABILITY = 1e-9
_NUM_REPEATS, _MAX_PREDICTIONS = 5, 30_000
"""Permutations of each column, and predictions that they may take in all: a few seconds."""
_NUM_SHOWN, _NUM_GRID, _MAX_AVERAGED = 4, 12, 200
"""Columns whose effect is shown, values at which, and rows over which it is averaged."""
CONSTANT, LINEAR, BOOSTING = "a constant", "a linear model", "HistGradientBoosting"


class RowScores(NamedTuple):
    """Log-likelihoods of held-out rows, and squared errors or 1 for a wrong class."""

    log: np.ndarray
    loss: np.ndarray


def judge(task: str, model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the scores of a model, and how well its promises are kept."""
    return (_judge_classes if task == "classification" else _judge_numbers)(model, x, y)


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


# Simpler models on the same rows.


def compare(
    task: str, model: Any, seen_x: np.ndarray, seen: np.ndarray, x: np.ndarray, y: np.ndarray
) -> dict[str, Any]:
    """Return the scores of rivals, and in words which of them is better.

    To be no better than a constant is a fault; to be behind another model is a thing to mind.
    """
    is_classes = task == "classification"
    if is_classes:
        ours = _class_scores(model.classes_, model.predict_proba(x), y)
    else:
        ours = RowScores(model.log_likelihood(x, y), (y - model.predict(x)) ** 2)
    found = {CONSTANT: _constant(task, seen, y)}
    for name in (LINEAR, BOOSTING):
        # Too few rows of a class, or too few at all, for a rival's own splits.
        with contextlib.suppress(ValueError):
            rival = _class_rival if is_classes else _number_rival
            found[name] = rival(_rival(task, name, len(seen)), seen_x, seen, x, y)
    is_poor = ours.log.mean() < found[CONSTANT].log.mean()
    if not is_classes:
        is_poor |= ours.loss.mean() > np.mean((y - y.mean()) ** 2)
    words = (
        [f"no better than a constant: {_numbers(task, ours, found[CONSTANT])}"] if is_poor else []
    )
    better = [
        name for name in (LINEAR, BOOSTING) if name in found and _wins(found[name], ours, task)
    ]
    return {
        "rivals": {name: _means(task, each) for name, each in found.items()},
        "troubles": words,
        "cares": [
            f"{name} predicts these held-out rows better: {_numbers(task, ours, found[name])}"
            for name in better
        ],
    }


def _means(task: str, scores: RowScores) -> dict[str, float]:
    log, loss = float(scores.log.mean()), float(scores.loss.mean())
    other = {"accuracy": 1 - loss} if task == "classification" else {"rmse": loss**0.5}
    return {"log_likelihood": log, **other}


def _numbers(task: str, ours: RowScores, rival: RowScores) -> str:
    (log, other), (rival_log, rival_other) = (
        tuple(_means(task, each).values()) for each in (ours, rival)
    )
    name = "accuracy" if task == "classification" else "root mean squared error"
    return (
        f"mean log-likelihood {rival_log:.4g}, here {log:.4g}; {name} {rival_other:.4g}, here "
        f"{other:.4g}"
    )


def _wins(rival: RowScores, ours: RowScores, task: str) -> bool:
    """Tell whether a rival is clearly better, by log-likelihood or by squared error."""

    def is_clear(gains: np.ndarray) -> bool:
        return bool(gains.sum() > _CLEAR_ERRORS * gains.std() * len(gains) ** 0.5)

    gains = rival.log - ours.log
    if gains.mean() > _MIN_GAIN and is_clear(gains):
        return True
    if task == "classification":
        return False
    ratio = np.sqrt(ours.loss.mean() / max(rival.loss.mean(), np.finfo(float).tiny))
    return bool(ratio > _SURE_RATIO or (ratio > _MIN_RATIO and is_clear(ours.loss - rival.loss)))


def _constant(task: str, seen: np.ndarray, y: np.ndarray) -> RowScores:
    """Return the scores of the seen rows' Gaussian or frequencies of classes."""
    if task == "classification":
        labels, counts = np.unique(seen, return_counts=True)
        return _class_scores(labels, np.tile(counts / len(seen), (len(y), 1)), y)
    return _gaussian(np.full(len(y), np.mean(seen)), float(np.std(seen)), y)


def _gaussian(mean: np.ndarray, std: float, y: np.ndarray) -> RowScores:
    std = max(std, np.finfo(float).tiny)
    errors = (y - mean) / std
    return RowScores(-0.5 * errors**2 - np.log(std) - 0.5 * np.log(2 * np.pi), (y - mean) ** 2)


def _class_scores(labels: np.ndarray, p: np.ndarray, y: np.ndarray) -> RowScores:
    places = np.searchsorted(labels, y)
    right = np.maximum(p[np.arange(len(y)), places], _LEAST_PROBABILITY)
    return RowScores(np.log(right), (p.argmax(1) != places).astype(float))


def _rival(task: str, name: str, num_rows: int) -> Any:
    from sklearn import ensemble, impute, linear_model, pipeline, preprocessing

    is_classes = task == "classification"
    if name == BOOSTING:
        of = ensemble.HistGradientBoostingClassifier, ensemble.HistGradientBoostingRegressor
        return of[not is_classes](random_state=0)
    model = linear_model.LogisticRegression(max_iter=1000) if is_classes else linear_model.RidgeCV()
    fill = impute.SimpleImputer(keep_empty_features=True, add_indicator=True)
    return pipeline.make_pipeline(fill, preprocessing.StandardScaler(), model)


def _class_rival(model: Any, seen_x, seen, x, y) -> RowScores:
    model.fit(seen_x, seen)
    return _class_scores(model.classes_, model.predict_proba(x), y)


def _number_rival(model: Any, seen_x, seen, x, y) -> RowScores:
    """Return the scores of a model's mean, with the standard deviation of unseen rows' errors."""
    from sklearn.model_selection import cross_val_predict

    part = slice(None, _MAX_CV_ROWS)
    errors = seen[part] - cross_val_predict(model, seen_x[part], seen[part], cv=3)
    mean = model.fit(seen_x, seen).predict(x)
    return _gaussian(mean, float(np.sqrt(np.mean(errors**2))), y)


# What the table's columns are worth.


def inspect(
    task: str, model: Any, encoding: Encoding, values: np.ndarray, y: np.ndarray
) -> dict[str, Any]:
    """Return permutation importances, and partial dependence on the most important columns.

    Importance is what a score loses on held-out rows, with its standard deviation: mean
    log-likelihood of classes, root mean squared error of numbers.
    """
    from sklearn import inspection, pipeline, preprocessing

    def score(line: Any, values: np.ndarray, y: np.ndarray) -> float:
        if task == "classification":
            p = line.predict_proba(values)
            return float(_class_scores(line.classes_, p, y).log.mean())
        return -float(np.sqrt(np.mean((line.predict(values) - y) ** 2)))

    line = pipeline.make_pipeline(preprocessing.FunctionTransformer(encoding.expanded), model)
    count = max(50, _MAX_PREDICTIONS // (_NUM_REPEATS * values.shape[1]))
    order = np.random.default_rng(0).permutation(len(y))[:count]
    found: Any = inspection.permutation_importance(
        line, values[order], y[order], scoring=score, n_repeats=_NUM_REPEATS, random_state=0
    )
    pairs = zip(found.importances_mean.tolist(), found.importances_std.tolist(), strict=True)
    importance = dict(zip(encoding.inputs, map(list, pairs), strict=True))
    best = np.argsort(-found.importances_mean, kind="stable")[:_NUM_SHOWN]
    effects = [_effect(line, values[order], column, encoding) for column in best.tolist()]
    return {"importance": importance, "dependence": [each for each in effects if each]}


def _effect(line: Any, values: np.ndarray, place: int, encoding: Encoding) -> dict[str, Any] | None:
    """Return the mean prediction at values of a column, for each class if there are some."""
    from sklearn.inspection import partial_dependence

    column = encoding.columns[place]
    known = values[~np.isnan(values[:, place])][:_MAX_AVERAGED]
    is_category = "categories" in column
    if len(np.unique(known[:, place])) < 2 or "parts" in column:
        return None
    found: Any = partial_dependence(
        line,
        known,
        [place],
        categorical_features=[place] if is_category else None,
        grid_resolution=_NUM_GRID,
        percentiles=(0.0, 1.0),
        method="brute",
    )
    at = found["grid_values"][0].tolist()
    names = [*column.get("categories", ()), "other"]
    return {
        "column": column["name"],
        "at": [names[int(each)] for each in at] if is_category else at,
        "mean": found["average"].tolist(),
    }
