"""Inputs with gaps, far values and values beyond the fitted rows; rows in any order and number."""

from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimator_data import by_hand
from sghmc import estimators
from sghmc.estimators import BayesianLinearRegression, BayesianMLPClassifier, BayesianMLPRegressor
from sghmc.estimators.regression_network import RegressionNetwork
from sghmc.estimators.weighted_rows import (
    Scaling,
    WeightedRows,
    bounded,
    completed,
    far_columns,
    means,
)

NAN = np.nan
GAPS = np.array([[1.0, NAN], [NAN, 4.0], [3.0, 8.0]])


@pytest.fixture(scope="module")
def with_gaps():
    """Inputs of which the second is missing where the target is 5 higher."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    gap = generator.random(200) < 0.3
    y = x[:, 0] + 5 * gap + 0.1 * generator.normal(size=200)
    x[gap, 1] = NAN
    model = BayesianLinearRegression(num_draws=20, num_chains=2, random_state=0)
    return model.fit(x, y), x, y


def test_gaps_get_the_mean_and_an_indicator():
    rows = WeightedRows(GAPS, np.zeros(3), np.array([1.0, 1.0, 3.0]))
    np.testing.assert_allclose(means(rows), [2.5, 7.0])
    found = completed(GAPS, np.array([2.5, 7.0]), [1])
    np.testing.assert_array_equal(found, [[1, 7, 1], [2.5, 4, 0], [3, 8, 0]])
    assert completed(GAPS[2:], np.zeros(2), []) is not GAPS
    nothing = WeightedRows(np.full((2, 1), NAN), np.zeros(2), np.ones(2))
    assert means(nothing) == [0]


def test_missing_values_say_what_they_know(with_gaps, tmp_path):
    model, x, y = with_gaps
    assert (model.n_features_in_, model.missing_columns_) == (2, [1])
    assert np.sqrt(np.mean((model.predict(x) - y) ** 2)) < 0.2
    # A gap where the fitted rows have none counts as the mean, without an indicator.
    center = model.input_scaling_.center[0]
    np.testing.assert_array_equal(model.predict([[NAN, 1.0]]), model.predict([[center, 1.0]]))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(estimators.load(tmp_path / "model").predict(x), model.predict(x))
    with pytest.raises(ValueError, match="infinity"):
        model.predict([[np.inf, 1.0]])


def test_values_outside_the_fitted_rows_are_told(with_gaps):
    model, x, _ = with_gaps
    assert not model.outside_range(x).any()
    high = np.nanmax(x, axis=0)
    found = model.outside_range([[high[0] + 1e-9, NAN], [0.0, -99.0]])
    assert found.tolist() == [[True, False], [False, True]]


def test_intervals_pass_through_a_pipeline(with_gaps):
    model, x, _ = with_gaps
    line = make_pipeline(StandardScaler().fit(np.zeros((1, 2))), model)
    mean, std, ends = line.predict(x, return_std=True, interval=0.8)
    np.testing.assert_array_equal(ends, model.predict_interval(x, 0.8))
    np.testing.assert_array_equal(mean, model.predict(x))
    np.testing.assert_array_equal(std, model.predict_uncertainty(x).std)
    np.testing.assert_array_equal(line.predict(x, interval=0.8)[1], ends)
    with pytest.raises(ValueError, match="interval must be between 0 and 1, but is 90"):
        model.predict(x, interval=90)


def test_far_values_do_not_set_the_scale():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1000, 3))
    x[0, 1], x[1, 2] = 200, 20
    assert far_columns(x) == [1]
    assert far_columns(x[:, [0, 2]]) == far_columns(np.zeros((1000, 1))) == []
    # A rare category is not far from the others, which are all equal.
    assert far_columns(np.eye(1000)[:, :1]) == []
    plain, found = (Scaling.of(x, np.ones(1000), far) for far in ([], [1]))
    assert plain.scale[1] > 6
    assert found.scale[1] == pytest.approx(1, abs=0.1)
    np.testing.assert_array_equal(found.scale[[0, 2]], plain.scale[[0, 2]])
    np.testing.assert_allclose(bounded(np.array([0.3, 200])), [0.2995, 14.68], rtol=1e-3)


def network(**attributes):
    z = np.random.default_rng(0).normal(size=(30, NETWORK.num_parameters))
    draws: dict[str, Any] = {"z": z.astype(np.float32)}
    common = {
        "hidden_layer_sizes_": NETWORK.hidden,
        "noise_": "student",
        "target_rounding_": 0.0,
        "target_scaling_": Scaling(np.array(3.0), np.array(2.0)),
        "input_range_": np.array([[-2.0, -1.0], [2.0, 1.0]]),
    }
    return by_hand(BayesianMLPRegressor(), draws, **common | attributes)


NETWORK = RegressionNetwork(2, (16, 16), "silu")
ROWS = np.random.default_rng(1).normal(size=(50, 2))


def test_beyond_the_fitted_rows_inputs_count_by_their_logarithm():
    model = network()
    x = np.array([[2.0, -1.0], [3.0, -201.0], [-2.5, 0.3]])
    wanted = [[2, -1], [2 + np.log(2), -1 - np.log(201)], [-2 - np.log(1.5), 0.3]]
    np.testing.assert_allclose(model._scaled(x), wanted)
    inside = np.clip(ROWS, *model.input_range_)
    np.testing.assert_array_equal(model._scaled(inside), inside)
    far = network(far_columns_=[0], input_range_=np.array([[-2.0, -1], [200, 1]]))
    np.testing.assert_allclose(far._scaled(np.array([[200.0, 0], [3, 0]]))[:, 0],
                               bounded(np.array([200.0, 3])))  # fmt: skip


def classifier():
    generator = np.random.default_rng(0)
    shapes = {"0.weight": (2, 9), "0.bias": (9,), "1.weight": (9, 3), "1.bias": (3,)}
    draws = {
        name: generator.normal(size=(30, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    return by_hand(BayesianMLPClassifier(), draws, sharpness_=0.7, classes_=np.arange(3))


@pytest.mark.parametrize("size", [1, 7])
def test_predictions_do_not_depend_on_which_rows_come_together(size):
    """Single precision changes the last of seven digits with the number of rows."""
    parts = np.split(ROWS, range(size, len(ROWS), size))
    order = np.random.default_rng(2).permutation(len(ROWS))
    for predict in (network().predict, classifier().predict_proba, network().predict_interval):
        whole = predict(ROWS)
        np.testing.assert_allclose(np.concatenate([predict(part) for part in parts]), whole,
                                   rtol=0, atol=1e-9)  # fmt: skip
        np.testing.assert_allclose(predict(ROWS[order]), whole[order], rtol=0, atol=1e-9)
