"""Ready models, each of which makes its posterior, its Gibbs updates and its predictions.

`MatrixFactorization` is the class `FactorizationModel`, a name that tells it apart from the
estimator `sghmc.estimators.MatrixFactorization`, which runs it.
"""

import importlib
from typing import Any

from sghmc.models.adapters import Adapters, LowRank, merged
from sghmc.models.networks import MLP, Transformer

__all__ = ["MLP", "Adapters", "LowRank", "MatrixFactorization", "Transformer", "merged"]


def __getattr__(name: str) -> Any:
    # The recommender's model is imported when it is first used: its folder builds on this one.
    if name == "MatrixFactorization":
        return importlib.import_module("sghmc.recommender.factor_model").FactorizationModel
    raise AttributeError(f"module 'sghmc.models' has no attribute {name!r}")
