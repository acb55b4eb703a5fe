"""Estimators with their defaults against scikit-learn's networks of the same size.

    python benchmarks/estimators.py [--data digits,wine] [--folds 10] [--seed 0] [--out FILE]
    python benchmarks/estimators.py --large

Ten folds of scikit-learn's bundled data sets, standardized for both. Score: accuracy, or R². The
log-likelihood of MLPRegressor is that of a Gaussian with the variance of its training residuals.
Differences are ours minus theirs, paired over folds, with their standard error.

`--large` fits 100,000 rows whose class probabilities are known, and scores 10,000 others by the
model and by those probabilities, which nobody can beat but by luck. Memory is the largest that the
process had until then.
"""

import argparse
import json
import pathlib
import resource
import time
import warnings
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sghmc.estimators import (
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
)

HIDDEN = (100,)
LOADERS = {
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
    "breast cancer": datasets.load_breast_cancer,
    "diabetes": datasets.load_diabetes,
}
_SMALLEST = 1e-15


def judge_classes(train, test, fold: int) -> dict[str, tuple[float, float, float]]:
    (x, y), (new_x, new_y) = train, test
    models = {
        "ours": BayesianMLPClassifier(HIDDEN, random_state=fold),
        "theirs": make_pipeline(StandardScaler(), MLPClassifier(HIDDEN, random_state=fold)),
    }
    found = {}
    for name, model in models.items():
        started = time.perf_counter()
        model.fit(x, y)
        seconds = time.perf_counter() - started
        p = np.maximum(model.predict_proba(new_x), _SMALLEST)
        score = float(np.mean(p.argmax(1) == new_y))
        found[name] = (score, float(np.log(p[np.arange(len(p)), new_y]).mean()), seconds)
    return found


def judge_numbers(train, test, fold: int) -> dict[str, tuple[float, float, float]]:
    (x, y), (new_x, new_y) = train, test
    started = time.perf_counter()
    ours = BayesianMLPRegressor(HIDDEN, random_state=fold).fit(x, y)
    between = time.perf_counter()
    network: Any = MLPRegressor(hidden_layer_sizes=HIDDEN, random_state=fold)
    theirs = make_pipeline(StandardScaler(), network).fit(x, y)
    ended = time.perf_counter()
    variance = np.mean((theirs.predict(x) - y) ** 2)
    errors = theirs.predict(new_x) - new_y
    likelihood = -0.5 * np.log(2 * np.pi * variance) - 0.5 * np.mean(errors**2) / variance
    return {
        "ours": (
            float(ours.score(new_x, new_y)),
            float(ours.log_likelihood(new_x, new_y).mean()),
            between - started,
        ),
        "theirs": (float(theirs.score(new_x, new_y)), float(likelihood), ended - between),
    }


def compare(name: str, num_folds: int, seed: int) -> dict[str, Any]:
    x, y = LOADERS[name](return_X_y=True)
    is_classes = y.dtype.kind == "i"
    folds = (StratifiedKFold if is_classes else KFold)(num_folds, shuffle=True, random_state=seed)
    judge = judge_classes if is_classes else judge_numbers
    rows = [
        judge((x[train], y[train]), (x[test], y[test]), fold)
        for fold, (train, test) in enumerate(folds.split(x, y))
    ]
    columns = {who: np.array([row[who] for row in rows]).T for who in ("ours", "theirs")}
    result: dict[str, Any] = {"data": name, "folds": num_folds, "seed": seed}
    for place, quantity in enumerate(("score", "log_likelihood", "seconds")):
        ours, theirs = columns["ours"][place], columns["theirs"][place]
        differences = ours - theirs
        result[quantity] = {
            "ours": float(ours.mean()),
            "theirs": float(theirs.mean()),
            "difference": float(differences.mean()),
            "standard_error": float(differences.std(ddof=1) / np.sqrt(num_folds)),
            "differences": differences.tolist(),
        }
    return result


def row(result: dict[str, Any]) -> str:
    score, likelihood, seconds = (
        result[quantity] for quantity in ("score", "log_likelihood", "seconds")
    )
    cells = [result["data"]]
    for each in (score, likelihood):
        cells += [f"{each['ours']:.4f}", f"{each['theirs']:.4f}"]
        cells.append(f"{each['difference']:+.4f} ± {each['standard_error']:.4f}")
    cells += [f"{seconds['ours']:.1f}", f"{seconds['theirs']:.1f}"]
    return f"| {' | '.join(cells)} |"


def known_classes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of 20 inputs, four of them of use; labels; probabilities of both classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 20))
    p = 1 / (1 + np.exp(-2 * x[:, 0] * x[:, 1] - x[:, 2] + x[:, 3]))
    return x, (generator.random(count) < p).astype(int), np.column_stack([1 - p, p])


def measure_large() -> None:
    x, y, _ = known_classes(100_000, 0)
    new_x, new_y, truth = known_classes(10_000, 1)
    print("| model | accuracy | log-lik. | seconds | GB |")
    print("| --- |" + " ---: |" * 4)

    def show(name: str, p: np.ndarray, cost: str) -> None:
        score, likelihood = np.mean(p.argmax(1) == new_y), np.log(p[np.arange(len(p)), new_y])
        print(f"| {name} | {score:.4f} | {likelihood.mean():.4f} | {cost} |", flush=True)

    show("true probabilities", truth, "|")
    for kind in (BayesianLogisticRegression, BayesianMLPClassifier):
        started = time.perf_counter()
        model = kind(random_state=0).fit(x, y)
        seconds = time.perf_counter() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        show(kind.__name__, model.predict_proba(new_x), f"{seconds:.0f} | {memory:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Our estimators against scikit-learn's.")
    parser.add_argument("--data", default=",".join(LOADERS))
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="Of the split into folds.")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--large", action="store_true", help="Only 100,000 rows of known classes.")
    arguments = parser.parse_args()
    if arguments.large:
        measure_large()
        return
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| data | score | sklearn | difference | log-lik. | sklearn | difference | s | sklearn |")
    print("| --- |" + " ---: |" * 8)
    results = []
    for name in arguments.data.split(","):
        results.append(compare(name, arguments.folds, arguments.seed))
        print(row(results[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
