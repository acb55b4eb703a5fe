"""RMSE of the recommender on the five predefined folds of MovieLens 100K, its default as it is.

    python benchmarks/recommender_folds.py --data ml-100k.npz --folds folds.npz [--only 3]
        [--users u.user --items u.item] [--likelihood ordinal]

The folds' file has an array "fold", the number of the test fold of each rating (of u1.test to
u5.test). Prints a row of Markdown for each fold and their mean.
"""

import argparse
import pathlib
import time
from typing import Any

import numpy as np

from sghmc.estimators import MatrixFactorization
from sghmc.recommender.features import load_side
from sghmc.recommender.ratings import load_ratings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="u.data, or like it")
    parser.add_argument("--folds", type=pathlib.Path, required=True, help=".npz with `fold`")
    parser.add_argument("--only", type=int, nargs="+", help="some of the folds")
    parser.add_argument("--users", type=pathlib.Path, help="features of users: u.user")
    parser.add_argument("--items", type=pathlib.Path, help="features of items: u.item")
    parser.add_argument("--likelihood", default="gaussian")
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    ratings = load_ratings(options.data)
    fold = np.load(options.folds)["fold"]
    sides: dict[str, Any] = {
        f"{side}s": load_side(path, side)
        for side, path in (("user", options.users), ("item", options.items))
        if path is not None
    }
    print(
        "| fold | seconds | RMSE | log-likelihood | log-probability | covered by 95 % | NDCG@10 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    errors = []
    for number in options.only or np.unique(fold):
        train, test = (
            ratings.take(np.flatnonzero(rows)) for rows in (fold != number, fold == number)
        )
        start = time.perf_counter()
        model = MatrixFactorization(
            options.rank, num_draws=options.draws, likelihood=options.likelihood
        ).fit(train, **sides)
        seconds = time.perf_counter() - start
        scores = model.evaluate(test)
        errors.append(scores["rmse"])
        print(
            f"| {number} | {seconds:.1f} | {scores['rmse']:.4f} ± {scores['rmse_error']:.4f} | "
            f"{scores['log_likelihood']:.4f} | {scores['log_probability']:.4f} | "
            f"{scores['coverage']['95%']:.1%} | "
            f"{scores['ndcg@10']:.4f} |",
            flush=True,
        )
    print(f"| mean | | {np.mean(errors):.4f} | | | | |")


if __name__ == "__main__":
    main()
