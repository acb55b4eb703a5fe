"""Rankings from implicit feedback: our recommender beside `implicit`'s ALS and BPR.

    python benchmarks/recommender_implicit.py --data ml-1m.zip [--rank 20]
    python benchmarks/recommender_implicit.py --synthetic 2000 1000 --draws 20   # a small try

Ratings of at least 4 are what came up; a fifth of each user's are held out at random, and all items
that did not come up for a user in training are ranked. Ours is `MatrixFactorization(likelihood=
"implicit")` as it is, one fit. The peers (from PyPI, in .peers/implicit, an environment of their
own) are fitted with every setting of a small grid, and the best is taken by the *held-out* pairs
themselves: more than we ask for. Everything in one run on the same cores. Prints Markdown; writes
result.json.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import venv
from typing import Any

import numpy as np

LEAST, HELD_OUT, K = 4.0, 0.2, 10
GRIDS: dict[str, dict[str, list[Any]]] = {
    "ALS": {
        "factors": [32, 64],
        "alpha": [1, 2, 5],
        "regularization": [1.0, 10.0, 100.0],
        "iterations": [15],
    },
    "BPR": {
        "factors": [32, 64, 128],
        "learning_rate": [0.01, 0.05],
        "regularization": [0.01, 0.1],
        "iterations": [100],
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, help="ratings: ml-1m.zip, ratings.dat, .npz")
    parser.add_argument("--synthetic", type=int, nargs=2, metavar=("USERS", "ITEMS"))
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--peers", nargs="*", choices=tuple(GRIDS), default=tuple(GRIDS))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/implicit"))
    parser.add_argument("--worker", nargs=2, metavar=("PEER", "FILE"))
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(peer(*options.worker)))
        return
    if (options.data is None) == (options.synthetic is None):
        parser.error("--data is needed, a file of ratings, or --synthetic.")
    result = compare(options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def compare(options: argparse.Namespace) -> dict[str, Any]:
    user, item = pairs(options)
    is_held_out = held_out(user, np.random.default_rng(0))
    parts = {
        "train": np.stack([user[~is_held_out], item[~is_held_out]]),
        "test": np.stack([user[is_held_out], item[is_held_out]]),
    }
    result: dict[str, Any] = {
        "users": int(user.max()) + 1,
        "items": int(item.max()) + 1,
        **{name: part.shape[1] for name, part in parts.items()},
        "cores": os.cpu_count(),
        "load": [os.getloadavg()[0]],
        "ours": ours(parts, options),
    }
    if options.peers:
        with tempfile.TemporaryDirectory() as folder:
            file = str(pathlib.Path(folder) / "pairs.npz")
            np.savez(file, **parts)  # pyright: ignore
            python = installed()
            for name in options.peers:
                result["load"].append(os.getloadavg()[0])
                result[name] = work(python, name, file)
    return result


def pairs(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Codes of what came up, without gaps."""
    if options.synthetic:
        users, items = options.synthetic
        rng = np.random.default_rng(0)
        factors = rng.normal(size=(users, 5)) @ rng.normal(size=(5, items))
        score = 0.6 * factors + rng.normal(size=items) - 4
        user, item = np.nonzero(rng.random((users, items)) < 1 / (1 + np.exp(-score)))
        return user, item
    from sghmc.recommender.ratings import load_ratings

    ratings = load_ratings(options.data)
    rows = np.flatnonzero(ratings.rating >= LEAST)
    codes = (np.unique(each[rows], return_inverse=True)[1] for each in (ratings.user, ratings.item))
    user, item = codes
    return user, item


def held_out(user: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A share of each user's pairs at random, to the nearest whole number."""
    count = np.bincount(user)
    order = np.lexsort((rng.random(len(user)), user))
    place = np.empty(len(user), np.int64)
    place[order] = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
    return place < np.round(HELD_OUT * count[user])


def ours(parts: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, Any]:
    from sghmc.estimators import MatrixFactorization

    start, cpu = time.perf_counter(), time.process_time()
    model = MatrixFactorization(options.rank, likelihood="implicit", num_draws=options.draws)
    model.fit(tuple(parts["train"]))
    taken = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    print(f"ours: {taken['seconds']:.0f} s", file=sys.stderr, flush=True)
    scores = model.evaluate(tuple(parts["test"]), k=K)
    return taken | {"rank": options.rank, "draws": options.draws} | scores


def installed() -> pathlib.Path:
    """A python that has `implicit`, in .peers, made where it is not there yet."""
    folder = pathlib.Path(".peers/implicit").absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "implicit"], check=True)
    return python


def work(python: pathlib.Path, name: str, file: str) -> Any:
    command = [python, __file__, "--worker", name, file]
    # Its own threads and BLAS' would get in each other's way, as it says itself.
    setting = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=setting)
    return json.loads(answer.stdout.splitlines()[-1])


def peer(name: str, file: str) -> list[dict[str, Any]]:
    """Scores of every setting of a peer's grid."""
    from implicit.als import AlternatingLeastSquares  # pyright: ignore[reportMissingImports]
    from implicit.bpr import BayesianPersonalizedRanking  # pyright: ignore[reportMissingImports]
    from scipy import sparse

    kinds = {"ALS": AlternatingLeastSquares, "BPR": BayesianPersonalizedRanking}
    parts = np.load(file)
    shape = np.max([part.max(axis=1) for part in parts.values()], axis=0) + 1
    seen, wanted = (
        sparse.csr_matrix((np.ones(part.shape[1], np.float32), tuple(part)), shape)
        for part in (parts["train"], parts["test"])
    )
    found = []
    for values in itertools.product(*GRIDS[name].values()):
        setting = dict(zip(GRIDS[name], values, strict=True))
        start = time.perf_counter()
        model = kinds[name](**setting, random_state=0)
        model.fit(seen, show_progress=False)
        seconds = time.perf_counter() - start
        score = ndcg(model.user_factors, model.item_factors, seen, wanted)
        found.append({**setting, "seconds": seconds, **score})
        print(f"{name} {setting}: {score[f'ndcg@{K}']:.4f}", file=sys.stderr, flush=True)
    return found


def ndcg(users: np.ndarray, items: np.ndarray, seen: Any, wanted: Any) -> dict[str, float]:
    """NDCG@10 over all items that were not seen: mean and standard error over users."""
    score = users @ items.T
    score[seen.nonzero()] = -np.inf
    best = np.argsort(-score, axis=1, kind="stable")[:, :K]
    is_wanted = wanted.toarray() > 0
    count = is_wanted.sum(axis=1)
    has_some = count > 0
    gain = 1 / np.log2(np.arange(2, K + 2))
    reached = (np.take_along_axis(is_wanted, best, axis=1) * gain).sum(axis=1)[has_some]
    most = np.cumsum(gain)[np.minimum(count[has_some], K) - 1]
    each = reached / most
    return {f"ndcg@{K}": float(each.mean()), "error": float(each.std(ddof=1) / len(each) ** 0.5)}


def table(result: dict[str, Any]) -> str:
    mine, key = result["ours"], f"ndcg@{K}"
    sizes = ("users", "items", "train", "test")
    lines = [", ".join(f"{result[name]:,} {name}" for name in sizes), ""]
    lines += ["| | setting | seconds | NDCG@10 |", "| --- | --- | --- | --- |"]
    lines.append(
        f"| **ours** | rank {mine['rank']}, {mine['draws']} draws | {mine['seconds']:.0f} | "
        f"{mine[key]:.4f} ± {mine[f'{key}_error']:.4f} |"
    )
    for name, grid in GRIDS.items():
        for row in sorted(result.get(name, []), key=lambda row: -row[key])[:3]:
            setting = ", ".join(f"{each} {row[each]}" for each in grid)
            lines.append(
                f"| implicit's {name} | {setting} | {row['seconds']:.0f} | "
                f"{row[key]:.4f} ± {row['error']:.4f} |"
            )
    loads = ", ".join(f"{load:.1f}" for load in result["load"])
    lines += ["", f"{result['cores']} cores; load average before each program: {loads}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
