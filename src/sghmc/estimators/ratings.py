"""What `sghmc fit-ratings` does: judge a recommender on held-out ratings, then give it all."""

import pathlib
import time
from typing import Any

import numpy as np

from sghmc.data.ratings import Ratings
from sghmc.estimators.recommender import MatrixFactorization


def is_model(path: str | pathlib.Path) -> bool:
    """Whether a file is one that `save` writes."""
    path, first = pathlib.Path(path), b"sghmc model"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(first)) == first


def fit_and_judge(
    ratings: Ratings, holdout: float, **settings: Any
) -> tuple[MatrixFactorization, dict[str, Any]]:
    """A model of all ratings, and how well it predicted a random share of them before it saw them.

    It is fitted without them first, and takes them in by `partial_fit`.
    """
    order = np.random.default_rng(settings.get("random_state", 0)).permutation(len(ratings))
    count = round(holdout * len(ratings))
    if holdout > 0 and not 0 < count < len(ratings):
        raise ValueError(
            f"{holdout:.0%} of {len(ratings)} ratings are {count}: too few to hold out and learn "
            f"from the rest. Give more ratings, or hold nothing out."
        )
    start = time.perf_counter()
    model = MatrixFactorization(**settings).fit(ratings.take(np.sort(order[count:])))
    result: dict[str, Any] = {
        "num_users": ratings.num_users,
        "num_items": ratings.num_items,
        "num_ratings": len(ratings),
        "seconds": time.perf_counter() - start,
    }
    if count:
        held_out = ratings.take(np.sort(order[:count]))
        result |= {"held_out": model.evaluate(held_out)}
        model.partial_fit(held_out)
    return model, result
