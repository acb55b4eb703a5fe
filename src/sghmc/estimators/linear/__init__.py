"""Linear and logistic regression, whose posteriors are near normal."""

from sghmc.estimators.linear.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
)

__all__ = ["BayesianLinearRegression", "BayesianLogisticRegression"]
