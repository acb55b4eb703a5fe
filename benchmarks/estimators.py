"""Estimators with their defaults against scikit-learn's networks of the same size.

    python benchmarks/estimators.py [--data digits,wine] [--folds 10] [--seeds 0,1] [--jobs 2]
    python benchmarks/estimators.py --large
    python benchmarks/estimators.py --numbers 2000 100000

Scikit-learn's bundled data sets, standardized for both, each row predicted once for every seed by
models that saw the other folds of that seed's split. Scores are means over rows: of right answers,
or of 1 − (error / standard deviation of all targets)², whose mean is R². The log-likelihood of
MLPRegressor is that of a Gaussian with the variance of its training residuals.

Differences are ours minus theirs, with two standard errors. Splits share their rows, so the first
is that of a mean over rows, each row's difference being its average over the seeds: what other rows
of the same kind would change. The second is over the means of the seeds: what other splits and
random starts would change on these very rows.

`--large` fits 100,000 rows whose class probabilities are known, and scores 10,000 others by the
model and by those probabilities, which nobody can beat but by luck. Memory is the largest that the
process had until then. `--numbers` does the same with `BayesianMLPRegressor()` on so many rows with
known noise, twice each: the second fit, of other rows, has nothing to compile.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import resource
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sghmc.estimators import BayesianLogisticRegression, BayesianMLPClassifier, BayesianMLPRegressor

NOISE = 0.3
"""Standard deviation of the made-up numbers around their means."""

HIDDEN = (100,)
LOADERS = {
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
    "breast cancer": datasets.load_breast_cancer,
    "diabetes": datasets.load_diabetes,
}
_SMALLEST = 1e-15


class Judged(NamedTuple):
    """What one model did with a fold: a score and a log-likelihood for each row, seconds to fit."""

    scores: np.ndarray
    logs: np.ndarray
    seconds: float


class Task(NamedTuple):
    data: str
    num_folds: int
    seed: int
    fold: int

    def split(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All inputs and targets, and the places of training and test rows."""
        x, y = LOADERS[self.data](return_X_y=True)
        kind = StratifiedKFold if is_classes(y) else KFold
        folds = kind(self.num_folds, shuffle=True, random_state=self.seed)
        train, test = list(folds.split(x, y))[self.fold]
        return x, y, train, test


def is_classes(y: np.ndarray) -> bool:
    return y.dtype.kind == "i"


def judge(task: Task) -> dict[str, Judged]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    x, y, train, test = task.split()
    if is_classes(y):
        judge_rows, ours, theirs = judge_classes, BayesianMLPClassifier, MLPClassifier
    else:
        judge_rows, ours, theirs = judge_numbers, BayesianMLPRegressor, MLPRegressor
    network: Any = theirs(hidden_layer_sizes=HIDDEN, random_state=task.fold)
    models: dict[str, Any] = {
        "ours": ours(HIDDEN, random_state=task.fold),
        "theirs": make_pipeline(StandardScaler(), network),
    }
    found = {}
    for name, model in models.items():
        started = time.perf_counter()
        model.fit(x[train], y[train])
        seconds = time.perf_counter() - started
        found[name] = Judged(*judge_rows(model, x, y, train, test), seconds)
    return found


def judge_classes(model, x, y, train, test) -> tuple[np.ndarray, np.ndarray]:
    p = np.maximum(model.predict_proba(x[test]), _SMALLEST)
    return (p.argmax(1) == y[test]).astype(float), np.log(p[np.arange(len(p)), y[test]])


def judge_numbers(model, x, y, train, test) -> tuple[np.ndarray, np.ndarray]:
    squares = (model.predict(x[test]) - y[test]) ** 2
    if hasattr(model, "log_likelihood"):
        logs = model.log_likelihood(x[test], y[test])
    else:
        variance = np.mean((model.predict(x[train]) - y[train]) ** 2)
        logs = -0.5 * np.log(2 * np.pi * variance) - 0.5 * squares / variance
    return 1 - squares / np.var(y), logs


def compare(name: str, num_folds: int, seeds: list[int], jobs: int) -> dict[str, Any]:
    tasks = [Task(name, num_folds, seed, fold) for seed in seeds for fold in range(num_folds)]
    judged = run_all(tasks, jobs)
    result: dict[str, Any] = {"data": name, "folds": num_folds, "seeds": seeds}
    for place, quantity in enumerate(("score", "log_likelihood")):
        tables = {who: np.zeros((len(seeds), len(LOADERS[name]().target))) for who in judged[0]}
        for task, found in zip(tasks, judged, strict=True):
            for who, each in found.items():
                tables[who][seeds.index(task.seed), task.split()[3]] = each[place]
        result[quantity] = summary(tables["ours"], tables["theirs"])
    result["seconds"] = {
        who: float(np.mean([found[who].seconds for found in judged])) for who in judged[0]
    }
    return result


def summary(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Of tables (seed, row)."""
    differences = ours - theirs
    of_rows, of_seeds = differences.mean(0), differences.mean(1)
    return {
        "ours": float(ours.mean()),
        "theirs": float(theirs.mean()),
        "difference": float(differences.mean()),
        "error_over_rows": standard_error(of_rows),
        "error_over_seeds": standard_error(of_seeds),
        "of_seeds": of_seeds.tolist(),
    }


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def run_all(tasks: list[Task], jobs: int) -> list[dict[str, Judged]]:
    if jobs == 1:
        return [judge(task) for task in tasks]
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)
    with ProcessPoolExecutor(jobs, context, stay_on_one_core, (cores,)) as pool:
        return list(pool.map(judge, tasks))


def stay_on_one_core(cores) -> None:
    """Else every process would start as many threads as there are cores."""
    os.sched_setaffinity(0, {cores.get()})


def row(result: dict[str, Any]) -> str:
    cells = [result["data"]]
    for each in (result["score"], result["log_likelihood"]):
        cells += [f"{each['ours']:.4f}", f"{each['theirs']:.4f}"]
        errors = f"{each['error_over_rows']:.4f}, {each['error_over_seeds']:.4f}"
        cells.append(f"{each['difference']:+.4f} ± {errors}")
    seconds = result["seconds"]
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


def known_numbers(count: int, num_inputs: int, seed: int) -> tuple[np.ndarray, ...]:
    """Rows of which four inputs are of use; targets; their means."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, num_inputs))
    mean = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3])
    return x, mean + NOISE * generator.normal(size=count), mean


def measure_numbers(counts: list[int]) -> None:
    print("| rows, inputs | first, s | again, s | GB | log-lik. of new rows | of the truth |")
    print("| --- |" + " ---: |" * 5)
    for count in counts:
        num_inputs = 10 if count <= 2_000 else 20
        new_x, new_y, mean = known_numbers(20_000, num_inputs, 1)
        errors = (new_y - mean) / NOISE
        truth = np.mean(-0.5 * errors**2) - np.log(NOISE) - 0.5 * np.log(2 * np.pi)
        seconds = []
        for seed in (2, 3):
            x, y, _ = known_numbers(count, num_inputs, seed)
            started = time.perf_counter()
            model = BayesianMLPRegressor(random_state=0).fit(x, y)
            seconds.append(f"{time.perf_counter() - started:.1f}")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        found = np.mean(model.log_likelihood(new_x, new_y))
        cells = (
            f"{count:,}, {num_inputs}",
            *seconds,
            f"{memory:.2f}",
            f"{found:.4f}",
            f"{truth:.4f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Our estimators against scikit-learn's.")
    parser.add_argument("--data", default=",".join(LOADERS))
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seeds", default="0", help="Of the splits into folds.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes of one core each.")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--large", action="store_true", help="Only 100,000 rows of known classes.")
    parser.add_argument("--numbers", type=int, nargs="+", metavar="ROWS")
    arguments = parser.parse_args()
    if arguments.numbers:
        measure_numbers(arguments.numbers)
        return
    if arguments.large:
        measure_large()
        return
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    print("| data | score | sklearn | difference | log-lik. | sklearn | difference | s | sklearn |")
    print("| --- |" + " ---: |" * 8)
    results = []
    for name in arguments.data.split(","):
        results.append(compare(name, arguments.folds, seeds, arguments.jobs))
        print(row(results[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
