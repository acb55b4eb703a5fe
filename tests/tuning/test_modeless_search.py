"""Tuning without a mode: ends within its gradients, keeps what it promises, and says when not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.tuning import modeless_search, pilots
from sghmc.tuning.budget import Budget
from sghmc.tuning.modeless_search import ModelessSearch, plain_gradient, unit_whitening
from synthetic_pilots import pilot_run

KEY = jax.random.key(5)


def mixture():
    """Two overlapping Gaussians: no Gaussian around any mode fits; mean 0, known variance."""

    def potential(theta):
        away = jnp.stack([jnp.sum((theta / 0.05 - 1.3) ** 2), jnp.sum((theta / 0.05 + 1.3) ** 2)])
        return -jax.nn.logsumexp(-away / 2)

    return sghmc.Potential(potential), 0.05 * np.sqrt(1 + 1.3**2)


@pytest.fixture
def gradients(monkeypatch):
    """Gradients that pilot runs have taken, counted where they are run."""
    counted = []
    run = pilots.run

    def counting(key, target, sampler, init, options):
        counted.append(options.num_chains * options.num_samples * (options.thinning + 1))
        return run(key, target, sampler, init, options)

    monkeypatch.setattr(pilots, "run", counting)
    return counted


@pytest.mark.slow
def test_a_mixture_is_tuned_without_a_mode(gradients):
    target, spread = mixture()
    tuned = sghmc.tune(
        KEY, target, jnp.zeros(2), mode=False, num_gradients=400_000, num_chains=16, tolerance=0.1
    )
    assert tuned.report.is_met, tuned.report
    assert sum(gradients) <= 400_000
    assert f"{sum(gradients):,} gradients" in str(tuned.report)
    samples = sghmc.sample(
        jax.random.key(6), target, tuned.sampler, tuned.init, init_axis=0, num_chains=16,
        num_samples=400, thinning=tuned.thinning, progress=False,
    )  # fmt: skip
    draws = np.asarray(samples.positions, np.float64)
    # A quarter of the tolerance is chance's, with some thousands of effective draws.
    np.testing.assert_allclose(draws.std((0, 1)), spread, rtol=0.125)


@pytest.mark.slow
def test_a_network_ends_within_its_gradients_and_says_what_is_known(gradients):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)).astype(np.float32)
    data = {"x": x, "y": np.sin(x[:, 0]) + 0.1 * rng.normal(size=120).astype(np.float32)}

    def log_likelihood(params, row):
        hidden = jnp.tanh(row["x"] @ params["first"])
        return -50 * (row["y"] - hidden @ params["second"]) ** 2

    def log_prior(params):
        return -0.5 * (jnp.sum(params["first"] ** 2) + jnp.sum(params["second"] ** 2))

    posterior = sghmc.Posterior(log_likelihood, log_prior, data)
    keys = jax.random.split(KEY)
    init = {"first": jax.random.normal(keys[0], (2, 5)), "second": jax.random.normal(keys[1], (5,))}
    tuned = sghmc.tune(KEY, posterior, init, mode=False, num_gradients=40_000, num_chains=4)
    assert sum(gradients) <= 40_000
    assert isinstance(tuned.gradient, sghmc.FullBatch)
    assert 0.8 < tuned.report.kinetic_temperature < 1.2
    assert tuned.report.is_met or "num_gradients=160,000" in str(tuned.report)


@pytest.mark.slow
def test_a_step_that_is_too_large_is_not_kept():
    """From a step 40 times too large for the stiffest direction down to one that is stable."""
    scales = jnp.array([1.0, 0.02])
    target = sghmc.Potential(lambda theta: jnp.sum((theta / scales) ** 4) / 4)
    tuned = sghmc.tune(KEY, target, jnp.full(2, 0.01), mode=False, num_chains=16, tolerance=0.1)
    assert tuned.report.is_met, tuned.report
    exact = np.asarray(scales) * 0.8222  # √(2Γ(3/4)/Γ(1/4))
    samples = sghmc.sample(
        KEY, target, tuned.sampler, tuned.init, init_axis=0, num_chains=16, num_samples=300,
        thinning=tuned.thinning, progress=False,
    )  # fmt: skip
    spread = np.asarray(samples.positions, np.float64).std((0, 1))
    np.testing.assert_allclose(spread, exact, rtol=0.125)


@pytest.mark.slow
def test_few_gradients_are_told():
    target, _ = mixture()
    tuned = sghmc.tune(KEY, target, jnp.zeros(2), mode=False, num_gradients=4_000, tolerance=0.01)
    assert not tuned.report.is_met
    assert "num_gradients=16,000" in str(tuned.report)


@pytest.mark.slow
def test_modes_that_chains_do_not_leave_are_told():
    target = sghmc.Potential(lambda theta: 20 * jnp.sum((theta**2 - 4) ** 2))
    tuned = sghmc.tune(KEY, target, jnp.zeros(1), mode=False, num_chains=8, num_gradients=80_000)
    assert not tuned.report.is_met
    assert "different modes" in str(tuned.report)


def test_errors_name_what_came():
    target, _ = mixture()
    with pytest.raises(TypeError, match="mode must be True or False, but is 'no'"):
        sghmc.tune(KEY, target, jnp.zeros(2), mode="no")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="4 chains need at least 4,000"):
        sghmc.tune(KEY, target, jnp.zeros(2), mode=False, num_gradients=100)
    with pytest.raises(ValueError, match="HMC is tuned at a mode"):
        sghmc.tune(KEY, target, jnp.zeros(2), mode=False, engine="exact")


# The search step by step, with pilot runs that are made up


class MadeUpPilots(pilots.Pilots):
    """Answers every pilot run with `answer(step_size, num_draws)`, a `PilotRun`."""

    def __init__(self, answer, num_chains=4, seconds=1e3):
        self.answer, self.num_chains, self.budget = answer, num_chains, Budget(seconds)
        self.asked = []
        """Step size, friction, starts and number of draws of every run."""

    def run(self, sampler: Any, gradient, whitening, starts, num_draws, thinning=1):
        assert thinning == 8
        self.asked.append((float(sampler.step_size), float(sampler.friction), starts, num_draws))
        return self.answer(float(sampler.step_size), num_draws)


def made_up(answer, num_gradients=100_000, tolerance=0.05, size=2, **options) -> Any:
    whitening = unit_whitening(np.full(size, 3.0), np.zeros(size, np.float32))
    return ModelessSearch(
        MadeUpPilots(answer, **options), whitening, sghmc.FullBatch(), tolerance, num_gradients
    )


def drawn(num_draws, temperature=1.0, fall=0.0, scale=1.0, center=3.0, seed=0, num_chains=4):
    """Draws of N(center, scale²), whose potential falls by `fall` from the first half on."""
    rng = np.random.default_rng(seed)
    draws = center + scale * rng.normal(size=(num_chains, num_draws, 2))
    potential = np.zeros((num_chains, num_draws))
    potential[:, : num_draws // 2] = fall
    temperature = temperature + 0.1 * rng.normal(size=potential.shape)
    return pilot_run(draws, temperature, potential=potential)


def lost(num_draws):
    found = drawn(num_draws)
    found.draws[1, -1] = np.nan
    return found


def test_the_first_region_is_a_unit_ball_around_the_start():
    like = np.zeros(50, np.float32)
    dense = unit_whitening(np.arange(50.0), like)
    np.testing.assert_array_equal(dense.factor, np.eye(50))
    np.testing.assert_array_equal(dense.center, np.arange(50))
    assert not dense.is_gaussian
    assert np.isnan(dense.distance)
    diagonal = unit_whitening(np.arange(51.0), np.zeros(51, np.float32))
    np.testing.assert_array_equal(diagonal.factor, np.ones(51))


def test_batches_are_taken_where_all_data_are_more_than_two_of_them():
    def gradient(count):
        rows = np.zeros(count, np.float32)
        return plain_gradient(sghmc.Posterior(lambda t, x: 0.0, lambda t: 0.0, rows), 10)

    assert isinstance(gradient(20), sghmc.FullBatch)
    assert gradient(21) == sghmc.Minibatch(10)
    assert isinstance(plain_gradient(sghmc.Potential(jnp.sum), 10), sghmc.FullBatch)


def test_friction_is_enough_to_cool_a_fall():
    """1.5, and a tenth of the momenta in every step at least."""
    assert modeless_search._settings(0.5).friction == 1.5
    assert modeless_search._settings(0.01).friction == pytest.approx(10)
    assert modeless_search._settings(0.01).noise == 0


def test_a_fall_is_what_goes_beyond_chance():
    """5 + 3√(d/2): 8 with two parameters."""
    assert modeless_search._fall(drawn(10, fall=8.5)) == pytest.approx(0.5)
    assert modeless_search._fall(drawn(10, fall=7.5)) == pytest.approx(-0.5)


def test_draws_cost_nine_gradients_of_each_chain():
    search = made_up(lambda step, count: drawn(count), num_gradients=3_600)
    assert search.draws_left == 100
    search._run(0.5, 30)
    assert search.spent == 9 * 4 * 30
    assert search.draws_left == 70
    search.pilots.budget.seconds = -1.0
    assert search.draws_left == 0


def test_steps_are_halved_until_chains_stay_finite_and_cool():
    """Hot chains that still fall are let be: any step is hot on the way down."""

    def answer(step, count):
        return lost(count) if step > 0.3 else drawn(count, temperature=2.0 if step > 0.2 else 1.0)

    search = made_up(answer)
    search._find_stable_step()
    assert search.step_size == 0.125
    assert [step for step, *_ in search.pilots.asked] == [1.0, 0.5, 0.25, 0.125]
    assert [count for *_, count in search.pilots.asked] == [6] * 4
    np.testing.assert_array_equal(search.starts, drawn(6).draws[:, -1])
    falling = made_up(lambda step, count: drawn(count, temperature=2.0, fall=9.0))
    falling._find_stable_step()
    assert falling.step_size == 1.0
    poor = made_up(lambda step, count: lost(count), num_gradients=9 * 4 * 17)
    poor._find_stable_step()
    assert (poor.step_size, len(poor.pilots.asked)) == (0.25, 2), "six draws at a time"
    np.testing.assert_array_equal(poor.starts, np.full((4, 2), 3.0))


def test_scales_are_those_of_the_second_half_of_a_pilot_run():
    """A sixteenth of the gradients a round: 173 draws of four chains. The second round fits."""
    scales = [5.0, 5.0]

    def answer(step, count):
        if count == 6:
            return drawn(count)
        found = drawn(count, scale=scales.pop())
        found.draws[:, : count // 2] *= 100
        return found

    search = made_up(answer)
    search.step_size = 0.25
    search._find_scales()
    assert [(step, count) for step, _, _, count in search.pilots.asked] == [
        (0.25, 173), (0.5, 6), (0.5, 173)
    ]  # fmt: skip
    found = search.whitening.factor @ search.whitening.factor.T
    np.testing.assert_allclose(found, 25 * np.eye(2), atol=3)
    np.testing.assert_allclose(search.whitening.center, 3, atol=1)


def test_scales_are_not_taken_from_chains_that_fall_or_boil():
    search = made_up(lambda step, count: drawn(count, fall=9.0, scale=5.0))
    search._find_scales()
    assert len(search.pilots.asked) == 6, "all rounds, none of which sees equilibrium"
    np.testing.assert_array_equal(search.whitening.factor, np.eye(2))
    np.testing.assert_array_equal(search.starts, drawn(173, scale=5.0).draws[:, -1])
    assert search.step_size == 1.0
    boiling = made_up(lambda step, count: drawn(count, temperature=2.0, scale=5.0))
    boiling._find_scales()
    assert boiling.step_size == 2.0**-6
    np.testing.assert_array_equal(boiling.starts, np.full((4, 2), 3.0))
    wild = made_up(lambda step, count: lost(count))
    wild._find_scales()
    assert wild.step_size == 2.0**-6
    few = made_up(lambda step, count: drawn(count), num_gradients=9 * 4 * 16 * 11)
    few._find_scales()
    assert few.pilots.asked == [], "a round of eleven draws would say nothing"
    spent = made_up(lambda step, count: drawn(count))
    spent.spent = 100_000 - 9 * 4 * 345
    spent._find_scales()
    assert spent.pilots.asked == [], "less than two rounds are left"


def test_a_step_that_half_of_it_does_not_contradict_stands():
    """A ninth of the draws for the first run, twice as many with half the step."""
    search = made_up(lambda step, count: drawn(count, seed=round(8 / step)), num_gradients=360_000)
    search.step_size = 0.5
    found = search._verify()
    assert [(step, count) for step, _, _, count in search.pilots.asked] == [
        (0.5, 1111), (0.25, 2222)
    ]  # fmt: skip
    np.testing.assert_array_equal(search.pilots.asked[1][2], found.draws[:, -1])
    np.testing.assert_array_equal(found.draws, drawn(1111, seed=16).draws)
    assert search.step_size == 0.5
    assert search.complaints == []
    assert 0 < search.halving.change < 0.05
    assert 0 < search.halving.noise < 0.05


def test_a_step_that_half_of_it_contradicts_is_halved():
    """Too wide by a half at 0.5, and too hot at 0.25: 0.125 stands."""

    def answer(step, count):
        heat, scale = 1.5 if step == 0.25 else 1.0, 1.5 if step == 0.5 else 1.0
        return drawn(count, temperature=heat, scale=scale, seed=round(8 / step))

    search = made_up(answer, num_gradients=720_000)
    search.step_size = 0.5
    search._verify()
    assert search.step_size == 0.125
    assert [count for *_, count in search.pilots.asked] == [2222, 4444, 8888]
    assert search.complaints[0].startswith(
        "half the step size was not reached: give more by sghmc.tune"
    )
    assert "num_gradients=2,880,000" in search.complaints[0]
    hot = made_up(lambda step, count: drawn(count, temperature=1.5), num_gradients=36_000)
    hot._verify()
    assert "hotter than they should be" in hot.complaints[0]
    poor = made_up(lambda step, count: drawn(count), num_gradients=9 * 4 * 30)
    poor._verify()
    assert [count for *_, count in poor.pilots.asked] == [12], (
        "less than the half step's 24 is left"
    )


def test_what_pilots_do_not_know_is_a_fault():
    search = made_up(lambda step, count: drawn(count))
    apart = drawn(100)
    apart.draws[0] += 3
    search._judge(apart)
    assert search.complaints[0].startswith(f"the pilot chains disagree (R-hat {apart.r_hat:.2f})")
    search.complaints.clear()
    search._judge(lost(100))
    assert "did not stay finite" in search.complaints[0]
    search.complaints.clear()
    search.halving = pilots.HalvingTest(0.0, 0.06, True)
    search._judge(drawn(100))
    assert search.complaints[0].startswith(
        "the pilot runs determine standard deviations to 6% only: give"
    )
    search.complaints.clear()
    search.halving = pilots.HalvingTest(0.0, 0.04, True)
    search._judge(drawn(100))
    assert search.complaints == []


def test_the_report_has_the_settings_and_what_the_last_run_says():
    search = made_up(lambda step, count: drawn(count))
    search.step_size, search.spent = 0.25, 1_234_567
    search.halving = pilots.HalvingTest(0.03, 0.01, True)
    search.complaints.append("a complaint")
    last = drawn(500, temperature=1.1)
    tuned = search._tuned(last)
    found = tuned.report
    law = modeless_search._settings(0.25).law
    time = max(law.autocorrelation_time, 8 * last.autocorrelation_time)
    assert found.autocorrelation_time == pytest.approx(time)
    assert tuned.thinning == 8 * round(time / 8)
    assert (found.engine, found.step_size, found.friction) == ("minibatch", 0.25, 1.5)
    assert (found.num_parameters, found.estimator, found.tolerance) == (2, "FullBatch", 0.05)
    assert (found.halving_change, found.halving_noise) == (0.03, 0.01)
    assert found.kinetic_temperature == pytest.approx(last.temperature.mean())
    assert found.predicted_error == law.standard_deviation_error
    assert found.complaints == ("a complaint",)
    assert found.notes == ("1,234,567 gradients of pilot chains",)
    assert tuned.sampler.sampler == modeless_search._settings(0.25).sampler
    np.testing.assert_array_equal(tuned.init, last.draws[:, -1].astype(np.float32))
    nothing = search._tuned(lost(500))
    np.testing.assert_array_equal(nothing.init, search.starts)
    assert np.isnan(nothing.report.kinetic_temperature)
    assert nothing.report.autocorrelation_time == law.autocorrelation_time


def test_a_search_goes_through_its_stages_and_judges_the_last_run():
    """Steps of 1 are hot; scales fit at once; 0.5 and 0.25 agree."""
    search = made_up(lambda step, count: drawn(count, 2.0 if step > 0.6 else 1.0, center=3.0))
    found = search.search().report
    assert [(step, count) for step, _, _, count in search.pilots.asked] == [
        (1.0, 6), (0.5, 6), (0.5, 173), (0.5, 6), (0.5, 287), (0.25, 574)
    ]  # fmt: skip
    assert found.step_size == 0.5
    assert found.complaints == ()
