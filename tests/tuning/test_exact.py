"""The warm-up of HMC, by pilots whose law is known."""

import math

import numpy as np
import pytest

from sghmc.tuning import exact
from sghmc.tuning.exact import Exact, Trajectories
from sghmc.tuning.pilot import Trial
from sghmc.tuning.region import Region
from synthetic_pilots import SyntheticPilots

MEAN = np.array([3.0, -1.0])
COVARIANCE = np.array([[4.0, 1.5], [1.5, 1.0]])


def region(center=(0.0, 0.0), factor=None, is_gaussian=True):
    factor = np.eye(2) if factor is None else factor
    return Region(np.zeros(2, np.float32), np.array(center), factor, 0.0, is_gaussian)


def search(pilots, start=None, num_draws=4_000, tolerance=0.05):
    start = region() if start is None else start
    return Exact(pilots, start, np.zeros((4, 2)), tolerance, num_draws).search()


def test_trajectories_have_the_best_length():
    for step_size in (0.01, 0.1, 0.3, 0.64, 0.9, 5.0):
        settings = Trajectories(step_size)
        assert settings.step_size <= step_size
        assert settings.num_steps * settings.step_size == pytest.approx(exact.LENGTH, rel=1e-6)
    assert Trajectories(5.0).num_steps == 2
    assert Trajectories(1e-6).num_steps == 1_024


def test_the_length_makes_means_swing_and_squares_forget():
    """On a Gaussian of spread 1 a leapfrog trajectory turns by m·arccos(1 − ε²/2)."""
    settings = Trajectories(0.3)
    turn = settings.num_steps * math.acos(1 - settings.step_size**2 / 2)
    assert -0.45 < math.cos(turn) < -0.2
    assert math.cos(turn) ** 2 < 0.2


@pytest.mark.parametrize(("acceptance", "grows"), [(0.99, True), (0.5, False), (0.0, False)])
def test_steps_follow_the_acceptance(acceptance, grows):
    before = Trajectories(0.1)
    after = before.after(acceptance)
    assert (after.step_size > before.step_size) == grows
    assert 0.29 * before.step_size < after.step_size < 1.51 * before.step_size


def test_steps_stay_where_the_acceptance_is_best():
    assert Trajectories(0.1).after(0.85).step_size == pytest.approx(0.1, rel=0.05)


def test_a_region_that_fits_takes_one_pilot():
    pilots = SyntheticPilots(MEAN, COVARIANCE)
    start = region(MEAN, np.linalg.cholesky(COVARIANCE))
    found = search(pilots, start)
    assert pilots.lengths == [100]
    assert found.faults == []
    assert found.thinning == 1
    assert found.region is start
    assert found.acceptance == pytest.approx(0.85)


def test_the_region_becomes_that_of_the_draws():
    found = search(SyntheticPilots(MEAN, COVARIANCE), region((30.0, 5.0), 0.1 * np.eye(2)))
    factor = found.region.factor
    np.testing.assert_allclose(factor @ factor.T, COVARIANCE, atol=0.8)
    np.testing.assert_allclose(found.region.center, MEAN, atol=0.5)
    assert found.faults == []


def test_the_step_size_falls_until_trajectories_are_accepted():
    def acceptance(step_size):
        return 0.85 if step_size < 0.1 else 0.1

    found = search(SyntheticPilots(np.zeros(2), np.eye(2), acceptance=acceptance))
    assert found.step_size < 0.1
    assert found.faults == []


def test_trajectories_of_many_small_steps_grow_where_all_are_accepted():
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), acceptance=lambda step_size: 0.99)
    found = search(pilots, region(is_gaussian=False))
    assert found.num_steps <= 3
    assert pilots.steps[0] < 0.3


def test_draws_that_remember_are_thinned():
    """Squares have 1 + Σρ = 1/(1 − φ²), means 1/(1 − φ): 9 draws make an independent one."""
    quick = search(SyntheticPilots(np.zeros(2), np.eye(2)))
    assert quick.thinning == 1
    slow = search(SyntheticPilots(np.zeros(2), np.eye(2), memory=0.8, num_chains=16))
    assert slow.autocorrelation_time == pytest.approx(5, rel=0.5)
    assert slow.thinning >= 2
    # Few draws are wanted: then each should count.
    few = search(SyntheticPilots(np.zeros(2), np.eye(2), memory=0.8, num_chains=16), num_draws=100)
    assert few.thinning >= 5


def test_chains_that_never_agree_are_a_fault(monkeypatch):
    monkeypatch.setattr(exact, "_NUM_ROUNDS", 3)
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), memory=0.999)
    assert "did not settle" in search(pilots).faults[0]


def test_an_acceptance_that_stays_low_is_a_fault(monkeypatch):
    monkeypatch.setattr(exact, "_NUM_ROUNDS", 3)
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), acceptance=lambda step_size: 0.3)
    assert "did not settle" in search(pilots).faults[0]


def test_a_spent_budget_ends_the_search_with_what_there_is(monkeypatch):
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), acceptance=lambda step_size: 0.3)
    run = pilots.run

    def last(*args):
        trial = run(*args)
        pilots.budget.seconds = 0.0
        return trial

    monkeypatch.setattr(pilots, "run", last)
    found = search(pilots)
    assert len(pilots.steps) == 1
    assert "budget" in found.faults[0]


def test_chains_that_sit_apart_are_not_settled_though_all_together_fit():
    """Two at +0.9 and two at −0.9, each of spread 0.44: together of mean 0 and spread 1."""
    search = Exact(SyntheticPilots(np.zeros(2), np.eye(2)), region(), np.zeros((4, 2)), 0.05, 4_000)
    z = np.random.default_rng(0).normal(size=(4, 200, 2))
    full = np.ones((4, 200))
    together = Trial(z, full, 0.85 * full)
    parted = z.copy()
    parted[..., 0] = 0.44 * z[..., 0] + np.array([[0.9], [0.9], [-0.9], [-0.9]])
    apart = Trial(parted, full, 0.85 * full)
    for trial, is_settled in ((together, True), (apart, False)):
        seen = search._seen(trial)
        assert seen.fits()
        assert search._is_settled(trial, seen) == is_settled
