"""What classifiers make of their draws, for draws made by hand."""

import numpy as np
import pytest

from estimator_data import by_hand
from sghmc.estimators import BayesianLogisticRegression

X = np.array([[0.5, -1.0], [2.0, 0.3], [0.0, 0.0]])


@pytest.fixture
def model():
    """Two draws of three classes that disagree."""
    generator = np.random.default_rng(0)
    return by_hand(
        BayesianLogisticRegression(),
        {"coef": 3 * generator.normal(size=(2, 3, 2)), "intercept": generator.normal(size=(2, 3))},
        classes_=np.array(["a", "b", "c"]),
    )


def probabilities(model) -> np.ndarray:
    """(draw, row, class), written out."""
    coef, intercept = model.draws_["coef"], model.draws_["intercept"]
    logits = np.einsum("dki,ri->drk", coef, X) + intercept[:, None]
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def test_probabilities_are_averaged_and_not_logits(model):
    p = probabilities(model)
    np.testing.assert_allclose(model.predict_proba(X), p.mean(0))
    logits = np.log(p).mean(0)
    other = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert np.abs(other - p.mean(0)).max() > 0.01
    np.testing.assert_array_equal(model.predict(X), np.array(["a", "b", "c"])[p.mean(0).argmax(1)])
    labels = np.array(["c", "a", "b"])
    np.testing.assert_allclose(
        model.log_likelihood(X, labels), np.log(p.mean(0)[[0, 1, 2], [2, 0, 1]])
    )


def test_mutual_information_is_the_part_that_draws_disagree_about(model):
    p = probabilities(model)
    found = model.predict_uncertainty(X)
    entropy = -(p.mean(0) * np.log(p.mean(0))).sum(-1)
    inside = -(p * np.log(p)).sum(-1).mean(0)
    np.testing.assert_allclose(found.entropy, entropy)
    np.testing.assert_allclose(found.mutual_information, entropy - inside)
    assert found.mutual_information.max() > 0.01
    model.draws_ = {name: draws[:1] for name, draws in model.draws_.items()}
    np.testing.assert_allclose(model.predict_uncertainty(X).mutual_information, 0, atol=1e-12)
