"""Networks: their classes and numbers, the chains that fit them, and whether these agree."""

from sghmc.estimators.mlp.classifier import BayesianMLPClassifier
from sghmc.estimators.mlp.regressor import BayesianMLPRegressor

__all__ = ["BayesianMLPClassifier", "BayesianMLPRegressor"]
