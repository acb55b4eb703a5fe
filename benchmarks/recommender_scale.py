"""The recommender at scale: the best items for all users, and new users without a refit.

    python benchmarks/recommender_scale.py top [--users 140000] [--items 27000] [--draws 100]
    python benchmarks/recommender_scale.py fold-in --data ml-1m.zip [--new 1000] [--refit]
        [--likelihood ordinal]

`top` makes draws up (what they are does not matter for the time) and calls `recommend_all` twice;
the first call compiles. `fold-in` fits all but some users, takes those in with four fifths of their
ratings, and scores the rest; with --refit also a fit of everything. Prints JSON.
"""

import argparse
import json
import os
import pathlib
import resource
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sghmc.data.ratings import Ratings, load_ratings
from sghmc.estimators import MatrixFactorization


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("top", "fold-in"))
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
    options = parser.parse_args()
    if options.part == "fold-in" and options.data is None:
        parser.error("fold-in needs --data: a file of ratings.")
    result = top(options) if options.part == "top" else new_users(options)
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


if __name__ == "__main__":
    main()
