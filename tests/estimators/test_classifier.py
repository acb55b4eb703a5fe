"""What classifiers make of their draws, for draws made by hand."""

import jax
import numpy as np
import pytest

from estimator_data import by_hand
from sghmc.estimators import BayesianLogisticRegression
from sghmc.estimators.predictive import _entropy, softmax

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


class Recorded(BayesianLogisticRegression):
    """Keeps the rows that it would learn from, and samples nothing."""

    def _sample(self, key):
        self.keys = [*getattr(self, "keys", []), key]
        self.draws_ = {"coef": np.zeros((1, 1, 2)), "intercept": np.zeros((1, 1))}


def test_classes_of_rows_without_weight_do_not_count():
    y = np.array(["a", "b", "c"])
    model = Recorded().fit(X, y, sample_weight=[1.0, 0.0, 2.0])
    assert model.classes_.tolist() == ["a", "c"]
    assert model._rows is not None
    assert sorted(zip(model._rows.y.tolist(), model._rows.weight.tolist(), strict=True)) == [
        (0, 1.0),
        (1, 2.0),
    ]


def test_labels_are_places_among_the_classes():
    model = Recorded()
    model.classes_ = np.array([-1, 3, 7])
    assert model._encoded(np.array([7, -1, 3, 7])).tolist() == [2, 0, 1, 2]
    for unknown in (0, 8, -5):
        with pytest.raises(ValueError, match=rf"labels \[.*{unknown}.*\] outside the classes"):
            model._encoded(np.array([3, unknown]))


def test_a_stream_knows_its_classes_from_the_first_call():
    model = Recorded().partial_fit(X, [0, 1, 0], classes=[2, 0, 1])
    assert model.classes_.tolist() == [0, 1, 2]
    model.partial_fit(X[:1] + 5, [2], classes=[1, 2, 0])
    assert model._rows is not None
    assert model._rows.total_weight == 4
    with pytest.raises(ValueError, match=r"classes are \[0, 1\], but the first call had"):
        model.partial_fit(X, [0, 1, 0], classes=[0, 1])
    with pytest.raises(ValueError, match="outside the classes"):
        model.partial_fit(X, [0, 1, 5])
    assert model._rows.total_weight == 4
    assert Recorded().partial_fit(X, [4, 9, 9]).classes_.tolist() == [4, 9]
    with pytest.raises(ValueError, match="one class only: 3"):
        Recorded().fit(X, [3, 3, 3])


def test_every_call_of_a_stream_has_a_key_of_its_own():
    model = Recorded(random_state=3).partial_fit(X, [0, 1, 0])
    model.partial_fit(X, [0, 1, 0])
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    assert len(model.keys) == 2
    for number, key in enumerate(model.keys, 1):
        wanted = jax.random.fold_in(jax.random.key(seed), number)
        np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(wanted))
    # fit begins anew.
    model.fit(X, [0, 1, 0])
    assert model._num_calls == 1
    assert model._rows is not None
    assert model._rows.total_weight == 3


def test_probabilities_of_nothing_have_no_entropy():
    assert _entropy(np.array([[1.0, 0.0], [0.5, 0.5]])) == pytest.approx([0, np.log(2)])
    np.testing.assert_allclose(softmax(np.array([[1e4, 0.0]])), [[1, 0]])
