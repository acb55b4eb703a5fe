"""The recommender at scale: a fit, its steps, the best items for all users, new users.

    python benchmarks/recommender_scale.py top [--users 140000] [--items 27000] [--draws 100]
    python benchmarks/recommender_scale.py fold-in --data ml-1m.zip [--new 1000] [--refit]
        [--likelihood ordinal]
    python benchmarks/recommender_scale.py scale [--ratings 20000000] [--estimate]
    python benchmarks/recommender_scale.py lazy [--tables 100000 1000000 10000000] [--batch 10000]

`top` makes draws up (what they are does not matter for the time) and calls `recommend_all` twice;
the first call compiles. `fold-in` fits all but some users, takes those in with four fifths of their
ratings, and scores the rest; with --refit also a fit of everything. `scale` makes ratings up, fits
them with the default settings and scores ratings held out; with --estimate it makes short fits, and
says how long the whole would take. `lazy` compares a step of `Lazy` with one of `SGHMC` on tables
of so many users. Prints JSON.
"""

import argparse
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sghmc.estimators import MatrixFactorization
from sghmc.recommender.rating_likelihoods import GaussianRatings
from sghmc.recommender.ratings import Ratings, load_ratings
from workloads.tables import NOISE, made_up_ratings, step_costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--users", type=int, default=140_000)
    parser.add_argument("--items", type=int, default=27_000)
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seen", type=int, default=143, help="ratings of each user")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--by", choices=("mean", "upper", "lower", "draw"), default="mean")
    parser.add_argument("--data", type=pathlib.Path, help="ratings: ml-1m.zip, ratings.dat, .npz")
    parser.add_argument("--new", type=int, default=1000, help="users to fold in")
    parser.add_argument("--likelihood", default="gaussian", help='"implicit": ratings from 4 up')
    parser.add_argument("--refit", action="store_true", help="also fit everything, to compare")
    parser.add_argument("--ratings", type=int, default=20_000_000)
    parser.add_argument("--estimate", action="store_true", help="short fits, the rest by a rule")
    parser.add_argument("--tables", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=50, help="between draws of `lazy`")
    parser.add_argument("--kinds", nargs="+", choices=("eager", "lazy"), default=["eager", "lazy"])
    options = parser.parse_args()
    if options.part == "fold-in" and options.data is None:
        parser.error("fold-in needs --data: a file of ratings.")
    result = PARTS[options.part](options)
    result |= {
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result, indent=1))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


def top(options: argparse.Namespace) -> dict[str, Any]:
    model = made_up(options)
    seconds, best = [], None
    for _ in range(2):
        taken, best = timed(lambda: model.recommend_all(options.k, by=options.by, random_state=0))
        seconds.append(taken)
    names = ("users", "items", "rank", "draws", "k", "by")
    sizes = {name: getattr(options, name) for name in names}
    assert best is not None
    return sizes | {"rows": len(best.user), "seconds": seconds[1], "with compilation": seconds[0]}


def made_up(options: argparse.Namespace) -> MatrixFactorization:
    """A model whose draws stray a little from factors at random."""
    rng = np.random.default_rng(0)
    sizes = {"user": options.users, "item": options.items}
    model = MatrixFactorization(options.rank, num_draws=options.draws)
    draws: dict[str, np.ndarray] = {"noise": np.ones((options.draws, options.users), np.float32)}
    for side, size in sizes.items():
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
    return model


def new_users(options: argparse.Namespace) -> dict[str, Any]:
    ratings = load_ratings(options.data)
    if options.likelihood == "implicit":
        ratings = ratings.take(np.flatnonzero(ratings.rating >= 4))
    rng = np.random.default_rng(0)
    is_new = np.isin(ratings.user, rng.permutation(ratings.num_users)[: options.new])
    rows = np.flatnonzero(is_new)
    is_test = np.zeros(len(ratings), bool)
    is_test[rows[rng.random(len(rows)) < 0.2]] = True

    def table(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        ids = ratings.users[ratings.user[rows]], ratings.items[ratings.item[rows]]
        return (*ids, ratings.rating[rows])

    def fitted(rows: np.ndarray) -> MatrixFactorization:
        return MatrixFactorization(options.rank, likelihood=options.likelihood).fit(table(rows))

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


def scale(options: argparse.Namespace) -> dict[str, Any]:
    """A fit of ratings that were made up, and the error of what it predicts."""
    held_out = options.ratings // 100
    counts = options.users, options.items, options.rank, options.ratings + held_out
    seconds, ratings = timed(lambda: made_up_ratings(0, *counts))
    test, train = ratings.part(slice(held_out)), ratings.part(slice(held_out, None))
    result: dict[str, Any] = {"ratings": len(train.user), "seconds to make them up": seconds}

    def fit(num_draws: int, **settings: int) -> tuple[float, MatrixFactorization]:
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
    """What a step costs on tables of so many users, in milliseconds."""
    sizes = options.items, options.rank, options.batch, options.steps
    result: dict[str, Any] = {"batch": options.batch, "steps between draws": options.steps}
    for users in options.tables:
        for kind in options.kinds:
            costs = step_costs(users, *sizes, is_lazy=kind == "lazy")
            result[f"{kind}, {users:,} users"] = {
                f"{part}, {unit}": 1000 * getattr(getattr(costs, part), unit)
                for part in ("step", "settling")
                for unit in ("clock", "cores")
            }
            print(f"{kind}, {users:,} users: {costs.step.clock * 1000:.3g} ms", file=sys.stderr)
    return result


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "top": top,
    "fold-in": new_users,
    "scale": scale,
    "lazy": lazy,
}

if __name__ == "__main__":
    main()
