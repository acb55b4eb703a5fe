"""The network for numbers: honest spreads, the right noise, and no silent failure."""

from typing import Any

import numpy as np
import pytest

from estimator_data import NETWORK, line
from sghmc.estimators import BayesianMLPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
QUICK: dict[str, Any] = {"num_steps": 900, "num_chains": 4, "num_draws": 80, "random_state": 0}


def wave(count: int = 150, noise: float = 5.0):
    generator = np.random.default_rng(0)
    x = np.linspace(-3, 3, count)[:, None]
    return x, np.sin(x[:, 0]) * 50 + generator.normal(0, noise, count) + 1000


@pytest.fixture(scope="module")
def fitted():
    x, y = wave()
    model = BayesianMLPRegressor((10, 10), noise="constant", **QUICK)
    return model.fit(x[::2], y[::2]), x[1::2], y[1::2]


def test_the_spread_of_predictions_is_that_of_new_observations(fitted):
    model, x, y = fitted
    mean, std = model.predict(x, return_std=True)
    errors = (y - mean) / std
    # 75 rows: the sd of such a mean of squares is 0.16.
    assert 0.5 < np.mean(errors**2) < 1.6
    assert model.score(x, y) > 0.9
    expected = np.log(std) + 0.5 * np.log(2 * np.pi) + 0.5 * errors**2
    assert abs(model.log_likelihood(x, y).mean() + expected.mean()) < 0.05


def test_intervals_and_quantiles_are_those_of_the_samples(fitted):
    model, x, y = fitted
    low, high = model.predict_interval(x, 0.9).T
    drawn = model.sample_predictive(x, 4000, random_state=0)
    # Shares of 4000 samples of 75 rows, together: standard error 0.0006, the rows being fixed.
    assert np.mean((drawn > low) & (drawn < high)) == pytest.approx(0.9, abs=0.003)
    assert np.mean(drawn < low) == pytest.approx(0.05, abs=0.002)
    quantiles = model.predict_quantiles(x, [0.1, 0.5])
    assert np.mean(drawn < quantiles[:, 0]) == pytest.approx(0.1, abs=0.003)
    np.testing.assert_allclose(model.predict_cdf(x, quantiles[:, 1]), 0.5, atol=1e-6)
    # 75 rows: standard error 0.035.
    assert np.mean((y > low) & (y < high)) > 0.75
    for bad in (0.0, 1.0):
        with pytest.raises(ValueError, match="coverage"):
            model.predict_interval(x, bad)
    with pytest.raises(ValueError, match="levels"):
        model.predict_quantiles(x, [0.5, 1.5])
    with pytest.raises(ValueError, match="num_samples"):
        model.sample_predictive(x, 0)


def test_uncertainty_grows_away_from_the_rows(fitted):
    model, x, _ = fitted
    near, far = model.predict_uncertainty(x), model.predict_uncertainty([[9.0]])
    assert far.epistemic[0] > 5 * near.epistemic.max()
    np.testing.assert_allclose(far.aleatoric[0], near.aleatoric[0])
    np.testing.assert_allclose(near.std, np.hypot(near.epistemic, near.aleatoric))
    np.testing.assert_array_equal(near.std, model.predict(x, return_std=True)[1])
    # The noise's standard deviation is 5; that of 75 rows is known to 8 %.
    assert 3.5 < near.aleatoric[0] < 7


def test_diagnostics_survive_files(fitted, tmp_path):
    model, _, _ = fitted
    found = model.diagnostics()
    assert 1 <= found.rhat < 1.2
    assert len(found.acceptance) == 4
    model.save(tmp_path / "model")
    loaded = BayesianMLPRegressor.load(tmp_path / "model")
    assert loaded.diagnostics() == found
    assert loaded.noise_ == "constant"


@pytest.mark.parametrize("value", [3.0, 0.0, -1e6])
def test_a_target_of_one_value_is_predicted(value):
    x, _ = line()
    model = BayesianMLPRegressor(**NETWORK, random_state=0).fit(x, np.full(len(x), value))
    mean, std = model.predict(x + 100, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    assert np.all((std > 0) & (std < 1))
    model.partial_fit(x[:3], np.full(3, value))
    np.testing.assert_allclose(model.predict(x), value, rtol=1e-12)


def test_large_units_change_nothing_but_units():
    """Units of a power of 2 leave the standardized rows as they are, to the bit."""
    x, y = line()
    model = BayesianMLPRegressor(**NETWORK, noise="constant", random_state=0)
    mean, std = model.fit(x, y).predict(x, return_std=True)
    unit = 2.0**20
    large, spread = model.fit(unit * x, unit * y).predict(unit * x, return_std=True)
    np.testing.assert_allclose(large, unit * mean, rtol=1e-9)
    np.testing.assert_allclose(spread, unit * std, rtol=1e-9)


def test_weights_count_rows():
    """A row of weight 2 is the row twice, to the bit."""
    x, y = line()
    weight = np.where(np.arange(len(x)) < 5, 2.0, 1.0)
    model = BayesianMLPRegressor(**NETWORK, noise="constant", random_state=0)
    weighted = model.fit(x, y, weight).predict(x)
    repeated = model.fit(np.r_[x, x[:5]], np.r_[y, y[:5]]).predict(x)
    np.testing.assert_array_equal(weighted, repeated)


def test_chains_go_on_with_more_rows():
    x, y = wave()
    model = BayesianMLPRegressor((10,), noise="constant", **QUICK)
    model.partial_fit(x[:100], y[:100])
    before = model.score(x[100:], y[100:])
    model.partial_fit(x[100:], y[100:])
    assert model.score(x, y) > 0.9 > before
    assert model._rows is not None
    assert model._rows.total_weight == 150


def test_settings_that_cannot_be():
    x, y = line()
    wrong: list[dict[str, Any]] = [{"noise": "loud"}, {"activation": "step"}, {"batch_size": 0}]
    for settings in wrong:
        with pytest.raises(ValueError, match=next(iter(settings))):
            BayesianMLPRegressor(**settings).fit(x, y)
