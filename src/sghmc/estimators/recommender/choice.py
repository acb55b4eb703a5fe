"""Which likelihood: by the probability of ratings that were held out."""

from typing import Any

import numpy as np
from sklearn.base import clone

from sghmc.data.rating_splits import split
from sghmc.data.ratings import Ratings
from sghmc.data.side_information import SideTable
from sghmc.estimators.recommender.likelihoods.gaussian import levels_of
from sghmc.results.rating_scores import mean_by_user

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
