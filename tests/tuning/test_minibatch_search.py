"""The search for SGHMC's settings, by pilots whose law is known."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.gradients import FullBatch
from sghmc.posterior.host_potential import HostPotential
from sghmc.tuning import minibatch_search
from sghmc.tuning.choices import FrictionSettings, GradientCandidates, GradientChoice
from sghmc.tuning.minibatch_search import MinibatchSearch
from sghmc.tuning.whitening import Whitening
from synthetic_pilots import SyntheticPilots, pilot_run

GAUSSIAN = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))


def whitening(is_local=False, factor=None):
    factor = np.eye(2) if factor is None else factor
    return Whitening(np.zeros(2, np.float32), np.zeros(2), factor, 0.0, True, is_local)


def search_of(pilots, start=None, target=GAUSSIAN, tolerance=0.05):
    candidates = GradientCandidates(target, 100, tolerance, np.random.default_rng(0))
    potential = HostPotential(target, jnp.zeros(2))
    start = whitening() if start is None else start
    return MinibatchSearch(pilots, potential, start, np.zeros((pilots.num_chains, 2)), candidates)


def report_of(pilots, **options):
    return search_of(pilots, **options).search().report


def standard(**options):
    return SyntheticPilots(np.zeros(2), np.eye(2), **options)


def test_a_step_size_that_changes_nothing_stands():
    pilots = standard()
    found = report_of(pilots)
    assert found.complaints == ()
    assert found.step_size == pytest.approx(0.3)
    assert found.halving_change < 0.05
    # Tried with half of it, and as long in time: twice the draws.
    assert pilots.steps[-1] == pytest.approx(0.15)


def test_a_step_size_that_changes_a_spread_is_halved():
    """Draws are too wide by ε²: 9 % at 0.3 must not stand, 2 % at 0.15 may."""
    found = report_of(standard(spread=lambda step_size: 1 + step_size**2))
    assert found.complaints == ()
    assert found.step_size == pytest.approx(0.15)


def test_a_bias_that_no_step_size_ends_is_a_fault():
    """A spread that goes with the step size, whatever that is: 14 % a halving."""
    found = report_of(standard(spread=lambda step_size: step_size**0.2))
    assert any("halving" in complaint for complaint in found.complaints)


@pytest.mark.parametrize("is_cured", [True, False])
def test_momenta_that_are_too_hot_halve_the_step_size(monkeypatch, is_cured):
    """Draws agree at all step sizes here: only the temperature, planted in the pilots, objects."""
    pilots = standard()
    measure, seen = MinibatchSearch._measure, []

    def hot(self, settings):
        found = measure(self, settings)
        seen.append(settings.step_size)
        is_hot = settings.step_size == seen[0] or not is_cured
        return pilot_run(found.draws, found.temperature + 0.5 * is_hot)

    monkeypatch.setattr(MinibatchSearch, "_measure", hot)
    monkeypatch.setattr(minibatch_search, "_MAX_HALVINGS", 2)
    found = report_of(pilots)
    assert (found.complaints == ()) == is_cured
    assert found.step_size == seen[0] / (2 if is_cured else 4)
    is_told = any("hotter than they should be by 5" in each for each in found.complaints)
    assert is_told != is_cured


def test_pilots_that_boil_teach_the_region_nothing(monkeypatch):
    """Steps beyond 0.1 are planted to be hot, with draws far out though finite."""
    pilots = standard(spread=lambda step_size: 1e3 if step_size > 0.1 else 1.0)
    run = pilots.run

    def boiling(sampler, *args):
        found = run(sampler, *args)
        return pilot_run(found.draws, found.temperature + 5 * (float(sampler.step_size) > 0.1))

    monkeypatch.setattr(pilots, "run", boiling)
    search = search_of(pilots)
    found = search.search().report
    assert found.complaints == ()
    assert found.step_size <= 0.1
    factor: Any = search.whitening.factor
    np.testing.assert_allclose(factor @ factor.T, np.eye(2), atol=0.5)


def test_the_region_becomes_that_of_the_draws():
    covariance = np.array([[4.0, 1.5], [1.5, 1.0]])
    search = search_of(SyntheticPilots([3.0, -1.0], covariance))
    search.search()
    factor: Any = search.whitening.factor
    np.testing.assert_allclose(factor @ factor.T, covariance, rtol=0.3)
    np.testing.assert_allclose(search.whitening.center, [3, -1], atol=0.5)


def test_draws_that_never_fit_are_a_fault(monkeypatch):
    monkeypatch.setattr(minibatch_search, "_MAX_ROUNDS", 3)
    pilots = standard()
    count = iter(range(100))
    run = pilots.run

    def growing(*args):
        return pilot_run(run(*args).draws * 10 ** (1 + next(count)))

    monkeypatch.setattr(pilots, "run", growing)
    search = search_of(pilots)
    assert search._refine() is None
    assert "did not settle" in search.unsettled[0]
    assert len(pilots.steps) == 3


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_thinning_makes_draws_independent(memory):
    """A pilot's draws have 1 + Σρ = 1/(1 − 0.9) of each other: ten of them make one."""
    found = search_of(standard(memory=memory)).search()
    base = FrictionSettings.for_noise(0.0, 0.05, 0.3).thinning
    factor = 1 if memory == 0 else 10
    assert base * factor * 0.6 <= found.thinning <= base * factor * 1.5
    assert found.thinning > 1


def test_where_the_potential_is_a_gaussian_no_half_step_is_tried():
    pilots = standard()
    found = report_of(pilots, start=whitening(is_local=True))
    assert len(pilots.steps) == 1
    assert pilots.lengths == [800 // 4 + 20]  # a short look, and burn-in
    assert "a Gaussian's up to" in found.notes[0]
    assert np.isnan(found.halving_change)


def test_a_potential_that_is_no_gaussian_is_not_taken_for_one():
    """U = θ²/2 + θ⁴/2, far from quadratic at the draws that the pilots show."""
    target = sghmc.Potential(lambda theta: jnp.sum(0.5 * theta**2 + 0.5 * theta**4))
    pilots = standard()
    found = report_of(pilots, start=whitening(is_local=True), target=target)
    assert found.notes == ()
    assert pilots.lengths[0] < pilots.lengths[1]  # a short look was not enough
    assert min(pilots.steps) == pytest.approx(0.15)


def test_hot_momenta_forbid_to_leave_the_half_step_out():
    pilots = standard(temperature=1.3)
    search_of(pilots, whitening(is_local=True)).search()
    assert len(pilots.steps) > 1


def test_gradient_noise_beyond_the_tolerance_is_a_fault():
    search = search_of(standard())
    settings = FrictionSettings.for_noise(1e4, 0.05, 0.3)
    search.choice = GradientChoice(FullBatch(), settings, {"minibatch": 1e4})
    assert search.is_too_noisy
    found = minibatch_search._tuned(search, search._verify()).report
    percent = 100 * settings.law.standard_deviation_error
    assert found.complaints == (
        f"gradient noise alone makes standard deviations {percent:.0f} % too wide: batches of "
        f"about {settings.rows_needed(100, 0.05):,} would do",
    )
    assert found.predicted_error == settings.law.standard_deviation_error > 0.05
    assert found.gradient_noise == {"minibatch": 1e4}


def test_chains_that_are_lost_go_back_to_sound_ones():
    search = search_of(standard())
    draws = np.zeros((4, 3, 2)) + np.arange(4.0)[:, None, None]
    draws[1, 2] = draws[3, 0] = np.nan
    np.testing.assert_array_equal(search._sound_ends(pilot_run(draws))[:, 0], [0.0, 2.0, 0.0, 2.0])
    nobody = pilot_run(np.full((4, 3, 2), np.nan))
    np.testing.assert_array_equal(search._sound_ends(nobody), np.zeros((4, 2)))


def test_a_spent_budget_ends_the_search_with_what_there_is(monkeypatch):
    pilots = standard()
    run = pilots.run

    def last(*args):
        found = run(*args)
        pilots.budget.seconds = 0.0
        return found

    monkeypatch.setattr(pilots, "run", last)
    found = report_of(pilots)
    assert len(pilots.steps) <= 2
    assert "budget ended before half the step size" in found.complaints[0]


def test_an_error_that_just_keeps_within_the_tolerance_is_not_too_much():
    search = search_of(standard())
    settings = FrictionSettings.for_noise(1e4, 0.05, 0.3)
    search.choice = GradientChoice(FullBatch(), settings, {})
    search.tolerance = settings.law.standard_deviation_error
    assert not search.is_too_noisy


def test_what_is_too_noisy_anyway_is_run_once():
    pilots = standard()
    search = search_of(pilots)
    settings = FrictionSettings.for_noise(1e4, 0.05, 0.3)
    search.choice = GradientChoice(FullBatch(), settings, {})
    search._verify()
    assert pilots.steps == [settings.step_size]
    assert search.complaints == []
