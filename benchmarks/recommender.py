"""RMSE against time: our recommender and myFM, the Gibbs sampler that one would pick instead.

    python benchmarks/recommender.py --data ml-1m.zip [--iterations 512] [--out results/recommender]

One fold of five, rank 20, everything in one run on the same cores. Every row of ours is a fit of
its own in a fresh process, compilation included, from the call of `fit` to the end; only the last
is the default. myFM (from PyPI, in a virtual environment of its own) is one run, looked at as it
goes, the time of looking left out; once as `MyFMRegressor(rank=20).fit(X, y)`, and once told which
columns are users and which items (`group_shapes`), which gives it priors like ours. All predict
the mean of their draws, scored as it is and within the range of the ratings ("clipped"). Prints
Markdown; writes result.json.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import venv
from typing import Any

import numpy as np

RANK = 20
TARGET = 0.8411
PEERS = ("myFM", "myFM, groups")
DEFAULT_DRAWS = 100
NUM_DROPPED = 5
"""First iterations of myFM that its mean leaves out: its own default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, help="ratings: ml-1m.zip, ratings.dat, .npz")
    parser.add_argument("--draws", type=int, nargs="+", default=[10, 25, 50, DEFAULT_DRAWS])
    parser.add_argument("--iterations", type=int, default=512, help="of myFM; 0 leaves it out")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--myfm-python", type=pathlib.Path, help="a python that has myfm")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/recommender"))
    parser.add_argument("--worker", nargs=3, metavar=("WHO", "FILE", "COUNT"))
    options = parser.parse_args()
    if options.worker:
        who, file, count = options.worker
        print(json.dumps(ours(file, int(count)) if who == "ours" else myfm(who, file, int(count))))
        return
    if options.data is None:
        parser.error("--data is needed: a file of ratings.")
    result = compare(options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def compare(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder) / "fold.npz")
        write_fold(options.data, file)
        result: dict[str, Any] = {"data": options.data.name, "cores": os.cpu_count()}
        result |= {"load": [], "ours": []}
        for count in options.draws:
            result["load"].append(os.getloadavg()[0])
            result["ours"].append(work(sys.executable, "ours", file, count))
        if options.iterations:
            python = options.myfm_python or install_myfm(pathlib.Path(folder))
            for name in options.peers:
                result["load"].append(os.getloadavg()[0])
                result[name] = work(str(python), name, file, options.iterations)
        return result


def write_fold(data: pathlib.Path, file: str) -> None:
    from sghmc.recommender.ratings import folds, load_ratings

    ratings = load_ratings(data)
    train, test = folds(ratings, 5, seed=0)[0]
    columns = {
        f"{part}_{name}": getattr(ratings, name)[rows]
        for part, rows in (("train", train), ("test", test))
        for name in ("user", "item", "rating")
    }
    np.savez(file, sizes=[ratings.num_users, ratings.num_items], **columns)  # pyright: ignore


def install_myfm(folder: pathlib.Path) -> pathlib.Path:
    venv.create(folder / "myfm", with_pip=True)
    python = folder / "myfm" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "myfm"], check=True)
    return python


def work(python: str, who: str, file: str, count: int) -> Any:
    command = [python, __file__, "--worker", who, file, str(count)]
    print(f"{who} {count} …", file=sys.stderr, flush=True)
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def ours(file: str, num_draws: int) -> dict[str, float]:
    from sghmc.estimators import MatrixFactorization

    fold = np.load(file)
    start = time.perf_counter()
    model = MatrixFactorization(RANK, num_draws=num_draws, clip=False)
    model.fit(tuple(fold[f"train_{name}"] for name in ("user", "item", "rating")))
    seconds = time.perf_counter() - start
    mean, std = model.predict(fold["test_user"], fold["test_item"], return_std=True)
    predicting = time.perf_counter() - start - seconds
    return {
        "draws": num_draws,
        "seconds": seconds,
        **scores(fold, mean),
        "coverage_95": float(np.mean(np.abs(mean - fold["test_rating"]) < 1.96 * std)),
        "seconds_to_predict": predicting,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def myfm(name: str, file: str, num_iterations: int) -> list[dict[str, float]]:
    import myfm  # pyright: ignore[reportMissingImports]
    from scipy import sparse

    fold = np.load(file)
    sizes = fold["sizes"].tolist()

    def one_hot(part: str):
        user, item = fold[f"{part}_user"], fold[f"{part}_item"]
        columns = np.stack([user, sizes[0] + item], axis=1).ravel()
        starts = np.arange(0, 2 * len(user) + 1, 2)
        return sparse.csr_matrix((np.ones(len(columns)), columns, starts), (len(user), sum(sizes)))

    train = one_hot("train")
    user, item = fold["test_user"], sizes[0] + fold["test_item"]
    total, looked, trace = np.zeros(len(user)), 0.0, []
    start = time.perf_counter()

    def look(i, fm, hyper, history):
        nonlocal total, looked
        began = time.perf_counter()
        if i >= NUM_DROPPED:
            weights, factors = np.asarray(fm.w), np.asarray(fm.V)
            total += np.sum(factors[user] * factors[item], axis=1)
            total += fm.w0 + weights[user] + weights[item]
            mean = total / (i + 1 - NUM_DROPPED)
            point = {"iterations": i + 1, "seconds": began - start - looked}
            trace.append({**point, **scores(fold, mean)})
        looked += time.perf_counter() - began
        return False, None

    myfm.MyFMRegressor(rank=RANK).fit(
        train,
        fold["train_rating"].astype(np.float64),
        n_iter=num_iterations,
        n_kept_samples=1,
        group_shapes=sizes if name == "myFM, groups" else None,
        callback=look,
    )
    return trace


def scores(fold: Any, predicted: np.ndarray) -> dict[str, float]:
    """Errors of predictions as they are, and within the range of the ratings learned from."""
    ends = fold["train_rating"].min(), fold["train_rating"].max()
    return {
        name: float(np.sqrt(np.mean((values - fold["test_rating"]).astype(np.float64) ** 2)))
        for name, values in (("rmse", predicted), ("clipped", np.clip(predicted, *ends)))
    }


def table(result: dict[str, Any]) -> str:
    lines = ["| | seconds | RMSE | clipped | 95 % coverage | MB |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in result["ours"]:
        name = "**ours, the default**" if row["draws"] == DEFAULT_DRAWS else "ours"
        lines.append(
            f"| {name}, {row['draws']} draws | {row['seconds']:.1f} | {row['rmse']:.4f} | "
            f"{row['clipped']:.4f} | {row['coverage_95']:.1%} | {row['megabytes']:.0f} |"
        )
    peers = [name for name in PEERS if name in result]
    for name in peers:
        last = result[name][-1]["iterations"]
        for point in result[name]:
            if point["iterations"] in (16, 32, 64, 100, 128, 256, last):
                lines.append(
                    f"| {name}, {point['iterations']} iterations | {point['seconds']:.1f} | "
                    f"{point['rmse']:.4f} | {point['clipped']:.4f} | | |"
                )
    lines.append("")
    loads = ", ".join(f"{load:.1f}" for load in result["load"])
    lines.append(f"- {result['cores']} cores; load average before each program: {loads}")
    for name in ("ours", *peers):
        reached = [point["seconds"] for point in result[name] if point["rmse"] <= TARGET]
        when = f"after {min(reached):.1f} s" if reached else "not reached"
        lines.append(f"- {name}: {TARGET} {when}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
