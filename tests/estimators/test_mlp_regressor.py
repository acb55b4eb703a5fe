"""The network for numbers: honest spreads, the right noise, and no silent failure."""

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from estimator_data import NETWORK, by_hand, line
from sghmc.estimators import BayesianMLPRegressor, regression_chains
from sghmc.estimators.regression_chains import Choice, RegressionChains, Run
from sghmc.estimators.regression_network import RegressionNetwork
from sghmc.estimators.weighted_rows import Scaling, WeightedRows

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


@pytest.mark.slow
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
    np.testing.assert_allclose(model.predict_cdf(x, quantiles[:, 1]), 0.5, atol=1e-5)
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


@pytest.mark.slow_cases("3.0")
@pytest.mark.parametrize("value", [3.0, 0.0, -1e6])
def test_a_target_of_one_value_is_predicted(value):
    x, _ = line()
    model = BayesianMLPRegressor(**NETWORK, random_state=0).fit(x, np.full(len(x), value))
    mean, std = model.predict(x + 100, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    assert np.all((std > 0) & (std < 1))
    model.partial_fit(x[:3], np.full(3, value))
    np.testing.assert_allclose(model.predict(x), value, rtol=1e-12)


@pytest.mark.slow
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
    x, y = x[::2], y[::2]
    model = BayesianMLPRegressor((10, 10), noise="constant", **QUICK)
    # Both have as many rows as a program for 128.
    model.partial_fit(x[:65], y[:65])
    before = model.score(x[65:], y[65:])
    model.partial_fit(x[65:], y[65:])
    assert model.score(x, y) > 0.9 > before
    assert model._rows is not None
    assert model._rows.total_weight == 75


def test_the_noise_is_chosen_anew_when_the_rows_have_doubled(monkeypatch):
    """The first rows of a stream may be too few to tell."""
    seen = []

    def choose(key, network, rows, num_chains, plan):
        seen.append(len(rows.x))
        return Choice("constant" if len(rows.x) < 40 else "student", 0.5)

    def run(key, rows, num_steps):
        seen.append((model.noise_, model._chains is None))
        return Run(
            np.zeros((2, 10, model._network().num_parameters)), np.zeros((2, 10)), np.ones(2)
        )

    model = BayesianMLPRegressor(**NETWORK)
    monkeypatch.setattr(regression_chains, "choose", choose)
    monkeypatch.setattr(model, "_run", run)
    x, y = line(90)
    for part in (slice(0, 20), slice(20, 30), slice(30, 50), slice(50, 60)):
        model.partial_fit(x[part], y[part])
    new, old = ("student", True), ("student", False)
    assert seen == [20, ("constant", True), ("constant", False), 50, new, old]
    seen.clear()
    model.set_params(noise="input").partial_fit(x[60:], y[60:])
    assert seen == [("input", False)]


def test_settings_that_cannot_be():
    x, y = line()
    wrong: list[dict[str, Any]] = [{"noise": "loud"}, {"activation": "step"}, {"batch_size": 0}]
    for settings in wrong:
        with pytest.raises(ValueError, match=next(iter(settings))):
            BayesianMLPRegressor(**settings).fit(x, y)


def hydrodynamics(count: int = 120):
    """Like yacht: five inputs on a grid that hardly matter, one that a steep power law follows."""
    generator = np.random.default_rng(1)
    x = np.column_stack([generator.choice(5, (count, 5)), generator.uniform(0.1, 0.45, count)])
    return x, 200 * x[:, 5] ** 4 * (1 + 0.05 * x[:, 0]) + generator.normal(0, 0.02, count)


def heating(count: int = 200):
    """Like energy: few levels of eight inputs, a smooth response, little noise."""
    generator = np.random.default_rng(2)
    x = generator.choice(4, (count, 8)).astype(float)
    y = 20 + 5 * np.tanh(x[:, 0] - x[:, 1]) + 3 * x[:, 2] * x[:, 3]
    return x, y + generator.normal(0, 0.3, count)


def strength(count: int = 250):
    """Like concrete: mixtures, an interaction, noise that grows with the mean."""
    generator = np.random.default_rng(3)
    x = generator.gamma(2.0, 50.0, (count, 8))
    mean = 30 * np.log1p(x[:, 7]) * x[:, 0] / (x[:, 0] + x[:, 3] + 50)
    return x, mean * (1 + 0.1 * generator.normal(size=count))


FAILED = {"yacht": hydrodynamics, "energy": heating, "concrete": strength}
"""Where longer runs of earlier chains went up to errors of 10¹⁵, with finite draws."""
WAYS: dict[str, dict[str, Any]] = {
    "long": {"num_steps": 20_000},
    "wide": {"num_steps": 20_000, "hidden_layer_sizes": 50, "activation": "tanh"},
}


def judged(make, **given):
    x, y = make()
    settings: dict[str, Any] = {"random_state": 0} | given
    seen = np.arange(len(x)) % 5 > 0
    model = BayesianMLPRegressor(**settings).fit(x[seen], y[seen])
    mean, std = model.predict(x[~seen], return_std=True)
    squares = (mean - y[~seen]) ** 2 / y.var()
    return model, squares, model.log_likelihood(x[~seen], y[~seen]).mean(), std


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAILED)
def test_more_steps_never_make_it_worse(name, way):
    """The six failures: ten times the steps cost no accuracy and no likelihood, beyond noise.

    Squared errors of the same rows are compared: a mean gain of three standard errors below 0
    would be seen once in 700 tests. Chains that disagree more say so.
    """
    settings = WAYS[way]
    short, squares, log, _ = judged(FAILED[name], **settings | {"num_steps": 2000})
    long, long_squares, long_log, std = judged(FAILED[name], **settings)
    loss = long_squares - squares
    assert loss.mean() < 3 * loss.std() / len(loss) ** 0.5 + 1e-4
    assert long_squares.mean() ** 0.5 < 0.4
    # Forty or so held-out rows: likelihoods of two runs differ by less.
    assert long_log > log - 0.3
    assert np.all(np.isfinite(std))
    found = long.diagnostics()
    assert found.rhat < short.diagnostics().rhat + 0.1 or found.troubles


def test_small_noise_does_not_heat_the_chains():
    """The same in little, and with the program that is there: a steep power law, hardly any noise.

    Draws are exact, so that their potential stays where it is: chains that heat would rise by
    hundreds, 40 being the sd of a chi-square of as many degrees as there are parameters over two.
    """
    generator = np.random.default_rng(1)
    x = generator.uniform(0.1, 0.45, (100, 1))
    y = 200 * x[:, 0] ** 4 + generator.normal(0, 0.002, 100)
    model = BayesianMLPRegressor((10, 10), noise="constant", **QUICK).fit(x, y)
    assert model.score(x, y) > 0.999
    found = model.diagnostics()
    assert min(found.acceptance) > 0.3
    assert np.ptp(found.potential) < 200


def test_a_fit_that_cannot_move_is_an_error(monkeypatch):
    def stuck(self, key, num_chains, plan, position):
        draws = np.zeros((2, 10, self.network.num_parameters), np.float32)
        return Run(draws, np.zeros((2, 10)), np.zeros(2))

    monkeypatch.setattr(RegressionChains, "sample", stuck)
    with pytest.raises(FloatingPointError, match="No chain accepts"):
        BayesianMLPRegressor(**NETWORK, noise="constant").fit(*line())


def test_predictions_that_are_worse_than_none_are_an_error(monkeypatch):
    def lost(self, key, num_chains, plan, position):
        draws = np.full((2, 10, self.network.num_parameters), 9.0, np.float32)
        return Run(draws, np.zeros((2, 10)), np.ones(2))

    monkeypatch.setattr(RegressionChains, "sample", lost)
    with pytest.raises(FloatingPointError, match="standard deviations of the target"):
        BayesianMLPRegressor(**NETWORK, noise="constant").fit(*line())


def test_rows_that_no_model_can_foresee_are_no_error():
    """A target of zeros and few large values, as burnt areas: its mean alone is far off, too."""
    count, size = 500, RegressionNetwork(2, (4,), "silu").num_parameters
    rows = WeightedRows(
        np.zeros((count, 2)), np.where(np.arange(count) == 0, 22.0, 0.0), np.ones(count)
    )
    model = BayesianMLPRegressor((4,), num_chains=2)
    attributes = {"hidden_layer_sizes_": (4,), "noise_": "constant", "target_rounding_": 0.0}
    scaling = Scaling(np.zeros(()), np.ones(()))
    by_hand(model, {"z": np.zeros((20, size))}, target_scaling_=scaling, **attributes)
    run = Run(np.zeros((2, 10, size)), np.zeros((2, 10)), np.ones(2))
    model._judge(run, rows)
    assert model.diagnostics().troubles == []


def test_a_rounded_target_is_known_no_better_than_its_rounding():
    """Noise-free but for the rounding, and in units that change nothing."""
    x = np.linspace(-1, 1, 75)[:, None]
    y = np.round(4 * x[:, 0])
    model = BayesianMLPRegressor((10, 10), noise="constant", **QUICK).fit(x, 1e3 * y)
    assert model.target_rounding_ == pytest.approx(1e3 / 12**0.5)
    uncertainty = model.predict_uncertainty(x)
    assert uncertainty.aleatoric.min() >= 1e3 / 12**0.5 * (1 - 1e-5)
    assert uncertainty.aleatoric.max() < 2e3 / 12**0.5


def test_ctrl_c_leaves_the_model_as_it_was(fitted, monkeypatch):
    model, x, y = fitted
    before = model.predict(x)

    def interrupted(self, key, num_chains, plan, position):
        raise KeyboardInterrupt

    monkeypatch.setattr(RegressionChains, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(x + 100, y)
    np.testing.assert_array_equal(model.predict(x), before)
    assert model._rows.total_weight == 75
    other = BayesianMLPRegressor(**model.get_params())
    with pytest.raises(KeyboardInterrupt):
        other.fit(x, y)
    with pytest.raises(NotFittedError):
        other.predict(x)
