"""The recommender against other programs, on predefined folds, and at scale.

    python benchmarks/recommender.py myfm --data ml-1m.zip [--iterations 512] [--draws 15 25 100]
    python benchmarks/recommender.py folds --data ml-100k.npz --folds folds.npz [--only 3]
        [--users u.user --items u.item] [--likelihood ordinal]
    python benchmarks/recommender.py implicit --data ml-1m.zip [--rank 20]
    python benchmarks/recommender.py fold-in --data ml-1m.zip [--new 1000] [--refit]
    python benchmarks/recommender.py top [--users 140000] [--items 27000] [--draws 100]
    python benchmarks/recommender.py scale [--ratings 20000000] [--estimate]
    python benchmarks/recommender.py lazy [--tables 100000 1000000 10000000] [--batch 10000]

`myfm`: RMSE against time on one fold of five. Each row of ours is a fit in a fresh process, with
compilation; only the last number of draws is the default. myFM, a Gibbs sampler in C++, is one run
scored as it goes, without the time of scoring; with `--peers "myFM, groups"` it is told which
columns are users and which items, which gives it priors like ours. All predict the mean of their
draws, scored as it is and clipped to the range of the ratings. `folds`: the predefined folds of
MovieLens 100K; the file has an array "fold", the number of the test fold of each rating.
`implicit`: ratings of at least 4 are what came up, and a fifth of each user's are held out. ALS and
BPR of `implicit` are fitted with every setting of a small grid, the best chosen by the *held-out*
pairs: an advantage for them. `fold-in` fits all but some users, folds those in with four fifths of
their ratings, and scores the rest; `--refit` also fits everything. `top` makes draws up and calls
`recommend_all` twice, since the first call compiles. `scale` makes ratings up, fits them with the
default settings and scores held-out ones; `--estimate` makes short fits and extrapolates. `lazy`
compares a step of `Lazy` with one of `SGHMC` on tables of so many users.

`--synthetic USERS ITEMS` makes ratings up in place of `--data`. Other programs come from PyPI, into
environments in .peers. Prints Markdown or JSON; `--out FILE` also writes JSON.
"""

import argparse
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

TARGET_RMSE = 0.8411
NUM_DROPPED = 5
"""First iterations of myFM that its mean leaves out: its own default."""
PRINTED_ITERATIONS = (16, 32, 64, 100, 128, 256)
MIN_LIKED, HELD_OUT_SHARE, K = 4.0, 0.2, 10
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
"""Settings of implicit's methods."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    found = {name: parts.add_parser(name) for name in PARTS}
    for name in ("myfm", "folds", "implicit", "fold-in"):
        found[name].add_argument("--data", type=pathlib.Path, help="a file of ratings")
        found[name].add_argument("--synthetic", type=int, nargs=2, metavar=("USERS", "ITEMS"))
    for each in found.values():
        each.add_argument("--rank", type=int, default=20)
        each.add_argument("--out", type=pathlib.Path, help="a file for the result as JSON")
    for name in ("folds", "implicit", "fold-in", "top", "scale"):
        found[name].add_argument("--draws", type=int, default=100)
    for name in ("top", "scale", "lazy"):
        found[name].add_argument("--users", type=int, default=140_000)
        found[name].add_argument("--items", type=int, default=27_000)
    add = found["myfm"].add_argument
    add("--draws", type=int, nargs="+", default=[10, 25, 50, 100])
    add("--iterations", type=int, default=512, help="of myFM; 0 leaves it out")
    add("--peers", nargs="+", default=["myFM", "myFM, groups"])
    add = found["folds"].add_argument
    add("--folds", type=pathlib.Path, help=".npz with `fold`; without it five random ones")
    add("--only", type=int, nargs="+", help="some of the folds")
    add("--users", type=pathlib.Path, help="features of users: u.user")
    add("--items", type=pathlib.Path, help="features of items: u.item")
    for name in ("folds", "fold-in"):
        found[name].add_argument("--likelihood", default="gaussian")
    found["implicit"].add_argument("--peers", nargs="*", choices=tuple(GRIDS), default=list(GRIDS))
    add = found["fold-in"].add_argument
    add("--new", type=int, default=1000, help="users to fold in")
    add("--refit", action="store_true", help="also fit everything, to compare")
    add = found["top"].add_argument
    add("--seen", type=int, default=143, help="ratings of each user")
    add("-k", type=int, default=10)
    add("--by", choices=("mean", "upper", "lower", "draw"), default="mean")
    add = found["scale"].add_argument
    add("--ratings", type=int, default=20_000_000)
    add("--estimate", action="store_true", help="short fits, extrapolated")
    add = found["lazy"].add_argument
    add("--tables", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    add("--batch", type=int, default=10_000)
    add("--steps", type=int, default=50, help="between draws")
    add("--kinds", nargs="+", choices=("eager", "lazy"), default=["eager", "lazy"])
    options = parser.parse_args()
    if hasattr(options, "data") and (options.data is None) == (options.synthetic is None):
        parser.error("give --data, a file of ratings, or --synthetic USERS ITEMS.")
    return options


def main() -> None:
    if sys.argv[1:2] == ["worker"]:  # in a process of its own, maybe without sghmc
        print(json.dumps(WORKERS[sys.argv[2]](*sys.argv[3:])))
        return
    options = arguments()
    result = PARTS[options.part](options)
    result["machine"] = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(result.pop("table", None) or json.dumps(result, indent=1))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


def loaded(options: argparse.Namespace) -> Any:
    from sghmc.recommender.ratings import load_ratings, synthetic_ratings

    if options.synthetic:
        return synthetic_ratings(0, *options.synthetic)
    return load_ratings(options.data)


def environment(package: str) -> str:
    """Return a python that has a package, in .peers; it is installed on the first call."""
    folder = pathlib.Path(".peers", package).absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return str(python)


def in_process(python: str, *words: object, **variables: str) -> Any:
    """Run a worker of this file in a fresh process, and return its answer."""
    print(*words, "…", file=sys.stderr, flush=True)
    command = [python, __file__, "worker", *map(str, words)]
    answer = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | variables
    )
    return json.loads(answer.stdout.splitlines()[-1])


def markdown(names: Sequence[str], rows: list[tuple[str, ...]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# RMSE against time, beside myFM.


def against_myfm(options: argparse.Namespace) -> dict[str, Any]:
    from sghmc.recommender.ratings import folds

    ratings = loaded(options)
    train, test = folds(ratings, 5, seed=0)[0]
    columns = {
        f"{part}_{name}": getattr(ratings, name)[rows]
        for part, rows in (("train", train), ("test", test))
        for name in ("user", "item", "rating")
    }
    peers = options.peers if options.iterations else []
    result: dict[str, Any] = {"ours": []}
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder) / "fold.npz")
        np.savez(file, sizes=[ratings.num_users, ratings.num_items], **columns)  # pyright: ignore
        for count in options.draws:
            result["ours"].append(in_process(sys.executable, "ours", file, count, options.rank))
        for name in peers:
            words = (name, file, options.iterations, options.rank)
            result[name] = in_process(environment("myfm"), *words)
    rows = [
        (f"ours, {row['draws']} draws", f"{row['seconds']:.1f}", f"{row['rmse']:.4f}",
         f"{row['clipped']:.4f}", f"{row['coverage_95']:.1%}", f"{row['megabytes']:.0f}")
        for row in result["ours"]
    ]  # fmt: skip
    for name in peers:
        for point in result[name]:
            if point["iterations"] in (*PRINTED_ITERATIONS, options.iterations):
                cells = f"{point['seconds']:.1f}", f"{point['rmse']:.4f}", f"{point['clipped']:.4f}"
                rows.append((f"{name}, {point['iterations']} iterations", *cells, "", ""))
    names = ["", "seconds", "RMSE", "clipped", "covered by 95 %", "MB"]
    lines = [markdown(names, rows), ""]
    for name in ("ours", *peers):
        reached = [point["seconds"] for point in result[name] if point["rmse"] <= TARGET_RMSE]
        when = f"after {min(reached):.1f} s" if reached else "not reached"
        lines.append(f"- {name}: {TARGET_RMSE} {when}")
    return result | {"table": "\n".join(lines)}


def ours(file: str, num_draws: str, rank: str) -> dict[str, float]:
    from sghmc.estimators import MatrixFactorization

    fold = np.load(file)
    model = MatrixFactorization(int(rank), num_draws=int(num_draws), clip=False)
    columns = tuple(fold[f"train_{name}"] for name in ("user", "item", "rating"))
    seconds, _ = timed(lambda: model.fit(columns))
    mean, std = model.predict(fold["test_user"], fold["test_item"], return_std=True)
    return {
        "draws": int(num_draws),
        "seconds": seconds,
        **errors(fold, mean),
        "coverage_95": float(np.mean(np.abs(mean - fold["test_rating"]) < 1.96 * std)),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def myfm(file: str, num_iterations: str, rank: str, has_groups: bool = False) -> list[Any]:
    import myfm  # pyright: ignore[reportMissingImports]
    from scipy import sparse

    fold = np.load(file)
    sizes = fold["sizes"].tolist()
    columns = np.stack([fold["train_user"], sizes[0] + fold["train_item"]], axis=1).ravel()
    starts = np.arange(0, len(columns) + 1, 2)
    shape = (len(starts) - 1, sum(sizes))
    train = sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape)
    user, item = fold["test_user"], sizes[0] + fold["test_item"]
    total, scoring, trace = np.zeros(len(user)), 0.0, []
    start = time.perf_counter()

    def score(i, fm, hyper, history):
        nonlocal total, scoring
        began = time.perf_counter()
        if i >= NUM_DROPPED:
            weights, factors = np.asarray(fm.w), np.asarray(fm.V)
            total += np.sum(factors[user] * factors[item], axis=1)
            total += fm.w0 + weights[user] + weights[item]
            mean = total / (i + 1 - NUM_DROPPED)
            point = {"iterations": i + 1, "seconds": began - start - scoring}
            trace.append({**point, **errors(fold, mean)})
        scoring += time.perf_counter() - began
        return False, None

    myfm.MyFMRegressor(rank=int(rank)).fit(
        train,
        fold["train_rating"].astype(np.float64),
        n_iter=int(num_iterations),
        n_kept_samples=1,
        group_shapes=sizes if has_groups else None,
        callback=score,
    )
    return trace


def errors(fold: Any, predicted: np.ndarray) -> dict[str, float]:
    """Score predictions as they are, and clipped to the range of the ratings learned from."""
    ends = fold["train_rating"].min(), fold["train_rating"].max()
    return {
        name: float(np.sqrt(np.mean((values - fold["test_rating"]).astype(np.float64) ** 2)))
        for name, values in (("rmse", predicted), ("clipped", np.clip(predicted, *ends)))
    }


# Predefined folds, with features and other likelihoods.


def predefined_folds(options: argparse.Namespace) -> dict[str, Any]:
    from sghmc.estimators import MatrixFactorization
    from sghmc.recommender.features import load_side

    ratings = loaded(options)
    if options.folds:
        fold = np.load(options.folds)["fold"]
    else:
        fold = np.random.default_rng(0).integers(1, 6, len(ratings))
    paths = {"user": options.users, "item": options.items}
    sides: Any = {f"{side}s": load_side(path, side) for side, path in paths.items() if path}
    rows, scores = [], []
    for number in options.only or np.unique(fold).tolist():
        train, test = (
            ratings.take(np.flatnonzero(each)) for each in (fold != number, fold == number)
        )
        model = MatrixFactorization(
            options.rank, num_draws=options.draws, likelihood=options.likelihood
        )
        seconds, model = timed(lambda: model.fit(train, **sides))  # noqa: B023
        found = model.evaluate(test)
        scores.append({"fold": number, "seconds": seconds, **found})
        probability = found.get("log_probability")
        rows.append((
            str(number), f"{seconds:.1f}", f"{found['rmse']:.4f} ± {found['rmse_error']:.4f}",
            f"{found['log_likelihood']:.4f}", "" if probability is None else f"{probability:.4f}",
            f"{found['coverage']['95%']:.1%}", f"{found['ndcg@10']:.4f}",
        ))  # fmt: skip
        print(*rows[-1], file=sys.stderr, flush=True)
    rows.append(("mean", "", f"{np.mean([each['rmse'] for each in scores]):.4f}", *[""] * 4))
    names = "fold, seconds, RMSE, log-likelihood, log-probability, covered by 95 %, NDCG@10"
    return {"folds": scores, "table": markdown(names.split(", "), rows)}


# Rankings from implicit feedback, beside ALS and BPR.


def against_implicit(options: argparse.Namespace) -> dict[str, Any]:
    from sghmc.estimators import MatrixFactorization
    from sghmc.recommender.rating_answers import ranking_scores

    ratings = loaded(options)
    liked = ratings.rating >= MIN_LIKED
    user, item = (
        np.unique(each[liked], return_inverse=True)[1] for each in (ratings.user, ratings.item)
    )
    # A share of each user's pairs at random, to the nearest whole number.
    count = np.bincount(user)
    order = np.lexsort((np.random.default_rng(0).random(len(user)), user))
    place = np.empty(len(user), np.int64)
    place[order] = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
    is_test = place < np.round(HELD_OUT_SHARE * count[user])
    train, test = (np.stack([user[rows], item[rows]]) for rows in (~is_test, is_test))
    model = MatrixFactorization(options.rank, likelihood="implicit", num_draws=options.draws)
    seconds, _ = timed(lambda: model.fit(tuple(train)))
    mine = model.evaluate(tuple(test), k=K)
    result: dict[str, Any] = {"pairs": len(user), "ours": {"seconds": seconds, **mine}}
    setting = f"rank {options.rank}, {options.draws} draws"
    rows = [("**ours**", setting, f"{seconds:.0f}", with_error(mine))]
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder) / "pairs.npz")
        np.savez(file, train=train, test=test)
        for name in options.peers:
            # Its own threads and those of BLAS would compete.
            python = environment("implicit")
            found = in_process(python, name, file, OPENBLAS_NUM_THREADS="1")
            for each in found:
                best = np.array(each.pop("best"))
                users, rank = np.indices(best.shape)
                columns = users.ravel(), best.ravel(), rank.ravel() + 1
                each.update(ranking_scores(*columns, test.T, K))
            found.sort(key=lambda each: -each[f"ndcg@{K}"])
            result[name] = found
            for each in found[:3]:
                setting = ", ".join(f"{key} {each[key]}" for key in GRIDS[name])
                rows.append(
                    (f"implicit's {name}", setting, f"{each['seconds']:.0f}", with_error(each))
                )
    return result | {"table": markdown(["", "setting", "seconds", f"NDCG@{K}"], rows)}


def with_error(scores: dict[str, Any]) -> str:
    return f"{scores[f'ndcg@{K}']:.4f} ± {scores[f'ndcg@{K}_error']:.4f}"


def implicit_grid(name: str, file: str) -> list[dict[str, Any]]:
    """Fit every setting of a grid of implicit's methods, and return the best items of all users."""
    from implicit.als import AlternatingLeastSquares  # pyright: ignore[reportMissingImports]
    from implicit.bpr import BayesianPersonalizedRanking  # pyright: ignore[reportMissingImports]
    from scipy import sparse

    kind = {"ALS": AlternatingLeastSquares, "BPR": BayesianPersonalizedRanking}[name]
    parts = np.load(file)
    shape = np.max([part.max(axis=1) for part in parts.values()], axis=0) + 1
    train = parts["train"]
    seen = sparse.csr_matrix((np.ones(train.shape[1], np.float32), tuple(train)), shape)
    found = []
    for values in itertools.product(*GRIDS[name].values()):
        setting = dict(zip(GRIDS[name], values, strict=True))
        model = kind(**setting, random_state=0)
        start = time.perf_counter()
        model.fit(seen, show_progress=False)
        seconds = time.perf_counter() - start
        score = model.user_factors @ model.item_factors.T
        score[seen.nonzero()] = -np.inf
        best = np.argsort(-score, axis=1, kind="stable")[:, :K]
        found.append({**setting, "seconds": seconds, "best": best.tolist()})
    return found


# New users, all users, many ratings, lazy rows.


def new_users(options: argparse.Namespace) -> dict[str, Any]:
    from sghmc.estimators import MatrixFactorization

    ratings = loaded(options)
    if options.likelihood == "implicit":
        ratings = ratings.take(np.flatnonzero(ratings.rating >= MIN_LIKED))
    rng = np.random.default_rng(0)
    is_new = np.isin(ratings.user, rng.permutation(ratings.num_users)[: options.new])
    rows = np.flatnonzero(is_new)
    is_test = np.zeros(len(ratings), bool)
    is_test[rows[rng.random(len(rows)) < HELD_OUT_SHARE]] = True

    def table(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        ids = ratings.users[ratings.user[rows]], ratings.items[ratings.item[rows]]
        return (*ids, ratings.rating[rows])

    def fitted(rows: np.ndarray) -> Any:
        settings = {"likelihood": options.likelihood, "num_draws": options.draws}
        return MatrixFactorization(options.rank, **settings).fit(table(rows))

    known, new, test = ~is_new, is_new & ~is_test, table(is_test)
    seconds, model = timed(lambda: fitted(known))
    result: dict[str, Any] = {"new users": options.new, "seconds to fit the others": seconds}
    before = model.draws_, model.ratings_, model.num_fits_
    for name in ("with compilation", "seconds to fold in"):
        model.draws_, model.ratings_, model.num_fits_ = before
        result[name], _ = timed(lambda: model.fold_in(table(new)))
    result["fold-in"] = model.evaluate(test)
    if options.refit:
        seconds, whole = timed(lambda: fitted(known | new))
        result |= {"seconds to refit": seconds, "refit": whole.evaluate(test)}
    return result


def top(options: argparse.Namespace) -> dict[str, Any]:
    """Time the best items of all users, of a model whose draws vary around random factors."""
    from sghmc.estimators import MatrixFactorization
    from sghmc.recommender.ratings import Ratings

    rng = np.random.default_rng(0)
    model = MatrixFactorization(options.rank, num_draws=options.draws)
    draws: dict[str, np.ndarray] = {"noise": np.ones((options.draws, options.users), np.float32)}
    for side, size in (("user", options.users), ("item", options.items)):
        center = rng.standard_normal((size, options.rank + 1), np.float32) * 0.4
        draws[side] = np.empty((options.draws, *center.shape), np.float32)
        for each in draws[side]:
            each[:] = center + 0.1 * rng.standard_normal(center.shape, np.float32)
        draws[f"{side}.mean"] = np.zeros((options.draws, options.rank + 1))
        draws[f"{side}.precision"] = np.ones((options.draws, options.rank + 1))
    count = options.users * options.seen
    model.draws_, model.scale_ = draws, np.array([3.5, 1.0])
    model.ratings_ = Ratings(
        np.repeat(np.arange(options.users, dtype=np.int32), options.seen),
        rng.integers(options.items, size=count, dtype=np.int32),
        rng.integers(1, 6, size=count).astype(np.float32),
        np.arange(options.users),
        np.arange(options.items),
    )

    def recommended() -> Any:
        return model.recommend_all(options.k, by=options.by, random_state=0)

    (first, _), (seconds, best) = timed(recommended), timed(recommended)
    return {"rows": len(best.user), "seconds": seconds, "with compilation": first}


def scale(options: argparse.Namespace) -> dict[str, Any]:
    """Fit ratings that were made up, and score held-out ones."""
    from sghmc.estimators import MatrixFactorization
    from sghmc.recommender.rating_likelihoods import GaussianRatings
    from workloads.tables import NOISE, made_up_ratings

    held_out = options.ratings // 100
    counts = options.users, options.items, options.rank, options.ratings + held_out
    seconds, ratings = timed(lambda: made_up_ratings(0, *counts))
    test, train = ratings.part(slice(held_out)), ratings.part(slice(held_out, None))
    result: dict[str, Any] = {"ratings": len(train.user), "seconds to make them up": seconds}

    def fit(num_draws: int, **settings: int) -> tuple[float, Any]:
        model = MatrixFactorization(options.rank, num_draws=num_draws).set_params(**settings)
        return timed(lambda: model.fit(tuple(train)))

    if not options.estimate:
        seconds, model = fit(options.draws)
        means = model.predict(test.user, test.item)
        error = float(np.sqrt(np.mean((means - test.rating) ** 2)))
        return result | {"seconds": seconds, "RMSE": error, "RMSE of the exact means": NOISE}
    usual = GaussianRatings.schedule
    few = {"thinning": usual.thinning, "num_burnin": 2 * usual.thinning}
    first, _ = fit(1, **few)
    short, _ = fit(1, **few)
    draws, _ = fit(4, **few)
    burnin, _ = fit(1, **few | {"num_burnin": 4 * usual.thinning})
    of_draw, of_burnin = (draws - short) / 3, (burnin - short) / (2 * usual.thinning)
    left = (options.draws - 1) * of_draw + (usual.num_burnin - few["num_burnin"]) * of_burnin
    return result | {
        "seconds of a first, short fit": first,
        "seconds of a draw": of_draw,
        "seconds of a step of burn-in": of_burnin,
        "seconds, estimated": first + left,
    }


def lazy(options: argparse.Namespace) -> dict[str, Any]:
    """Time a step on tables of so many users, in milliseconds."""
    from workloads.tables import step_costs

    sizes = options.items, options.rank, options.batch, options.steps
    result: dict[str, Any] = {"batch": options.batch, "steps between draws": options.steps}
    for users, kind in itertools.product(options.tables, options.kinds):
        costs = step_costs(users, *sizes, is_lazy=kind == "lazy")
        result[f"{kind}, {users:,} users"] = {
            f"{part}, {unit}": 1000 * getattr(getattr(costs, part), unit)
            for part in ("step", "settling")
            for unit in ("clock", "cores")
        }
        print(f"{kind}, {users:,} users: {costs.step.clock * 1000:.3g} ms", file=sys.stderr)
    return result


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "myfm": against_myfm,
    "folds": predefined_folds,
    "implicit": against_implicit,
    "fold-in": new_users,
    "top": top,
    "scale": scale,
    "lazy": lazy,
}
WORKERS: dict[str, Callable[..., Any]] = {
    "ours": ours,
    "myFM": myfm,
    "myFM, groups": lambda *words: myfm(*words, has_groups=True),
    "ALS": lambda file: implicit_grid("ALS", file),
    "BPR": lambda file: implicit_grid("BPR", file),
}

if __name__ == "__main__":
    main()
