"""What regressors make of their draws, for draws made by hand."""

from typing import Any

import numpy as np
import pytest

from estimator_data import by_hand
from sghmc.estimators import BayesianLinearRegression, base
from sghmc.estimators.weighted_rows import Scaling

X = np.array([[0.5], [-2.0]])


@pytest.fixture
def model():
    return by_hand(
        BayesianLinearRegression(),
        {
            "coef": np.array([[[1.0]], [[3.0]]]),
            "intercept": np.array([[0.5], [0.0]]),
            "noise": np.array([0.25, 4.0]),
        },
        input_scaling_=Scaling(np.array([1.0]), np.array([2.0])),
        target_scaling_=Scaling(np.array(10.0), np.array(5.0)),
        n_features_in_=1,
    )


def test_moments_are_those_of_the_mixture_in_raw_units(model):
    z = (X[:, 0] - 1) / 2
    means = 10 + 5 * np.stack([0.5 + z, 3 * z])
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, means.mean(0))
    np.testing.assert_array_equal(model.predict(X), mean)
    # E[1/ν] = 2.125, where 1/E[ν] would be 0.47.
    np.testing.assert_allclose(std, np.sqrt(means.var(0) + 25 * (4 + 0.25) / 2))
    parts = model.predict_uncertainty(X)
    np.testing.assert_allclose(parts.epistemic, means.std(0))
    np.testing.assert_allclose(parts.aleatoric, np.sqrt(25 * 2.125))


def test_coefficients_are_in_raw_units(model):
    predicted = X @ model.coef_ + model.intercept_
    np.testing.assert_allclose(model.predict(X), predicted)
    np.testing.assert_allclose(model.sample_posterior()["coef"][:, 0, 0], [2.5, 7.5])


def test_likelihoods_average_densities_in_raw_units(model):
    y = np.array([8.0, -3.0])
    z = (X[:, 0] - 1) / 2
    means, variances = 10 + 5 * np.stack([0.5 + z, 3 * z]), 25 * np.array([[4.0], [0.25]])
    densities = np.exp(-0.5 * (y - means) ** 2 / variances) / np.sqrt(2 * np.pi * variances)
    np.testing.assert_allclose(model.log_likelihood(X, y), np.log(densities.mean(0)))


def test_intervals_of_a_single_draw_are_gaussian(model):
    model.draws_ = {name: draws[:1] for name, draws in model.draws_.items()}
    mean, std = model.predict(X, return_std=True)
    for coverage, reach in ((0.9, 1.6448536), (0.5, 0.6744898)):
        low, high = model.predict_interval(X, coverage).T
        np.testing.assert_allclose(low, mean - reach * std, rtol=1e-6)
        np.testing.assert_allclose(high, mean + reach * std, rtol=1e-6)
    np.testing.assert_allclose(model.predict_cdf(X, mean + std), 0.8413447, rtol=1e-6)


def test_rows_are_predicted_in_parts_that_fit_into_memory(model, monkeypatch):
    """Two draws a row, and room for four numbers: parts of two rows, and the same answers."""
    x, y = np.linspace(-2, 3, 5)[:, None], np.linspace(-4, 20, 5)

    def answers():
        return [
            *model.predict(x, return_std=True),
            model.predict_interval(x, 0.8),
            *model.predict_uncertainty(x),
            model.predict_cdf(x, y),
            model.log_likelihood(x, y),
        ]

    whole = answers()
    monkeypatch.setattr(base, "_MAX_ENTRIES", 4)
    assert [len(part) for _, part in model._parts(x)] == [2, 2, 1]
    for one, other in zip(answers(), whole, strict=True):
        np.testing.assert_allclose(one, other)
    monkeypatch.setattr(base, "_MAX_ENTRIES", 1)
    assert len(list(model._parts(x))) == 5
    assert model.sample_predictive(x, 7, random_state=0).shape == (7, 5)


def test_draws_are_chosen_without_replacement(model):
    chosen = model.sample_posterior(2, random_state=0)["coef"][:, 0, 0]
    assert sorted(chosen) == [2.5, 7.5]
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"from 1 to 2, the draws kept, but is {wrong}"):
            model.sample_posterior(wrong)


def test_draws_are_shared_by_chains_and_settings_are_whole_numbers():
    assert BayesianLinearRegression(10, 4)._draws_per_chain == 3
    assert BayesianLinearRegression(8, 4)._draws_per_chain == 2
    BayesianLinearRegression(1, 1)._check_settings()
    faults: list[dict[str, Any]] = [{"num_draws": 0}, {"num_chains": 1.5}]
    for wrong in faults:
        with pytest.raises(ValueError, match="must be a whole number from 1"):
            BayesianLinearRegression(**wrong)._check_settings()


def test_a_fit_that_fails_leaves_the_model_as_it_was(model, monkeypatch):
    def failing(key):
        raise FloatingPointError

    model._rows, model._num_calls, model._seed = None, 1, 0
    before = dict(vars(model))
    monkeypatch.setattr(type(model), "_sample", lambda self, key: failing(key))
    with pytest.raises(FloatingPointError):
        model._learn(X, np.array([1.0, 2.0]), np.ones(2))
    assert vars(model) == before
