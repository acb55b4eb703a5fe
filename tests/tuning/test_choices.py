"""Which engine, by counted costs, and which gradient estimator, by noise and rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.tuning import choices
from sghmc.tuning.budget import Budget, BudgetError, Costs
from sghmc.tuning.choices import (
    FrictionSettings,
    GradientCandidates,
    check_first_pilot,
    choose_engine,
    predicted_costs,
)
from sghmc.tuning.whitening import Whitening

WHITENING = Whitening(jnp.zeros(3), np.zeros(3), np.eye(3), 0.0, True)


def posterior(count):
    return sghmc.Posterior(
        lambda theta, x: -0.5 * (x - theta[0]) ** 2,
        lambda theta: -0.5 * jnp.sum(theta**2),
        np.zeros(count, np.float32),
    )


def choose(
    target,
    of_row=1e-8,
    compiling=0.1,
    engine="auto",
    whitening=WHITENING,
    num_draws=4_000,
    gibbs=None,
):
    count = int(target.num_examples) if isinstance(target, sghmc.Posterior) else 1
    costs = Costs(compiling, count * of_row, of_row)
    return choose_engine(
        engine, target, whitening, costs, batch_size=500, num_draws=num_draws, gibbs=gibbs
    )


def predicted(of_pass, num_examples, of_step=3e-6, **settings):
    options = {"num_gradients": 4, "batch_size": 500, "num_draws": 4_000} | settings
    return predicted_costs(Costs(0.2, of_pass, of_pass / num_examples, of_step), **options)


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
    cheap = choose(posterior(20_000))
    assert cheap.engine == "exact"
    dear = choose(posterior(200_000), of_row=1e-7)
    assert dear.engine == "minibatch"
    for chosen in (cheap, dear):
        assert "counted cost in nominal seconds: exact" in chosen.reason
        assert "exact is preferred up to 2.5 times the cost" in chosen.reason


def test_dear_compilation_speaks_for_the_engine_with_fewer_programs():
    many = posterior(200_000)
    assert choose(many, 1e-7).engine == "minibatch"
    assert choose(many, 1e-7, compiling=50.0).engine == "exact"


def test_what_is_asked_for_is_done():
    for engine in ("exact", "minibatch"):
        assert choose(posterior(20_000), engine=engine) == (engine, "as asked for")


def test_what_needs_no_prediction():
    potential = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    assert choose(potential, 1.0).engine == "exact"
    assert choose(posterior(1_000), 1.0).engine == "exact"
    gibbs = sghmc.Gibbs(lambda key, theta, posterior: posterior.hyper, every=5)
    assert choose(posterior(1_000), gibbs=gibbs).engine == "minibatch"


def test_parameters_that_are_many_choose_no_engine():
    """A horseshoe with 50 rows had minibatches because its parameters were many."""
    many = Whitening(jnp.zeros(3), np.zeros(3), np.ones(3), 0.0, False)
    assert choose(posterior(50), whitening=many).engine == "exact"


def test_without_a_mode_the_noise_of_plain_batches_is_counted():
    """2C/ε = Ṽ/(0.8 · 5 %) steps a draw, Ṽ the number of batches: 50 passes with what rows cost."""
    no_mode = Whitening(jnp.zeros(3), np.zeros(3), np.eye(3), 0.0, False)
    assert choose(posterior(200_000), of_row=1e-7).engine == "minibatch"
    chosen = choose(posterior(200_000), of_row=1e-7, whitening=no_mode)
    assert chosen.engine == "exact"
    assert "without a mode have no control variate" in chosen.reason
    base = predicted(1e-3, 100_000, of_step=0.0)["minibatch"] - 30 * 0.2
    noisy = predicted(1e-3, 100_000, of_step=0.0, num_batches=200.0)["minibatch"] - 30 * 0.2
    steps = (50_000 + 200 / 0.04 * 4_000) / (50_000 + 16 * 4_000)
    assert noisy / base == pytest.approx(steps)


def test_predicted_costs_by_hand():
    found = predicted(1e-3, 100_000, of_step=7e-6)
    assert found["exact"] == pytest.approx(12 * 0.2 + (800 + 4_000) * 4 * (7e-6 + 1e-3))
    step = 7e-6 + 2 * 500 * 2.0 * 1e-3 / 100_000
    assert found["minibatch"] == pytest.approx(30 * 0.2 + (50_000 + 16 * 4_000) * step)


def test_an_unbiased_answer_is_worth_two_and_a_half_times_the_cost(monkeypatch):
    for ratio, engine in ((2.4, "exact"), (2.6, "minibatch")):
        found = {"exact": ratio * 10.0, "minibatch": 10.0}
        monkeypatch.setattr(choices, "predicted_costs", lambda *_, found=found, **__: found)
        chosen = choose(posterior(20_000))
        assert chosen.engine == engine
        assert f"exact {10 * ratio:.3g}, minibatch 10;" in chosen.reason


def test_few_examples_are_four_batches():
    assert "2,000 examples are few beside batches of 500" in choose(posterior(2_000), 9.0).reason
    assert choose(posterior(2_001), 9.0).reason.startswith("counted")


def test_a_first_pilot_has_400_draws_of_four_gradients():
    """400 · (3 + 1) passes: 56 and 64 s of 60, by the clock; likewise of what is counted."""
    check_first_pilot(Costs(0.0, 0.035), WHITENING, Budget(60.0))
    with pytest.raises(
        BudgetError,
        match=r"about 64 s, and of the budget of 60 s 60 s .*seconds=2.6e\+02.*minibatch",
    ):
        check_first_pilot(Costs(0.0, 0.04), WHITENING, Budget(60.0))
    check_first_pilot(Costs(0.0, 0.07), WHITENING, Budget())
    with pytest.raises(BudgetError, match=r"about 128 s, and of the counted work of 120 s"):
        check_first_pilot(Costs(0.0, 0.08), WHITENING, Budget())


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


class Candidates(GradientCandidates):
    """Gradients with rows and noise that are told."""

    def __init__(self, told, tolerance=0.05):
        self.told, self.tolerance = told, tolerance

    def _candidates(self, whitening) -> dict[str, tuple[Any, int]]:
        names = {"x": sghmc.Minibatch(1), "y": sghmc.Minibatch(2)}
        return {name: (names[name], rows) for name, (rows, _) in self.told.items()}

    def noise(self, gradient: Any, whitening, points):
        return self.told["x" if gradient.batch_size == 1 else "y"][1]

    def chosen(self):
        best: Any = self.best(WHITENING, np.zeros((1, 3)), 0.5)
        return "x" if best.gradient.batch_size == 1 else "y"


def test_a_step_costs_its_rows_and_what_it_costs_without_any():
    """The dearer step is the cheaper draw just where the overhead makes it so."""
    times = [
        FrictionSettings.for_noise(noise, 0.05, 0.5).law.autocorrelation_time for noise in (9, 4)
    ]
    overhead = choices._STEP_OVERHEAD_ROWS
    rows = 3 * overhead
    balance = (rows + overhead) * times[0] / times[1] - overhead
    assert balance > rows
    assert Candidates({"x": (rows, 9.0), "y": (balance - 1, 4.0)}).chosen() == "y"
    assert Candidates({"x": (rows, 9.0), "y": (balance + 1, 4.0)}).chosen() == "x"


def test_an_error_of_just_the_tolerance_is_no_bias():
    """At the tolerance a candidate is as good as others, and may be the cheaper one."""
    error = FrictionSettings.for_noise(1e4, 0.05, 0.5).law.standard_deviation_error
    told = {"x": (1, 1e4), "y": (10**9, 0.5)}
    assert Candidates(told, 0.05).chosen() == "y"
    assert Candidates(told, error).chosen() == "x"
