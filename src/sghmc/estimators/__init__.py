"""Bayesian models with scikit-learn's interface and with predictive uncertainty.

Import from here only: scikit-learn is loaded with this package, not with `sghmc`.
"""

import importlib
import pathlib
from typing import Any

from sghmc.core.checks import require

require("sklearn", extra="sklearn")

from sghmc.estimators import storage
from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.linear import BayesianLinearRegression, BayesianLogisticRegression
from sghmc.estimators.mlp_classifier import BayesianMLPClassifier
from sghmc.estimators.mlp_regressor import BayesianMLPRegressor
from sghmc.estimators.storage import ModelFileError

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "MatrixFactorization",
    "ModelFileError",
    "load",
]


def load(path: str | pathlib.Path) -> Any:
    """Load the model in a file that `save` wrote, whatever its class."""
    is_recommender = storage.class_in(pathlib.Path(path)) == "MatrixFactorization"
    return (__getattr__("MatrixFactorization") if is_recommender else BayesianEstimator).load(path)


def __getattr__(name: str) -> Any:
    # The recommender is built on this package: it is imported when it is first used.
    if name == "MatrixFactorization":
        return importlib.import_module("sghmc.recommender.matrix_factorization").MatrixFactorization
    raise AttributeError(f"module 'sghmc.estimators' has no attribute {name!r}")
