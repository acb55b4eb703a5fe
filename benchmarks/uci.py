"""`BayesianMLPRegressor()` on the field's own benchmark, beside bde and what is published.

    python benchmarks/uci.py --data DIR [--sets yacht,energy] [--splits 5] [--jobs 2]
    python benchmarks/uci.py --data DIR --peer bde     # the same splits by bde, in its environment
    python benchmarks/uci.py --data DIR --inner        # inside training rows, to choose settings
    python benchmarks/uci.py --report                  # only the tables

Nine regression sets with the splits that the whole literature uses: `DIR/*.npz` with arrays x, y,
num_rows and is_test (bits). Models are fitted with their defaults to the training rows of a split
and judged on its test rows: RMSE, mean log-likelihood, share of rows in 90 % intervals, CRPS,
seconds, and those of the processor. Where a target is rounded (wine: to whole numbers) a density
has no upper bound, and `log_share` is the fair score: log of the probability of what is rounded
to the value, over the gap. Each result is a line of `results/uci/results.jsonl` as soon as it is
there: a run that was stopped goes on. With several jobs each has one core.

Settings were chosen with `--inner`: a tenth of the training rows of splits 0 to 2 held out instead.
bde runs by the settings of its README: 8 members of 16-16 units, 200 epochs, 5000 steps of warm-up
and 2000 of sampling. Its environment is `--peer-python`, with the package sklearn-contrib-bde.

`--sets steps,zeros,waves` are three made-up tables of 1200 training rows on which a good
log-likelihood can hide a wrong mean; a split is a seed there.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any, NamedTuple

import numpy as np

HERE = pathlib.Path(__file__).parent
RESULTS = HERE.parent / "results" / "uci"
PEER_PYTHON = HERE.parent / ".peers" / "bde" / "bin" / "python"
SETS = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval", "protein")
MADE = ("steps", "zeros", "waves")
METRICS = ("log_likelihood", "log_share", "rmse", "coverage", "crps", "seconds", "cpu_seconds")
_NUM_SAMPLES = 2000

PUBLISHED: dict[str, dict[str, tuple[float | None, float]]] = {
    "PBP": {
        "boston": (3.01, -2.57), "concrete": (5.67, -3.16), "energy": (1.80, -2.04),
        "kin8nm": (0.10, 0.90), "naval": (0.01, 3.73), "power": (4.12, -2.84),
        "protein": (4.73, -2.97), "wine": (0.64, -0.97), "yacht": (1.02, -1.63),
    },
    "MC dropout": {
        "boston": (2.90, -2.40), "concrete": (4.82, -2.93), "energy": (0.54, -1.21),
        "kin8nm": (0.08, 1.14), "naval": (0.00, 4.45), "power": (4.01, -2.80),
        "protein": (4.27, -2.87), "wine": (0.62, -0.93), "yacht": (0.67, -1.25),
    },
    "deep ensembles": {
        "boston": (3.28, -2.41), "concrete": (6.03, -3.06), "energy": (2.09, -1.38),
        "kin8nm": (0.09, 1.20), "naval": (0.00, 5.63), "power": (4.11, -2.79),
        "protein": (4.71, -2.83), "wine": (0.64, -0.94), "yacht": (1.58, -1.18),
    },
    "adaptive SGHMC": {
        "boston": (None, -2.54), "concrete": (None, -3.38), "wine": (None, -1.04),
        "yacht": (None, -1.11),
    },
}  # fmt: skip
"""RMSE and log-likelihood: Gal & Ghahramani 2016 (PBP); yaringal/DropoutUncertaintyExps (dropout
with a grid by split); Lakshminarayanan et al. 2017; Springenberg et al. 2016."""


class Task(NamedTuple):
    who: str
    data: str
    set: str
    split: int
    is_inner: bool

    @property
    def name(self) -> tuple[str, str, int, bool]:
        return self.who, self.set, self.split, self.is_inner

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Inputs and targets to fit, and to judge by."""
        if self.set in MADE:
            x, y = make_rows(self.set, 2400, self.split)
            return x[:1200], y[:1200], x[1200:], y[1200:]
        with np.load(pathlib.Path(self.data) / f"{self.set}.npz") as file:
            x, y, is_test = file["x"], file["y"], file["is_test"]
            count = int(file["num_rows"])
        test = np.unpackbits(is_test, axis=1, count=count).astype(bool)[self.split]
        if not self.is_inner:
            return x[~test], y[~test], x[test], y[test]
        x, y = x[~test], y[~test]
        order = np.random.default_rng(1000 + self.split).permutation(len(x))
        held, seen = np.split(order, [len(x) // 10])
        return x[seen], y[seen], x[held], y[held]


def make_rows(name: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one of the made-up tables."""
    generator = np.random.default_rng(seed)
    x, noise = generator.normal(size=(count, 8)), generator.normal(size=count)
    if name == "steps":
        return x, 3.0 * (x[:, 0] > 0) + 5.0 * ((x[:, 1] > 1) & (x[:, 2] < 0)) + 0.1 * noise
    if name == "zeros":
        is_zero = generator.random(count) < 1 / (1 + np.exp(-2 * x[:, 0]))
        return x, np.where(is_zero, 0.0, np.exp(x[:, 1] + 0.5 * noise))
    x = generator.random((count, 2))
    return x, np.sin(40 * x[:, 0]) + 0.1 * noise


def num_splits(data: str, name: str) -> int:
    if name in MADE:
        return 20
    with np.load(pathlib.Path(data) / f"{name}.npz") as file:
        return len(file["is_test"])


def judge_ours(task: Task) -> dict[str, Any]:
    from sklearn.exceptions import ConvergenceWarning

    from sghmc.estimators import BayesianMLPRegressor

    warnings.simplefilter("ignore", ConvergenceWarning)
    x, y, new_x, new_y = task.rows()
    started, cpu_started = time.perf_counter(), time.process_time()
    model = BayesianMLPRegressor(random_state=task.split).fit(x, y)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    low, high = model.predict_interval(new_x, 0.9).T
    samples = model.sample_predictive(new_x, _NUM_SAMPLES, random_state=0)
    found = model.diagnostics()
    return {
        "log_likelihood": float(model.log_likelihood(new_x, new_y).mean()),
        "log_share": log_share(partial(model.predict_cdf, new_x), y, new_y),
        "rmse": float(np.sqrt(np.mean((model.predict(new_x) - new_y) ** 2))),
        "coverage": float(np.mean((low <= new_y) & (new_y <= high))),
        "crps": crps(samples, new_y),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "noise": model.noise_,
        "rhat": found.rhat,
        "troubles": found.troubles,
    }


def crps(samples: np.ndarray, y: np.ndarray) -> float:
    """E|Y − y| − ½ E|Y − Y'|, mean over rows, of samples (sample, row)."""
    ordered = np.sort(samples, axis=0)
    count = len(ordered)
    ranks = (2 * np.arange(1, count + 1) - count - 1)[:, None]
    spread = np.sum(ranks * ordered, axis=0) / (count * (count - 1))
    return float(np.mean(np.abs(samples - y[None]).mean(0) - spread))


def judge_bde(task: Task, python: str) -> dict[str, Any]:
    """In bde's own environment, which gets and gives arrays by files beside each other."""
    import tempfile

    x, y, new_x, new_y = task.rows()
    with tempfile.TemporaryDirectory() as folder:
        rows, laws = pathlib.Path(folder) / "rows.npz", pathlib.Path(folder) / "laws.npz"
        np.savez(rows, x=x, y=y, new_x=new_x)
        command = [python, str(HERE / "workloads" / "peer_bde.py"), rows, laws, str(task.split)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"bde ended with {done.returncode}:\n{done.stderr[-2000:]}")
        with np.load(laws) as file:
            mean, std = file["mean"], file["std"]
            times = {name: float(file[name]) for name in ("seconds", "cpu_seconds")}
    return mixture_scores(mean, std, y, new_y) | times


def log_share(cdf: Callable[[np.ndarray], np.ndarray], seen: np.ndarray, y: np.ndarray) -> float:
    """Mean log of P(within half a gap of y) over the gap; nan where targets are not rounded."""
    from sghmc.estimators.weighted_rows import rounding

    gap = rounding(seen) * 12**0.5
    if gap == 0:
        return float("nan")
    inside = cdf(y + gap / 2) - cdf(y - gap / 2)
    # A difference of numbers near 1 tells no smaller ones apart.
    return float(np.log(np.maximum(inside, np.finfo(float).eps) / gap).mean())


def mixture_scores(
    mean: np.ndarray, std: np.ndarray, seen: np.ndarray, y: np.ndarray
) -> dict[str, Any]:
    """Of Gaussians (draw, row), by the code that scores our own."""
    from sghmc.estimators.predictive import Predictive

    law = Predictive(mean, std, np.full((len(mean), 1), np.inf))
    samples = law.sample(np.random.default_rng(0), _NUM_SAMPLES)
    low, high = np.quantile(samples, [0.05, 0.95], axis=0)
    return {
        "log_likelihood": float(law.log_density(y).mean()),
        "log_share": log_share(law.cdf, seen, y),
        "rmse": float(np.sqrt(np.mean((law.mean() - y) ** 2))),
        "coverage": float(np.mean((low <= y) & (y <= high))),
        "crps": crps(samples, y),
        "smallest_std": float(std.min()),
    }


def judge(task: Task, peer_python: str) -> dict[str, Any]:
    found = judge_ours(task) if task.who == "ours" else judge_bde(task, peer_python)
    who, name, split, is_inner = task.name
    return {"who": who, "set": name, "split": split, "is_inner": is_inner, **found}


def take_one_core(cores) -> None:
    """Else every process would start as many threads as there are cores."""
    os.sched_setaffinity(0, {cores.get()})


def run(tasks: list[Task], jobs: int, peer_python: str, file: pathlib.Path) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)
    limits = {"initializer": take_one_core, "initargs": (cores,)} if jobs > 1 else {}
    with ProcessPoolExecutor(jobs, context, **limits) as pool:
        futures = {pool.submit(judge, task, peer_python): task for task in tasks}
        for future in as_completed(futures):
            task = futures[future]
            try:
                result = future.result()
            except (FloatingPointError, RuntimeError) as error:
                print(f"{task.who} {task.set} {task.split} FAILED: {error}", file=sys.stderr)
                continue
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(result) + "\n")
            shown = " ".join(f"{name} {result[name]:.4g}" for name in METRICS)
            print(f"{result['who']} {result['set']} {result['split']}: {shown}", flush=True)


def read(file: pathlib.Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def report(results: list[dict[str, Any]], is_inner: bool) -> str:
    """Means over splits, differences to bde paired over splits with their standard errors."""
    by_split = {
        (each["who"], each["set"], each["split"]): each
        for each in results
        if each["is_inner"] == is_inner
    }
    lines = []
    for metric in METRICS:
        others = list(PUBLISHED) if metric in ("rmse", "log_likelihood") and not is_inner else []
        head = ["set", "splits", f"ours, {metric}", "bde", "ours − bde", *others]
        lines += [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
        for name in (*SETS, *MADE):
            ours = _values(by_split, "ours", name, metric)
            theirs = _values(by_split, "bde", name, metric)
            if not ours:
                continue
            both = sorted(set(ours) & set(theirs))
            gaps = np.array([ours[split] - theirs[split] for split in both])
            cells = [name, str(len(ours)), _mean(list(ours.values())), _mean(list(theirs.values()))]
            cells += [_mean(gaps.tolist())]
            for other in others:
                pair = PUBLISHED[other].get(name, (None, None))
                value = pair[0] if metric == "rmse" else pair[1]
                cells.append("" if value is None else f"{value:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _values(results: dict, who: str, name: str, metric: str) -> dict[int, float]:
    return {
        split: each[metric]
        for (by, which, split), each in results.items()
        if (by, which) == (who, name) and np.isfinite(each[metric])
    }


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):.4g} ± {error:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The nine UCI sets.")
    parser.add_argument("--data", help="Folder of the sets.")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--splits", type=int, default=20, help="The first so many of each set.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes of one core each.")
    parser.add_argument("--peer", choices=["bde"], help="Run it in our place.")
    parser.add_argument("--peer-python", default=str(PEER_PYTHON))
    parser.add_argument("--inner", action="store_true", help="Judge inside the training rows.")
    parser.add_argument("--report", action="store_true", help="Only print what is there.")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.jsonl"
    if not options.report:
        if options.data is None and not set(options.sets.split(",")) <= set(MADE):
            parser.error("--data DIR is needed, unless --report.")
        done = {(each["who"], each["set"], each["split"], each["is_inner"]) for each in read(file)}
        tasks = [
            Task(options.peer or "ours", options.data or "", name, split, options.inner)
            for name in options.sets.split(",")
            for split in range(min(options.splits, num_splits(options.data or "", name)))
        ]
        left = [task for task in tasks if task.name not in done]
        run(left, options.jobs, options.peer_python, file)
    text = report(read(file), options.inner)
    (options.out / "tables.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
