"""Which engine, by predicted seconds, and which gradient estimator, by noise and rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.host_potential import _TOGETHER, HostPotential
from sghmc.tuning import choices
from sghmc.tuning.choices import (
    FrictionSettings,
    GradientCandidates,
    check_first_pilot,
    choose_engine,
    predicted_seconds,
)
from sghmc.tuning.pilots import Budget, BudgetError
from sghmc.tuning.whitening import Whitening

WHITENING = Whitening(jnp.zeros(3), np.zeros(3), np.eye(3), 0.0, True)


class Measured(HostPotential):
    """What a search has measured."""

    def __init__(self, target, seconds, compile_seconds=0.5):
        self.target, self.is_short = target, False
        self.clock = [_TOGETHER * seconds + compile_seconds, _TOGETHER * seconds]


def posterior(count):
    return sghmc.Posterior(
        lambda theta, x: -0.5 * (x - theta[0]) ** 2,
        lambda theta: -0.5 * jnp.sum(theta**2),
        np.zeros(count, np.float32),
    )


def choose(surface, engine="auto", whitening=WHITENING, num_draws=4_000, gibbs=None):
    return choose_engine(
        engine, surface, whitening, batch_size=500, num_draws=num_draws, num_chains=4, gibbs=gibbs
    )


def predicted(pass_seconds, num_examples, **settings):
    options = {"num_gradients": 4, "batch_size": 500, "num_draws": 4_000} | settings
    return predicted_seconds(0.2, pass_seconds, num_examples, **options)


def test_predictions_grow_with_what_they_are_of():
    base = predicted(1e-3, 100_000)
    # Twice the rows at the same cost of a row: twice the passes of one engine, none of the other.
    larger = predicted(2e-3, 200_000)
    assert larger["minibatch"] == pytest.approx(base["minibatch"])
    assert larger["exact"] - 12 * 0.2 == pytest.approx(
        2 * (base["exact"] - 12 * 0.2),
        rel=0.01,  # a step costs a little besides its rows
    )
    assert predicted(1e-3, 100_000, num_gradients=8)["exact"] > 1.5 * base["exact"]
    assert predicted(1e-3, 100_000, batch_size=5_000)["minibatch"] > base["minibatch"]
    longer = predicted(1e-3, 100_000, num_draws=40_000)
    assert longer["exact"] > base["exact"]
    assert longer["minibatch"] > base["minibatch"]


def test_cheap_passes_are_made_exactly_and_dear_ones_are_not():
    cheap = choose(Measured(posterior(20_000), 1e-4))
    assert cheap.engine == "exact"
    dear = choose(Measured(posterior(100_000), 1e-1))
    assert dear.engine == "minibatch"
    for chosen in (cheap, dear):
        assert "predicted: exact" in chosen.reason
        assert "minibatch" in chosen.reason


def test_an_accelerator_has_steps_of_all_chains_launched_one_by_one(monkeypatch):
    surface = Measured(posterior(100_000), 4e-4, compile_seconds=0.0)
    assert choose(surface).engine == "minibatch"
    monkeypatch.setattr(choices.runtime, "has_accelerator", lambda: True)
    assert choose(surface).engine == "exact"


def test_dear_compilation_speaks_for_the_engine_with_fewer_programs():
    many = posterior(200_000)
    assert choose(Measured(many, 1e-2)).engine == "minibatch"
    assert choose(Measured(many, 1e-2, compile_seconds=50.0)).engine == "exact"


def test_pilots_that_would_outlast_the_budget_are_refused():
    check_first_pilot(Measured(posterior(20_000), 1e-2), WHITENING, Budget(60.0))
    with pytest.raises(BudgetError, match=r"would take about .*budget=.*minibatch"):
        check_first_pilot(Measured(posterior(20_000), 10.0), WHITENING, Budget(60.0))


def test_what_is_asked_for_is_done():
    surface = Measured(posterior(20_000), 1e-4)
    for engine in ("exact", "minibatch"):
        assert choose(surface, engine) == (engine, "as asked for")


def test_what_needs_no_prediction():
    potential = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    assert choose(Measured(potential, 1.0)).engine == "exact"
    assert choose(Measured(posterior(1_000), 1.0)).engine == "exact"
    gibbs = sghmc.Gibbs(lambda key, theta, posterior: posterior.hyper, every=5)
    assert choose(Measured(posterior(1_000), 1e-6), gibbs=gibbs).engine == "minibatch"
    many = Whitening(jnp.zeros(3), np.zeros(3), np.ones(3), 0.0, False)
    assert choose(Measured(posterior(20_000), 1e-6), whitening=many).engine == "minibatch"


def test_predicted_seconds_by_hand():
    found = predicted(1e-3, 100_000, step_seconds=7e-6)
    assert found["exact"] == pytest.approx(12 * 0.2 + (800 + 4_000) * 4 * (7e-6 + 1e-3))
    step = 7e-6 + 2 * 500 * 2.0 * 1e-3 / 100_000
    assert found["minibatch"] == pytest.approx(30 * 0.2 + (50_000 + 16 * 4_000) * step)
    usual = predicted(1e-3, 100_000, step_seconds=3e-6)
    assert predicted(1e-3, 100_000) == pytest.approx(usual)


def test_a_pass_of_a_chain_is_a_share_of_the_pass_that_was_measured():
    surface = Measured(posterior(10), 0.6)
    assert choices.pass_seconds(surface) == pytest.approx(0.6 / 4)
    surface.is_short = True
    assert choices.pass_seconds(surface) == pytest.approx(0.6 / 12)


def test_what_is_predicted_is_asked_for_with_what_was_measured(monkeypatch):
    asked = {}

    def predict(*args, **options):
        asked.update(options, args=args)
        return {"exact": ratio * 10.0, "minibatch": 10.0}

    monkeypatch.setattr(choices, "predicted_seconds", predict)
    surface = Measured(posterior(20_000), 0.4, compile_seconds=5.0)
    for ratio, engine in ((2.4, "exact"), (2.6, "minibatch")):
        chosen = choose(surface)
        assert chosen == (engine, f"predicted: exact {10 * ratio:.3g} s, minibatch 10 s")
    compiling, seconds, count = asked.pop("args")
    assert compiling == pytest.approx(surface.compile_seconds / 2.5)
    assert (seconds, count) == (pytest.approx(0.1), 20_000)
    # Three steps of 0.64, and the gradient at the end.
    expected = {"num_gradients": 4, "batch_size": 500, "num_draws": 4_000, "step_seconds": 3e-6}
    assert asked == expected
    surface.is_short = True
    monkeypatch.setattr(choices.runtime, "has_accelerator", lambda: True)
    choose(surface)
    assert asked["args"][0] == pytest.approx(surface.compile_seconds)
    assert asked["step_seconds"] == pytest.approx(4e-5 / 4)


def test_few_examples_are_four_batches():
    assert (
        "2,000 examples are few beside batches of 500"
        in choose(Measured(posterior(2_000), 9.0)).reason
    )
    assert choose(Measured(posterior(2_001), 9.0)).reason.startswith("predicted")


def test_a_first_pilot_has_400_draws_of_four_gradients():
    """400 · (3 + 1) passes of a quarter of what was measured: 56 and 64 s of 60."""
    check_first_pilot(Measured(posterior(20_000), 0.14), WHITENING, Budget(60.0))
    with pytest.raises(
        BudgetError, match=r"about 64 s, and of the budget of 60 s 60 s .*=2.6e\+02"
    ):
        check_first_pilot(Measured(posterior(20_000), 0.16), WHITENING, Budget(60.0))


# Gradient estimators


def test_settings_keep_the_error_of_gradient_noise_within_its_share():
    for noise in (0.0, 0.1, 1.0, 10.0, 70.0):
        settings = FrictionSettings.for_noise(noise, 0.05, 0.3)
        assert settings.law.standard_deviation_error <= 0.4 * 0.05 + 1e-9
        assert settings.step_size <= 0.3
        assert settings.step_size * settings.friction <= 0.5 + 1e-9
    assert FrictionSettings.for_noise(1e4, 0.05, 0.3).law.standard_deviation_error > 0.05


def test_rows_that_would_do():
    """Noise goes with 1/n: with so many rows it is what the tolerance has room for."""
    settings = FrictionSettings.for_noise(1e4, 0.05, 0.3)
    needed = settings.rows_needed(100, 0.05)
    enough = FrictionSettings.for_noise(1e4 * 100 / needed, 0.05, 0.3)
    assert enough.law.standard_deviation_error == pytest.approx(0.4 * 0.05, rel=0.02)


def test_draws_of_pilots_are_nearly_independent():
    for noise in (0.0, 1.0):
        settings = FrictionSettings.for_noise(noise, 0.05, 0.3)
        time = settings.law.autocorrelation_time
        assert 2**0.5 * time <= settings.thinning <= 2**1.5 * time
    assert settings.halved.step_size == settings.step_size / 2
    assert settings.halved.friction == settings.friction


FACTOR = np.array([[0.5, 0.0], [0.4, 0.1]])
"""Not symmetric: L V Lᵀ has other eigenvalues than Lᵀ V L."""


def regression(count):
    """y ~ N(x·θ, 1): one example's gradient is −x(y − x·θ), so V is known at every θ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)) * [1.0, 3.0]
    y = x @ [1.0, -1.0] + rng.normal(size=count)
    data = {"x": x.astype(np.float32), "y": y.astype(np.float32)}

    def log_likelihood(theta, row):
        return -0.5 * (row["y"] - row["x"] @ theta) ** 2

    return sghmc.Posterior(log_likelihood, lambda theta: -0.5 * jnp.sum(theta**2), data), x, y


def test_the_noise_is_that_of_whitened_gradients():
    """512 rows at 32 points: 16,384 examples, whose covariance is known to a percent or two."""
    posterior, x, y = regression(4_000)
    whitening = Whitening(jnp.zeros(2), np.array([1.0, -1.0]), FACTOR, 0.0, True)
    place = np.array([1.2, -0.9])
    gradients = -x * (y - x @ place)[:, None]
    covariance = 4_000**2 / 100 * np.cov(gradients.T)
    expected = np.linalg.eigvalsh(FACTOR.T @ covariance @ FACTOR)[-1]
    wrong = np.linalg.eigvalsh(FACTOR @ covariance @ FACTOR.T)[-1]
    assert abs(wrong / expected - 1) > 0.3
    estimators = GradientCandidates(posterior, 100, 0.05, np.random.default_rng(0))
    noise = estimators.noise(sghmc.Minibatch(100), whitening, np.tile(place, (4, 1)))
    assert noise == pytest.approx(expected, rel=0.08)
    assert estimators.noise(sghmc.FullBatch(), whitening, place[None]) == 0
    # The difference of gradients at two points is linear in them here, and known as well.
    center = sghmc.ControlVariate(100, jnp.asarray([1.0, -1.0]))
    changes = x * (x @ (place - [1.0, -1.0]))[:, None]
    covariance = 4_000**2 / 100 * np.cov(changes.T)
    expected = np.linalg.eigvalsh(FACTOR.T @ covariance @ FACTOR)[-1]
    found = estimators.noise(center, whitening, np.tile(place, (4, 1)))
    assert found == pytest.approx(expected, rel=0.15)


def fitted(posterior, x):
    curvature = x.T @ x + np.eye(2)
    factor = np.linalg.inv(np.linalg.cholesky(curvature)).T
    center = np.linalg.solve(curvature, x.T @ np.asarray(posterior.data["y"]))
    whitening = Whitening(jnp.zeros(2), center, factor, 0.0, True)
    return whitening, whitening.to_position(np.random.default_rng(1).normal(size=(4, 2)))


def test_much_data_gets_a_control_variate_and_little_data_all_of_them():
    posterior, x, _ = regression(30_000)
    found = GradientCandidates(posterior, 100, 0.05, np.random.default_rng(0)).best(
        *fitted(posterior, x), 0.3
    )
    assert isinstance(found.gradient, sghmc.ControlVariate)
    assert found.gradient.batch_size == 100
    assert found.settings.step_size == 0.3
    assert list(found.noises) == ["control variate"]
    posterior, x, _ = regression(300)
    found = GradientCandidates(posterior, 100, 0.05, np.random.default_rng(0)).best(
        *fitted(posterior, x), 0.3
    )
    assert isinstance(found.gradient, sghmc.FullBatch)
    assert found.noises == {}


def test_a_center_far_off_leaves_all_data_as_the_cheapest():
    """3,000 rows in batches of 100: noise of either kind costs more steps than a pass does."""
    posterior, x, _ = regression(3_000)
    whitening, places = fitted(posterior, x)
    far = Whitening(jnp.zeros(2), whitening.center + 3.0, whitening.factor, 0.0, True)
    found = GradientCandidates(posterior, 100, 0.05, np.random.default_rng(0)).best(
        far, places, 0.3
    )
    assert isinstance(found.gradient, sghmc.FullBatch)
    assert set(found.noises) == {"control variate", "minibatch"}


def test_a_potential_has_no_batches():
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    whitening = Whitening(jnp.zeros(2), np.zeros(2), np.eye(2), 0.0, True)
    found = GradientCandidates(target, 100, 0.05, np.random.default_rng(0)).best(
        whitening, np.zeros((4, 2)), 0.3
    )
    assert isinstance(found.gradient, sghmc.FullBatch)
    assert jax.tree.leaves(found.noises) == []
