"""The search for SGHMC's settings, by pilots whose law is known."""

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.gradients.exact import FullBatch
from sghmc.posterior.surface import Surface
from sghmc.tuning import minibatch
from sghmc.tuning.estimators import Choice, Estimators, Settings
from sghmc.tuning.minibatch import Batches, compare
from sghmc.tuning.pilot import Trial
from sghmc.tuning.region import Region
from synthetic_pilots import SyntheticPilots

GAUSSIAN = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))


def region(is_local=False, factor=None):
    factor = np.eye(2) if factor is None else factor
    return Region(np.zeros(2, np.float32), np.zeros(2), factor, 0.0, True, is_local)


def batches(pilots, start=None, target=GAUSSIAN, tolerance=0.05):
    estimators = Estimators(target, 100, tolerance, np.random.default_rng(0))
    surface = Surface(target, jnp.zeros(2))
    start = region() if start is None else start
    return Batches(pilots, surface, start, np.zeros((pilots.num_chains, 2)), estimators)


def standard(**options):
    return SyntheticPilots(np.zeros(2), np.eye(2), **options)


def test_a_step_size_that_changes_nothing_stands():
    pilots = standard()
    found = batches(pilots).search()
    assert found.faults == []
    assert found.step_size == pytest.approx(0.3)
    assert found.halving_change < 0.05
    # Tried with half of it, and as long in time: twice the draws.
    assert pilots.steps[-1] == pytest.approx(0.15)


def test_a_step_size_that_changes_a_spread_is_halved():
    """Draws are too wide by ε²: 9 % at 0.3 must not stand, 2 % at 0.15 may."""
    found = batches(standard(spread=lambda step_size: 1 + step_size**2)).search()
    assert found.faults == []
    assert found.step_size == pytest.approx(0.15)


def test_a_bias_that_no_step_size_ends_is_a_fault():
    """A spread that goes with the step size, whatever that is: 14 % a halving."""
    found = batches(standard(spread=lambda step_size: step_size**0.2)).search()
    assert any("did not settle" in fault or "halving" in fault for fault in found.faults)
    assert any("halving" in fault for fault in found.faults)


def changed(whole, half):
    return compare(whole, half, 0.05, is_dense=True)


def test_a_mean_that_moves_with_the_step_size_is_seen():
    search = batches(standard())
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 4_000, 2))
    heat = np.ones((4, 4_000))
    trial = Trial(draws, heat, heat)
    assert compare(
        trial, Trial(draws + np.array([0.0, 0.02]), heat, heat), search.tolerance, is_dense=True
    )[2]
    assert not compare(
        trial, Trial(draws + np.array([0.0, 0.2]), heat, heat), search.tolerance, is_dense=True
    )[2]
    assert not compare(
        trial, Trial(draws * [1.0, 1.1], heat, heat), search.tolerance, is_dense=True
    )[2]
    assert not changed(trial, Trial(draws * 0.95, heat, heat))[2]
    lost = np.where(np.arange(4_000)[:, None] > 3_000, np.nan, draws)
    change, _, agrees = changed(trial, Trial(lost, heat, heat))
    assert change == np.inf
    assert not agrees


@pytest.mark.parametrize("is_cured", [True, False])
def test_momenta_that_are_too_hot_halve_the_step_size(monkeypatch, is_cured):
    """Draws agree at all step sizes here: only the temperature, planted in the pilots, objects."""
    pilots = standard()
    measure, seen = Batches._measure, []

    def hot(self, settings):
        trial = measure(self, settings)
        seen.append(settings.step_size)
        is_hot = settings.step_size == seen[0] or not is_cured
        return Trial(trial.draws, trial.heat + 0.5 * is_hot, trial.acceptance)

    monkeypatch.setattr(Batches, "_measure", hot)
    monkeypatch.setattr(minibatch, "_NUM_HALVINGS", 2)
    found = batches(pilots).search()
    assert (found.faults == []) == is_cured
    assert found.step_size == seen[0] / (2 if is_cured else 4)
    assert any("hotter than they should be by 5" in fault for fault in found.faults) != is_cured


def test_pilots_that_boil_teach_the_region_nothing(monkeypatch):
    """Steps beyond 0.1 are planted to be hot, with draws far out though finite."""
    pilots = standard(spread=lambda step_size: 1e3 if step_size > 0.1 else 1.0)
    run = pilots.run

    def boiling(sampler, *args):
        trial = run(sampler, *args)
        is_hot = float(sampler.sampler.step_size) > 0.1
        return Trial(trial.draws, trial.heat + 5 * is_hot, trial.acceptance)

    monkeypatch.setattr(pilots, "run", boiling)
    found = batches(pilots).search()
    assert found.faults == []
    assert found.step_size <= 0.1
    np.testing.assert_allclose(found.region.factor @ found.region.factor.T, np.eye(2), atol=0.5)


def test_the_region_becomes_that_of_the_draws():
    covariance = np.array([[4.0, 1.5], [1.5, 1.0]])
    found = batches(SyntheticPilots([3.0, -1.0], covariance)).search()
    factor = found.region.factor
    np.testing.assert_allclose(factor @ factor.T, covariance, rtol=0.3)
    np.testing.assert_allclose(found.region.center, [3, -1], atol=0.5)


def test_draws_that_never_fit_are_a_fault(monkeypatch):
    monkeypatch.setattr(minibatch, "_NUM_ROUNDS", 3)
    pilots = standard()
    count = iter(range(100))
    run = pilots.run

    def growing(*args):
        ones = np.ones((4, 820))
        return Trial(run(*args).draws * 10 ** (1 + next(count)), ones, ones)

    monkeypatch.setattr(pilots, "run", growing)
    search = batches(pilots)
    assert search._refine() is None
    assert "did not settle" in search.faults[0]


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_thinning_makes_draws_independent(memory):
    """A pilot's draws have 1 + Σρ = 1/(1 − 0.9) of each other: ten of them make one."""
    found = batches(standard(memory=memory)).search()
    base = Settings.for_noise(0.0, 0.05, 0.3).thinning
    factor = 1 if memory == 0 else 10
    assert base * factor * 0.6 <= found.thinning <= base * factor * 1.5
    assert found.thinning > 1


def test_where_the_potential_is_a_gaussian_no_half_step_is_tried():
    pilots = standard()
    found = batches(pilots, region(is_local=True)).search()
    assert len(pilots.steps) == 1
    assert pilots.lengths == [800 // 4 + 20]  # a short look, and burn-in
    assert "a Gaussian's up to" in found.notes[0]
    assert np.isnan(found.halving_change)


def test_a_potential_that_is_no_gaussian_is_not_taken_for_one():
    """U = θ²/2 + θ⁴/2, far from quadratic at the draws that the pilots show."""
    target = sghmc.Potential(lambda theta: jnp.sum(0.5 * theta**2 + 0.5 * theta**4))
    pilots = standard()
    found = batches(pilots, region(is_local=True), target).search()
    assert found.notes == []
    assert pilots.lengths[0] < pilots.lengths[1]  # a short look was not enough
    assert min(pilots.steps) == pytest.approx(0.15)


def test_hot_momenta_forbid_to_leave_the_half_step_out():
    pilots = standard(heat=1.3)
    batches(pilots, region(is_local=True)).search()
    assert len(pilots.steps) > 1


def test_gradient_noise_beyond_the_tolerance_is_a_fault():
    search = batches(standard())
    settings = Settings.for_noise(1e4, 0.05, 0.3)
    search.choice = Choice(FullBatch(), settings, {"minibatch": 1e4})
    assert search.misses
    found = minibatch._outcome(search, search._verify())
    assert "batches of about" in found.faults[0]
    assert found.predicted_error > 0.05


def test_chains_that_are_lost_go_back_to_sound_ones():
    search = batches(standard())
    draws = np.zeros((4, 3, 2)) + np.arange(4.0)[:, None, None]
    draws[1, 2] = draws[3, 0] = np.nan
    full = np.ones((4, 3))
    np.testing.assert_array_equal(
        search._sound_places(Trial(draws, full, full))[:, 0], [0.0, 2.0, 0.0, 2.0]
    )


def test_a_spent_budget_ends_the_search_with_what_there_is(monkeypatch):
    pilots = standard()
    run = pilots.run

    def last(*args):
        trial = run(*args)
        pilots.budget.seconds = 0.0
        return trial

    monkeypatch.setattr(pilots, "run", last)
    found = batches(pilots).search()
    assert len(pilots.steps) <= 2
    assert "budget ended before half the step size" in found.faults[0]


def test_one_standard_deviation_that_changes_is_seen_among_others():
    """+10 % and −9 %: on average nothing, so that only a look at each of them objects."""
    search, rng = batches(standard()), np.random.default_rng(0)
    draws, heat = rng.normal(size=(4, 4_000, 2)), np.ones((4, 4_000))
    trial = Trial(draws, heat, heat)
    assert changed(trial, trial)[2]
    change, _, agrees = compare(
        trial, Trial(draws * [1.1, 1 / 1.1], heat, heat), search.tolerance, is_dense=True
    )
    assert change == pytest.approx(np.log(1.1), rel=1e-6)
    assert not agrees


def test_a_change_that_all_share_is_seen_though_each_is_within_its_error():
    """5 % of 40 parameters, each known to 2.5 %: 2 errors of one, many of their mean."""
    search, rng = batches(standard()), np.random.default_rng(0)
    draws, heat = rng.normal(size=(4, 400, 40)), np.ones((4, 400))
    trial, shrunk = Trial(draws, heat, heat), Trial(0.95 * draws, heat, heat)
    before, after = trial.moments(), shrunk.moments()
    error = np.hypot(before.log_spread_error, after.log_spread_error)
    usual = np.argsort(error)[10:30]
    change = np.abs(before.log_spread - after.log_spread)[usual]
    assert np.all(change < search.tolerance / 3 + 2 * error[usual])
    hidden = [Trial(each.draws[..., usual], heat, heat) for each in (trial, shrunk)]
    assert not changed(hidden[0], hidden[1])[2]
