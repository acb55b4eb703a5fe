"""Fit a recommender, score it on held-out ratings, and report: what `sghmc fit-ratings` runs."""

import pathlib
import time
from typing import Any

import numpy as np

from sghmc import display
from sghmc.estimators.table_page import calibration
from sghmc.recommender.matrix_factorization import MatrixFactorization
from sghmc.recommender.rating_answers import split
from sghmc.recommender.ratings import Ratings

RANKS = (1, 3, 10, 30)
"""Numbers of recommendations that are scored on held-out ratings."""

_PRINTED_RANK = 10
"""The number of recommendations whose scores are printed; the page shows all."""

_RANKINGS = {"ndcg": "NDCG", "recall": "recall"}


def is_model(path: str | pathlib.Path) -> bool:
    """Check whether a file is a model that `save` wrote, by its first bytes."""
    path, first = pathlib.Path(path), b"sghmc model"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(first)) == first


def fit_and_judge(
    ratings: Ratings,
    holdout: float,
    how: str = "random",
    *,
    users: Any = None,
    items: Any = None,
    **settings: Any,
) -> tuple[MatrixFactorization, dict[str, Any]]:
    """Fit a model, score it on held-out ratings, and add those by `partial_fit`.

    `how` and `holdout` choose them, as for `rating_scores.split`; a holdout of 0 is none. `users`
    and `items` are tables of features, as `MatrixFactorization.fit` takes them.
    """
    seed = settings.get("random_state", 0)
    rows, held_out = np.arange(len(ratings)), None
    if holdout > 0:
        rows, held_out = split(ratings, how, holdout, seed)
    start = time.perf_counter()
    model = MatrixFactorization(**settings).fit(ratings.take(rows), users=users, items=items)
    result: dict[str, Any] = {
        "num_users": ratings.num_users,
        "num_items": ratings.num_items,
        "num_ratings": len(ratings),
        "likelihood": model.likelihood_,
        "seconds": time.perf_counter() - start,
    }
    if model.diagnostics_:
        result["chosen by"] = model.diagnostics_
    if held_out is not None:
        table = ratings.take(held_out)
        result |= {"split": how, "held_out": model.evaluate(table, RANKS)}
        model.partial_fit(table)
    return model, result


def format_scores(judged: dict[str, Any]) -> dict[str, str]:
    """Format the scores of `evaluate` by label, each with its standard error if it has one."""
    names = {"rmse": "RMSE", "log_likelihood": "mean log-likelihood"}
    names |= {"log_probability": "mean log-probability of the level"}
    k = _PRINTED_RANK
    names |= {f"{name}@{k}": f"{label}@{k}" for name, label in _RANKINGS.items()}
    return {
        label: _with_error(judged[name], judged.get(f"{name}_error"), ".4f")
        for name, label in names.items()
        if judged.get(name) is not None
    }


def _with_error(value: float | None, error: float | None, form: str) -> str:
    """Format a number, with its standard error if it has one."""
    if value is None:
        return "–"
    return f"{value:{form}}" + ("" if error is None else f" ± {error:{form}}")


def ratings_page(config: dict[str, Any], result: dict[str, Any]) -> str:
    """Render the report of a fitted recommender and its scores on held-out ratings."""
    sizes = {name: f"{result[f'num_{name}']:,}" for name in ("users", "items", "ratings")}
    judged = result.get("held_out")
    if judged is None:
        sections = [
            display.paragraph("No ratings were held out, so there are no scores of predictions.")
        ]
    else:
        sections = []
        tables = [
            display.grid(
                ("k: items recommended to each user", *_RANKINGS.values()),
                [
                    (
                        str(k),
                        *(
                            _with_error(
                                judged.get(f"{name}@{k}"), judged.get(f"{name}@{k}_error"), ".4f"
                            )
                            for name in _RANKINGS
                        ),
                    )
                    for k in RANKS
                ],
            )
        ]
        if "coverage" in judged:
            points = [
                (float(level.rstrip("%")) / 100, share, judged["num_ratings"])
                for level, share in judged["coverage"].items()
            ]
            words, is_calibrated, remedy = calibration(points, judged["num_ratings"])
            errors = judged.get("coverage_errors", {})
            shares = [
                (level, _with_error(share, errors.get(level), ".1%"))
                for level, share in judged["coverage"].items()
            ]
            sections += [
                display.verdict(words, is_calibrated),
                display.section("What to do next", display.points([remedy])),
            ]
            tables += [display.grid(("predictive interval", "ratings inside"), shares)]
        sections.append(
            display.section(
                f"On {judged['num_ratings']:,} held-out ratings",
                display.facts(format_scores(judged)),
                *tables,
            )
        )
    run = sizes | {"likelihood": result["likelihood"], "seconds": f"{result['seconds']:.1f}"}
    sections += [display.section("The run", display.facts(run))]
    sections += [display.section("Settings", display.facts(config))] if config else []
    return display.page("Recommender", sections)
