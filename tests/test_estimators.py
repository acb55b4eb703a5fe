"""scikit-learn front ends: its own checks, the right spread, streams, files, bad input."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sghmc.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
)

SMALL: dict[str, Any] = {"num_draws": 20, "num_chains": 2}
TINY: dict[str, Any] = {"hidden_layer_sizes": (8,), "num_steps": 200, **SMALL}


@parametrize_with_checks(
    [
        BayesianLinearRegression(**SMALL),
        BayesianLogisticRegression(**SMALL),
        BayesianMLPClassifier(likelihood_power=5.0, **TINY),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BayesianMLPRegressor(**TINY)])
def test_scikit_learns_own_checks_slowly(estimator, check):
    check(estimator)
