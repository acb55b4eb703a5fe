"""Bayesian models with scikit-learn's interface: fit, predict, and how sure they are.

Import from here only: scikit-learn is loaded with this package, not with `sghmc`.
"""

import pathlib
from typing import Any

from sghmc.core.optional import require

require("sklearn", extra="sklearn")

from sghmc.estimators import storage
from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.linear import BayesianLinearRegression, BayesianLogisticRegression
from sghmc.estimators.mlp import BayesianMLPClassifier, BayesianMLPRegressor
from sghmc.estimators.recommender import MatrixFactorization
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
    """The model in a file that `save` wrote, whichever of the four it is."""
    return storage.read(pathlib.Path(path), BayesianEstimator)
