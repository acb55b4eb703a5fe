"""The network for classes."""

import types
from typing import Any

import jax
import numpy as np
import pytest

from estimator_data import NETWORK, blobs, by_hand
from sghmc.estimators import BayesianMLPClassifier, class_network, mlp_classifier
from sghmc.estimators.networks import HeldOut
from sghmc.estimators.weighted_rows import WeightedRows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.slow
def test_power_and_sharpness_are_as_held_out_labels_ask_for():
    settings: dict[str, Any] = NETWORK | {"num_steps": 1000, "random_state": 0}
    clear = BayesianMLPClassifier(**settings).fit(*blobs(0.5))
    assert clear.sharpness_ > 1.1
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(600, 3)), generator.integers(0, 3, 600)
    # Whatever the rows say about such labels is wrong.
    model = BayesianMLPClassifier(**settings).fit(*noise)
    assert model.sharpness_ < 0.7
    p = model.predict_proba(noise[0])
    np.testing.assert_allclose(p.sum(1), 1)
    model.sharpness_ = 1.0
    plain = model.predict_proba(noise[0])
    np.testing.assert_array_equal(plain.argmax(1), p.argmax(1))
    assert p.max(1).mean() < plain.max(1).mean()


def test_powers_are_tried_in_turn_and_can_be_given(monkeypatch):
    model = BayesianMLPClassifier(**NETWORK)
    tried = []

    def run(key, rows, power, plan):
        tried.append(power)
        assert (rows.weight == 0).sum(1).tolist() == [15, 15]

    def held_out(rows, is_held):
        right = likely[tried[-1]]
        return HeldOut(np.log([[right, 1 - right]] * 60), np.zeros(60, int), np.ones(60))

    monkeypatch.setattr(model, "_run_classes", run)
    monkeypatch.setattr(model, "_held_out", held_out)
    x, y = blobs()
    rows, key = WeightedRows(x, y, np.ones(len(x))), jax.random.key(0)
    model.set_params(sharpness=1.0)
    likely = {3: 0.6, 30: 0.7, 300: 0.8}
    assert model._choice(key, rows) == (300, 1)
    assert tried == [3, 30, 300]
    tried.clear()
    likely = {3: 0.8, 30: 0.7}
    assert model._choice(key, rows) == (3, 1)
    assert tried == [3, 30]
    tried.clear()
    assert model.set_params(likelihood_power=3, sharpness="auto")._choice(key, rows)[0] == 3
    assert tried == [3]
    assert model.set_params(sharpness=0.5)._choice(key, rows) == (3, 0.5)
    assert tried == [3]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [2.5, None])
def test_precisions_are_learned_only_where_asked_for(precision):
    settings: dict[str, Any] = NETWORK | {"likelihood_power": 1, "sharpness": 1, "num_draws": 4}
    model = BayesianMLPClassifier(prior_precision=precision, **settings).fit(*blobs())
    drawn = model.sample_posterior()["precision.0.weight"]
    assert (np.ptp(drawn) > 0) == (precision is None)
    assert precision in (None, drawn[0])


@pytest.mark.slow
def test_networks_go_on_with_more_rows():
    x, y = blobs()
    classifier = BayesianMLPClassifier(**NETWORK, random_state=0)
    classifier.partial_fit(x[:20], y[:20], classes=[0, 1, 2])
    assert classifier._chains[0].positions[0]["bias"].shape == (2, 8)
    first = classifier.sharpness_
    classifier.partial_fit(x[20:39], y[20:39])
    assert classifier.sharpness_ == first
    # Now the rows have doubled.
    classifier.partial_fit(x[39:], y[39:])
    assert classifier.sharpness_ != first
    assert classifier._rows is not None
    assert classifier._rows.total_weight == 60
    assert classifier.score(x, y) > 0.5


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "step"},
        {"num_steps": 1},
        {"hidden_layer_sizes": (0,)},
        {"num_draws": 0},
        {"num_chains": 1.5},
        {"prior_precision": "auto"},
        {"prior_precision": 0.0},
        {"likelihood_power": "high"},
        {"likelihood_power": None},
        {"likelihood_power": 0.0},
        {"sharpness": "high"},
        {"sharpness": 0.0},
    ],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        BayesianMLPClassifier(**settings).fit(*blobs())


def hand_made(likelihood_power=1.0, sharpness=1.0) -> BayesianMLPClassifier:
    """No hidden layer; chain 0 says class 0, chain 1 says class 1, whatever the row."""
    model = BayesianMLPClassifier(
        (), num_chains=2, likelihood_power=likelihood_power, sharpness=sharpness
    )
    draws = {"0.weight": np.zeros((2, 2, 2)), "0.bias": np.array([[2.0, 0.0], [0.0, 1.0]])}
    return by_hand(model, draws, classes_=np.array([0, 1]), sharpness_=sharpness)


def test_sharpness_is_an_exponent_of_the_averaged_probabilities():
    x = np.zeros((1, 2))
    p = hand_made().predict_proba(x)[0]
    np.testing.assert_allclose(p[0], (1 / (1 + np.exp(-2)) + 1 / (1 + np.exp(1))) / 2)
    for s in (0.5, 3.0):
        np.testing.assert_allclose(hand_made(sharpness=s).predict_proba(x)[0], p**s / np.sum(p**s))


def test_held_out_rows_are_judged_by_the_chain_that_has_not_seen_them():
    rows = WeightedRows(np.zeros((3, 2)), np.array([0, 1, 0]), np.array([1.0, 2.0, 3.0]))
    is_held = np.array([[True, False, False], [False, True, False]])
    found = hand_made()._held_out(rows, is_held)
    np.testing.assert_allclose(found.logs[0], -np.logaddexp(0, [-2, 2]))
    np.testing.assert_allclose(found.logs[1], -np.logaddexp(0, [1, -1]))
    assert found.y.tolist() == [0, 1]
    assert found.weight.tolist() == [1, 2]


def test_a_label_counts_as_often_as_its_power_says(monkeypatch):
    seen = {}

    class StopError(Exception):
        pass

    def refused(rows, *settings):
        seen["weight"] = rows.weight
        raise StopError

    monkeypatch.setattr(mlp_classifier, "Network", refused)
    x, y = blobs()
    weight = np.arange(len(x)) % 3 + 1.0
    model = BayesianMLPClassifier(likelihood_power=7.0, sharpness=1.0, num_chains=2)
    with pytest.raises(StopError):
        model.fit(x, y, weight)
    merged = WeightedRows(x, y, weight).merged()
    np.testing.assert_allclose(seen["weight"], np.tile(7 * merged.weight, (2, 1)))


@pytest.mark.slow
def test_ctrl_c_in_a_round_ends_the_fit(monkeypatch):
    """A run that was interrupted returns the draws so far: too few."""
    x, y = blobs()

    def interrupted(key, posterior, sampler, init, num_samples, **options):
        first = init[0]["bias"][:, None].repeat(num_samples - 1, 1)
        return types.SimpleNamespace(positions=[{"bias": first}])

    monkeypatch.setattr(class_network, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        BayesianMLPClassifier(**NETWORK, likelihood_power=1, sharpness=1).fit(x, y)
