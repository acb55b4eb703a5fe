"""The warm-up of HMC, by pilots whose law is known."""

import math
from typing import Any

import numpy as np
import pytest

import sghmc
from sghmc.tuning import exact_search
from sghmc.tuning.exact_search import ExactSearch, Trajectories
from sghmc.tuning.whitening import Whitening
from synthetic_pilots import SyntheticPilots, pilot_run

MEAN = np.array([3.0, -1.0])
COVARIANCE = np.array([[4.0, 1.5], [1.5, 1.0]])


def whitening(center=(0.0, 0.0), factor=None, is_gaussian=True):
    factor = np.eye(2) if factor is None else factor
    return Whitening(np.zeros(2, np.float32), np.array(center), factor, 0.0, is_gaussian)


def warm_up(pilots, start=None, num_draws=4_000, tolerance=0.05):
    """A search, and what it has tuned."""
    start = whitening() if start is None else start
    search = ExactSearch(pilots, start, np.zeros((4, 2)), tolerance, num_draws)
    return search, search.search()


def report_of(pilots, start=None):
    return warm_up(pilots, start)[1].report


def test_trajectories_have_the_best_length():
    for step_size in (0.01, 0.1, 0.3, 0.64, 0.9, 5.0):
        settings = Trajectories(step_size)
        assert settings.step_size <= step_size
        assert settings.num_steps * settings.step_size == pytest.approx(
            exact_search.TRAJECTORY_LENGTH, rel=1e-6
        )
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


def test_a_whitening_that_fits_takes_one_pilot():
    pilots = SyntheticPilots(MEAN, COVARIANCE)
    start = whitening(MEAN, np.linalg.cholesky(COVARIANCE))
    search, found = warm_up(pilots, start)
    assert pilots.lengths == [100]
    assert found.report.complaints == ()
    assert found.thinning == 1
    assert search.whitening is start
    assert found.report.acceptance == pytest.approx(0.85)


def test_the_whitening_becomes_that_of_the_draws():
    pilots = SyntheticPilots(MEAN, COVARIANCE)
    search, found = warm_up(pilots, whitening((30.0, 5.0), 0.1 * np.eye(2)))
    factor: Any = search.whitening.factor
    np.testing.assert_allclose(factor @ factor.T, COVARIANCE, atol=0.8)
    np.testing.assert_allclose(search.whitening.center, MEAN, atol=0.5)
    assert found.report.complaints == ()
    np.testing.assert_array_equal(found.sampler.factor, factor)
    assert pilots.lengths == [100, 50], "half as long while the draws are far off"


def test_the_step_size_falls_until_trajectories_are_accepted():
    def acceptance(step_size):
        return 0.85 if step_size < 0.1 else 0.1

    found = report_of(SyntheticPilots(np.zeros(2), np.eye(2), acceptance=acceptance))
    assert found.step_size < 0.1
    assert found.complaints == ()


def test_trajectories_of_many_small_steps_grow_where_all_are_accepted():
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), acceptance=lambda step_size: 0.99)
    found = report_of(pilots, whitening(is_gaussian=False))
    assert found.num_steps <= 3
    assert pilots.steps[0] < 0.3
    assert pilots.lengths[0] == 50, "half as many draws as from a peak"


def test_draws_that_remember_are_thinned():
    """Squares have 1 + Σρ = 1/(1 − φ²), means 1/(1 − φ): 9 draws make an independent one."""
    _, quick = warm_up(SyntheticPilots(np.zeros(2), np.eye(2)))
    assert quick.thinning == 1
    _, slow = warm_up(SyntheticPilots(np.zeros(2), np.eye(2), memory=0.8, num_chains=16))
    assert slow.report.autocorrelation_time == pytest.approx(5, rel=0.5)
    assert slow.thinning >= 2
    # Few draws are wanted: then each should count.
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), memory=0.8, num_chains=16)
    assert warm_up(pilots, num_draws=100)[1].thinning >= 5


def test_chains_that_never_agree_are_a_fault(monkeypatch):
    monkeypatch.setattr(exact_search, "_MAX_ROUNDS", 3)
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), memory=0.999)
    assert "did not settle" in report_of(pilots).unsettled[0]


def test_an_acceptance_that_stays_low_is_a_complaint(monkeypatch):
    monkeypatch.setattr(exact_search, "_MAX_ROUNDS", 3)
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), acceptance=lambda step_size: 0.3)
    assert "did not settle" in report_of(pilots).unsettled[0]


def test_a_spent_budget_ends_the_search_with_what_there_is(monkeypatch):
    pilots = SyntheticPilots(np.zeros(2), np.eye(2), acceptance=lambda step_size: 0.3)
    run = pilots.run

    def last(*args):
        trial = run(*args)
        pilots.budget.seconds = 0.0
        return trial

    monkeypatch.setattr(pilots, "run", last)
    found = report_of(pilots)
    assert len(pilots.steps) == 1
    assert "budget" in found.unsettled[0]


def test_chains_that_sit_apart_are_not_settled_though_all_together_fit():
    """Two at +0.9 and two at −0.9, each of spread 0.44: together of mean 0 and spread 1."""
    search = ExactSearch(
        SyntheticPilots(np.zeros(2), np.eye(2)), whitening(), np.zeros((4, 2)), 0.05, 4_000
    )
    z = np.random.default_rng(0).normal(size=(4, 200, 2))
    together = pilot_run(z, acceptance=0.85)
    parted = z.copy()
    parted[..., 0] = 0.44 * z[..., 0] + np.array([[0.9], [0.9], [-0.9], [-0.9]])
    apart = pilot_run(parted, acceptance=0.85)
    for run, is_settled in ((together, True), (apart, False)):
        fit = search.whitening.fit(run.draws)
        assert fit.is_good
        assert search._is_settled(run, fit) == is_settled


def test_first_steps_fall_with_the_fourth_root_of_the_number_of_parameters():
    def first(size, is_gaussian):
        return Trajectories.first(Whitening(None, np.zeros(size), np.eye(size), 0.0, is_gaussian))

    assert first(3, True).step_size == pytest.approx(1.9 / 3)  # 0.64 at the most
    assert first(256, True).step_size == pytest.approx(1.9 / 7)  # 1.2/4 = 0.3
    assert first(256, False).step_size == pytest.approx(1.9 / 19)  # a third of it


@pytest.mark.parametrize("acceptance", [0.6, 0.95])
def test_the_energy_error_goes_with_the_square_of_the_step(acceptance):
    inverse = exact_search.NormalDist().inv_cdf
    ratio = math.sqrt(inverse(0.85 / 2) / inverse(acceptance / 2))
    expected = Trajectories(0.01 * min(ratio, 1.5))
    assert Trajectories(0.01).after(acceptance).step_size == pytest.approx(expected.step_size)
    assert ratio != pytest.approx(1, abs=0.3)


def test_steps_change_by_bounded_factors():
    assert Trajectories(0.1).after(0.0).step_size == Trajectories(0.03).step_size
    assert Trajectories(0.1).after(1.0).step_size == Trajectories(0.15).step_size


def test_the_sampler_has_the_settings():
    found = Trajectories(0.3).sampler
    assert isinstance(found, sghmc.HMC)
    assert (found.step_size, found.num_steps) == (pytest.approx(1.9 / 7), 7)
    assert found.jitter == 0.25
    assert found.most_steps == 1_024


def search_of(size=2, num_chains=4, tolerance=0.05, num_draws=4_000) -> Any:
    pilots = SyntheticPilots(np.zeros(size), np.eye(size), num_chains=num_chains)
    start = Whitening(np.zeros(size, np.float32), np.zeros(size), np.eye(size), 0.0, True)
    return ExactSearch(pilots, start, np.zeros((num_chains, size)), tolerance, num_draws)


def test_thinning_by_hand():
    """(3/0.05)²/2 = 1,800 independent draws of 4,000: 0.45 of what makes draws independent."""
    assert search_of()._thinning(20.0) == 9
    assert search_of(num_draws=1_000)._thinning(20.0) == 20  # no more than makes independent ones
    assert search_of(tolerance=0.1)._thinning(100.0) == 11  # 450/4,000 of 100
    errors = math.sqrt(2 * math.log(200)) + 1
    assert search_of(200)._thinning(50.0) == round(50 * (errors / 0.05) ** 2 / 8_000)
    assert search_of()._thinning(0.3) == 1


def test_thinning_stops_where_rows_are_too_many():
    search = search_of(num_draws=1_000)
    search.pilots.target = sghmc.Posterior(
        lambda theta, x: -0.5 * x * theta[0], lambda theta: 0.0, np.zeros(80_000, np.float32)
    )
    assert search.trajectories.num_steps == 3
    assert search._thinning(20.0) == 3  # 10⁹ over (3 + 1) · 80,000 · 1,000 rows


def test_pilots_share_their_draws_between_chains():
    assert search_of(num_chains=7)._draws_per_chain(1.0) == 58
    assert search_of(num_chains=7)._draws_per_chain(0.5) == 29
    assert search_of(num_chains=100)._draws_per_chain(1.0) == 25


def test_the_first_quarter_of_a_pilot_is_not_looked_at():
    search, run = search_of(), search_of().pilots.run

    def jumping(*args):
        found = run(*args)
        found.draws[:, :25] += 100
        return found

    search.pilots.run = jumping
    assert search.search().report.complaints == ()
    np.testing.assert_array_equal(search.whitening.factor, np.eye(2))


@pytest.mark.parametrize(
    ("acceptance", "step_size", "is_settled"),
    [
        (0.74, 0.64, False),
        (0.76, 0.64, True),
        (0.96, 0.64, True),
        (0.96, 0.5, False),
        (0.94, 0.5, True),
    ],
)
def test_an_acceptance_is_settled_between_its_bounds(acceptance, step_size, is_settled):
    search = search_of()
    search.trajectories = Trajectories(step_size)
    run = pilot_run(np.random.default_rng(0).normal(size=(4, 200, 2)), acceptance=acceptance)
    assert search._is_settled(run, search.whitening.fit(run.draws)) == is_settled


def test_the_report_has_the_numbers_of_the_last_pilot_run():
    search = search_of()
    acceptance = np.full((4, 200), 0.8)
    acceptance[0, :100] = np.nan  # a lost trajectory counts as 0
    z = np.random.default_rng(0).normal(size=(4, 200, 2))
    run = pilot_run(z, 1.1, acceptance)
    tuned = search._tuned(run, ("a complaint",))
    report = tuned.report
    assert (report.engine, report.unsettled, report.num_steps) == ("exact", ("a complaint",), 3)
    assert (report.num_parameters, report.distance, report.estimator) == (2, 0.0, "FullBatch")
    assert (report.tolerance, report.predicted_error) == (0.05, 0.0)
    assert report.step_size == pytest.approx(1.9 / 3)
    assert report.acceptance == pytest.approx(0.7)
    assert report.kinetic_temperature == pytest.approx(1.1)
    assert report.autocorrelation_time == run.autocorrelation_time
    assert tuned.thinning == search._thinning(2 * run.autocorrelation_time - 1)
    assert tuned.sampler.sampler == search.trajectories.sampler
    assert isinstance(tuned.gradient, sghmc.FullBatch)
    np.testing.assert_array_equal(tuned.init, z[:, -1].astype(np.float32))


def test_pilot_runs_that_do_not_fit_become_twice_as_long(monkeypatch):
    """Up to four times the first one; each run is 1.8 times as wide as the one before."""
    monkeypatch.setattr(exact_search, "_MAX_ROUNDS", 4)
    search, count = search_of(), iter(range(4))
    run = search.pilots.run

    def growing(*args):
        return pilot_run(run(*args).draws * 1.8 ** (1 + next(count)), acceptance=0.85)

    monkeypatch.setattr(search.pilots, "run", growing)
    assert "did not settle" in search.search().report.unsettled[0]
    assert search.pilots.lengths == [100, 200, 400, 400]
    factor: Any = search.whitening.factor
    np.testing.assert_allclose(factor @ factor.T, 1.8**8 * np.eye(2), atol=0.2 * 1.8**8)


def test_coordinates_are_not_taken_from_chains_that_hardly_move(monkeypatch):
    monkeypatch.setattr(exact_search, "_MAX_ROUNDS", 2)
    pilots = SyntheticPilots(MEAN, COVARIANCE, acceptance=lambda step_size: 0.2)
    search, _ = warm_up(pilots)
    np.testing.assert_array_equal(search.whitening.factor, np.eye(2))
    assert pilots.steps[1] == Trajectories(1.9 / 3).after(0.2).step_size
    assert len(pilots.steps) == 2
