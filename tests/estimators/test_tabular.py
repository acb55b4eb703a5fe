"""Predictions by column, for a model made by hand."""

import numpy as np

from estimator_data import by_hand
from sghmc.estimators import BayesianLinearRegression, BayesianLogisticRegression, tabular
from sghmc.estimators.rows import Scaling

X = np.array([[0.5], [-2.0]])


def test_ninety_means_ninety():
    model = by_hand(
        BayesianLinearRegression(),
        {"coef": np.ones((1, 1, 1)), "intercept": np.zeros((1, 1)), "noise": np.array([4.0])},
        input_scaling_=Scaling(np.zeros(1), np.ones(1)),
        target_scaling_=Scaling(np.array(0.0), np.array(1.0)),
        n_features_in_=1,
    )
    columns = tabular.predicted(model, X, rows=np.arange(2))
    assert columns["row"] == [1, 2]
    np.testing.assert_allclose(columns["prediction"], X[:, 0])
    np.testing.assert_allclose(columns["std"], 0.5)
    np.testing.assert_allclose(columns["low_90"], X[:, 0] - 0.5 * 1.6448536, rtol=1e-6)
    np.testing.assert_allclose(columns["high_90"], X[:, 0] + 0.5 * 1.6448536, rtol=1e-6)


def test_classes_come_with_their_uncertainty():
    model = by_hand(
        BayesianLogisticRegression(),
        {"coef": np.array([[[2.0]], [[-1.0]]]), "intercept": np.zeros((2, 1))},
        input_scaling_=Scaling(np.zeros(1), np.ones(1)),
        classes_=np.array(["no", "yes"]),
        n_features_in_=1,
    )
    columns = tabular.predicted(model, X, rows=np.arange(2))
    yes = (1 / (1 + np.exp(-2 * X[:, 0])) + 1 / (1 + np.exp(X[:, 0]))) / 2
    np.testing.assert_allclose(columns["p(yes)"], yes)
    np.testing.assert_allclose(columns["confidence"], np.maximum(yes, 1 - yes))
    entropy = -yes * np.log(yes) - (1 - yes) * np.log(1 - yes)
    np.testing.assert_allclose(columns["entropy"], entropy)
    assert np.all(np.array(columns["mutual_information"]) > 0)
