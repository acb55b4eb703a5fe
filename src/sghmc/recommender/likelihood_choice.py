"""Likelihoods by name.

Which likelihood: by the probability of ratings that were held out.
"""

from typing import Any

import numpy as np
from sklearn.base import clone

from sghmc.recommender.interactions import Counts, Implicit
from sghmc.recommender.likelihood import Likelihood
from sghmc.recommender.rating_likelihoods import Gaussian, Ordinal, levels_of
from sghmc.recommender.rating_scores import mean_by_user, split
from sghmc.recommender.ratings import Ratings
from sghmc.recommender.side_information import SideTable

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "ordinal": Ordinal,
    "implicit": Implicit,
    "counts": Counts,
}
AUTO = "auto"
"""The name of none: held-out ratings choose."""


def name_of(likelihood: Likelihood) -> str:
    return next(name for name, kind in LIKELIHOODS.items() if isinstance(likelihood, kind))


def reading(name: str, duplicates: str) -> dict[str, Any]:
    """How a table is read for a likelihood, or for "auto": options of `from_table`.

    Of mere events a pair may come often, where the user does not say otherwise, and no rating need
    be there.
    """
    kind = LIKELIHOODS.get(name)
    repeats = kind.repeats if kind and duplicates == "error" else duplicates
    return {"duplicates": repeats, "is_rated": kind is not None and kind.is_rated}


# Which likelihood: by the probability of ratings that were held out.

_SHARE = 0.1
_CLEAR_ERRORS = 2.0
"""By how many standard errors, of users as independent, the unusual must be better."""


def likeliest(
    model: Any, table: Ratings, features: dict[str, SideTable]
) -> tuple[str, dict[str, Any]]:
    """The name of the likelihood for a table, and what speaks for it.

    Ratings that are all alike say only that a pair came up. Where there are few levels, "ordinal"
    and "gaussian" are both fitted to nine tenths of the ratings; "ordinal" must be clearly better.
    """
    levels = levels_of(table.rating)
    if levels is None:
        return "gaussian", {}
    if len(levels) == 1:
        return "implicit", {}
    train, test = (table.take(rows) for rows in split(table, "random", _SHARE, model.random_state))
    frames = {f"{side}s": frame for side, frame in features.items()}
    logs = {}
    for name in ("gaussian", "ordinal"):
        untrained: Any = clone(model)
        fitted = untrained.set_params(likelihood=name).fit(train, **frames)
        logs[name] = fitted.log_probabilities(test)
    gain = mean_by_user(logs["ordinal"] - logs["gaussian"], test.user)
    is_clear = gain.error is not None and (gain.value or 0.0) > _CLEAR_ERRORS * gain.error
    found = {name: float(np.mean(each)) for name, each in logs.items()}
    return "ordinal" if is_clear else "gaussian", {"log_probability": found}
