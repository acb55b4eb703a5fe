"""Pilot runs: their budget, what their draws say, how they are compared, and how they run."""

import dataclasses
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich
from rich.console import Console

import sghmc
from sghmc.gradients import FullBatch
from sghmc.results.summaries import Info
from sghmc.tuning import pilots as pilots_module
from sghmc.tuning.budget import Budget, BudgetError
from sghmc.tuning.pilots import HalvingTest, PilotRun, Pilots, compare_halved
from sghmc.tuning.whitening import Whitening
from synthetic_pilots import pilot_run


def test_a_budget_that_is_spent_names_the_remedy():
    budget = Budget(1e-9)
    with (
        budget.stage("mode"),
        pytest.raises(BudgetError, match=r"1e-09 s \(mode\).*Until\(seconds=4e-09\).*SGHMC"),
    ):
        budget.check()
    Budget(60.0).check()


def test_seconds_are_kept_by_stage():
    budget = Budget(60.0)
    for name in ("mode", "pilot runs", "mode"):
        with budget.stage(name):
            pass
    assert list(budget.stages) == ["mode", "pilot runs"]
    assert all(0 <= seconds < 60 for seconds in budget.stages.values())
    assert 0 < budget.spent < 60
    assert budget.left == pytest.approx(60 - budget.spent, abs=0.1)


def test_a_terminal_is_told_what_is_done_and_for_how_long(monkeypatch):
    console = Console(force_terminal=True, width=80, record=True)
    monkeypatch.setattr(rich, "get_console", lambda: console)
    with Budget(90.0, is_shown=True) as budget, budget.stage("mode"):
        console.print(budget._line.renderable)
        budget.show("pilot runs, number 3")
        console.print(budget._line.renderable)
    shown = console.export_text()
    assert re.search(r"tuning: mode, \d s of at most 90", shown)
    assert re.search(r"tuning: pilot runs, number 3, \d s of at most 90", shown)


# Draws of pilot runs


def autoregressive(rng, correlation, shape):
    x = rng.normal(size=shape)
    for i in range(1, shape[1]):
        x[:, i] = correlation * x[:, i - 1] + np.sqrt(1 - correlation**2) * x[:, i]
    return x


def test_the_slowest_parameter_or_square_sets_the_autocorrelation_time():
    """1 + Σρ is 1/(1 − φ) of a chain, and 1/(1 − φ²) of its squares."""
    rng = np.random.default_rng(0)
    slow = autoregressive(rng, 0.8, (16, 4_000, 1))
    both = np.concatenate([rng.normal(size=slow.shape), slow], -1)
    assert pilot_run(both).autocorrelation_time == pytest.approx(5, rel=0.1)
    # Neighbours that alternate: the means forget at once, the squares do not.
    swinging = autoregressive(rng, -0.8, (16, 4_000, 1))
    assert pilot_run(swinging).autocorrelation_time == pytest.approx(1 / (1 - 0.64), rel=0.1)


def test_moments_and_their_errors():
    """Errors that 16 parts of 200 draws estimate: within 40 % of the true ones, 1 in 10³ not."""
    rng = np.random.default_rng(0)
    draws = 3 + 2 * rng.normal(size=(4, 800, 1))
    found = pilot_run(draws).moments()
    assert found.mean[0] == pytest.approx(3, abs=5 * 2 / np.sqrt(3_200))
    assert np.exp(found.log_sd[0]) == pytest.approx(2, rel=0.06)
    assert found.mean_error[0] == pytest.approx(2 / np.sqrt(3_200), rel=0.5)
    assert found.log_sd_error[0] == pytest.approx(1 / np.sqrt(2 * 3_200), rel=0.5)


def test_the_worst_chain_sets_the_acceptance():
    acceptance = np.array([[0.9, 0.9], [0.8, np.nan]])
    run = pilot_run(np.zeros((2, 2, 1)), 1.0, acceptance)
    assert run.lowest_acceptance == pytest.approx(0.4)


def test_temperature_and_finiteness():
    draws = np.zeros((2, 3, 1))
    assert not pilot_run(draws, temperature=1.4).is_hot
    assert pilot_run(draws, temperature=1.6).is_hot
    assert pilot_run(draws).is_finite
    draws[1, 2] = np.nan
    assert not pilot_run(draws).is_finite


def test_chains_that_disagree():
    draws = np.random.default_rng(0).normal(size=(4, 200, 2))
    assert pilot_run(draws).r_hat < 1.02
    draws[0, :, 1] += 2
    assert pilot_run(draws).r_hat > 1.1


def test_trials_are_cut_and_joined():
    first, second = (pilot_run(np.full((2, 3, 1), value)) for value in (1.0, 2.0))
    joined = first.joined(second)
    np.testing.assert_array_equal(joined.draws[0, :, 0], [1, 1, 1, 2, 2, 2])
    assert joined.after(4).num_draws == 2
    np.testing.assert_array_equal(joined.draws[:, -1], [[2.0], [2.0]])


TARGET = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
WHITENING = Whitening(jnp.zeros(2), np.zeros(2), np.eye(2), 0.0, True)
SAMPLER = sghmc.HMC(0.6, 3)


def run(pilots, num_draws):
    return pilots.run(SAMPLER, FullBatch(), WHITENING, np.zeros((3, 2)), num_draws)


def test_a_pilot_run_goes_on_from_its_last_draws_and_loses_what_is_not_finite(monkeypatch):
    """Draws are raveled leaf by leaf; a potential that is not finite takes its draw along."""
    asked = []

    def told(key, target, sampler, init, options):
        asked.append((init, options))
        shape = len(init["b"]), options.num_samples
        number = 100.0 * len(asked) + np.arange(shape[0] * shape[1]).reshape(shape)
        potential = np.where(number == 305, np.inf, number)
        return types.SimpleNamespace(
            positions={"a": np.stack([number, -number], -1), "b": 2 * number},
            info=Info(potential, np.isfinite(potential), acceptance=number / 10),
            num_draws=shape[1],
            is_interrupted=False,
        )

    monkeypatch.setattr(pilots_module, "run", told)
    like = {"a": np.zeros(2), "b": np.zeros(())}
    whitening = Whitening(like, np.zeros(3), np.eye(3), 0.0, True)
    pilots = Pilots(jax.random.key(0), TARGET, 2, 4, Budget(1e3))
    starts = np.arange(6.0).reshape(2, 3)
    found = pilots.run(SAMPLER, FullBatch(), whitening, starts, 10, thinning=7)
    assert [options.num_samples for _, options in asked] == [4, 4, 2]
    assert {(options.thinning, options.init_axis) for _, options in asked} == {(7, 0)}
    np.testing.assert_array_equal(asked[0][0]["a"], starts[:, :2])
    np.testing.assert_array_equal(asked[1][0]["b"], [206, 214])
    np.testing.assert_array_equal(asked[2][0]["a"], [[203, -203], [207, -207]])
    assert found.draws.shape == (2, 10, 3)
    np.testing.assert_array_equal(found.draws[1, 4], [204, -204, 408])
    np.testing.assert_array_equal(found.acceptance[0, 8:], [30, 30.1])
    assert np.isnan(found.temperature).all()
    lost = pilots.run(SAMPLER, FullBatch(), whitening, starts, 4)
    assert np.isfinite(lost.draws).all()
    three = np.arange(9.0).reshape(3, 3)
    asked.clear()
    asked += [None, None]
    lost = pilots.run(SAMPLER, FullBatch(), whitening, three, 10)
    assert len(asked) == 3
    np.testing.assert_array_equal(np.isnan(lost.draws).any(-1), lost.potential == np.inf)
    assert np.isnan(lost.draws[1, 1]).all()


@pytest.mark.slow
def test_a_long_pilot_is_made_of_pieces_that_fit_the_room():
    pilots = Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3))
    trial = run(pilots, 100)
    assert trial.draws.shape == (3, 100, 2)
    assert pilots.num_runs == 3
    assert np.all(trial.acceptance > 0)
    # Pieces go on where the last one ended, with other noise.
    assert not np.allclose(trial.draws[:, 0], trial.draws[:, 40])
    assert trial.draws.std() == pytest.approx(1, abs=0.3)


def test_pilots_are_cut_short_when_the_budget_is_spent():
    pilots = Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e-9))
    assert run(pilots, 100).num_draws == 40
    assert "budget of 1e-09 s was spent" in pilots.complaint()
    assert "several modes" in Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3)).complaint()


def test_an_interrupted_pilot_interrupts_the_tuning(monkeypatch):
    """Ctrl-C makes a run return early: what is left of a pilot must not pass for a whole one."""
    whole = pilots_module.run

    def interrupted(*args):
        return dataclasses.replace(whole(*args), is_interrupted=True)

    monkeypatch.setattr(pilots_module, "run", interrupted)
    with pytest.raises(KeyboardInterrupt, match="tuning"):
        run(Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3)), 10)


def test_every_piece_has_a_key_of_its_own(monkeypatch):
    whole, keys = pilots_module.run, []

    def recorded(key, *args):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return whole(key, *args)

    monkeypatch.setattr(pilots_module, "run", recorded)
    pilots = Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3))
    run(pilots, 100)
    run(pilots, 40)
    assert len(keys) == len(set(keys)) == 4


def test_moments_by_hand():
    """Three chains of eleven draws are cut into five parts of two each; the last draw is left."""
    draws = np.random.default_rng(0).normal(size=(3, 11, 2)) * [2.0, 0.3] + [5.0, -1.0]
    found = pilot_run(draws).moments()
    parts = [draws[c, 2 * i : 2 * i + 2] for c in range(3) for i in range(5)]
    mean = draws[:, :10].mean((0, 1))
    squares = np.array([((part - mean) ** 2).mean(0) for part in parts])
    np.testing.assert_allclose(found.mean, mean)
    means = np.array([part.mean(0) for part in parts])
    np.testing.assert_allclose(found.mean_error, means.std(0, ddof=1) / np.sqrt(15))
    np.testing.assert_allclose(found.log_sd, np.log(draws[:, :10].std((0, 1))))
    relative = squares.std(0, ddof=1) / np.sqrt(15) / squares.mean(0)
    np.testing.assert_allclose(found.log_sd_error, relative / 2)


def test_parts_are_as_many_as_sixteen_allow():
    draws = np.random.default_rng(0).normal(size=(4, 40, 1))
    parts = draws.reshape(16, 10)
    expected = parts.mean(1).std(ddof=1) / 4
    assert pilot_run(draws).moments().mean_error[0] == pytest.approx(expected)


def test_a_chain_far_above_the_others_is_not_sound():
    """With two parameters potentials may differ by 50 + 10."""
    draws = np.zeros((6, 3, 2))
    potential = np.zeros((6, 3))
    potential[:, -1] = [0.0, 59.0, 61.0, 0.0, 0.0, 0.0]
    draws[5, 1, 0] = np.nan
    found = pilot_run(draws, potential=potential).is_sound
    assert found.tolist() == [True, True, False, True, True, False]
    assert pilot_run(np.full((2, 3, 2), np.nan)).is_sound.tolist() == [False] * 2


def test_all_parts_of_a_trial_are_cut_and_joined():
    def trial(low):
        parts = [np.arange(6.0).reshape(2, 3) + low + 100 * i for i in range(4)]
        return PilotRun(parts[0][..., None], *parts[1:])

    joined = trial(0.0).joined(trial(10.0)).after(2)
    for i, part in enumerate(
        (joined.draws[..., 0], joined.temperature, joined.acceptance, joined.potential)
    ):
        np.testing.assert_array_equal(part - 100 * i, [[2, 10, 11, 12], [5, 13, 14, 15]])


# Half the step size


def comparison(change, tolerance=0.05, is_dense=True, size=2, num_draws=4_000, temperature=1.0):
    """Draws of N(0, 1) against `change` of the same draws."""
    draws = np.random.default_rng(0).normal(size=(4, num_draws, size))
    whole = pilot_run(draws, temperature)
    return compare_halved(whole, pilot_run(change(draws)), tolerance, is_dense=is_dense)


@pytest.mark.parametrize(
    ("change", "is_passed"),
    [
        (lambda draws: draws, True),
        (lambda draws: draws + np.array([0.0, 0.02]), True),
        (lambda draws: draws + np.array([0.0, 0.2]), False),
        (lambda draws: draws * [1.0, 1.1], False),
        (lambda draws: draws * 0.95, False),
        # On average nothing, so that only a test of each parameter objects.
        (lambda draws: draws * [1.1, 1 / 1.1], False),
    ],
    ids=["nothing", "mean a little", "mean", "one sd", "both sds", "sds both ways"],
)
def test_a_mean_or_standard_deviation_that_changes_is_seen(change, is_passed):
    assert comparison(change).is_passed == is_passed


def test_the_largest_change_is_that_of_a_log_standard_deviation():
    found = comparison(lambda draws: draws * [1.02, 1.1])
    assert found.change == pytest.approx(np.log(1.1), rel=1e-6)
    runs = (pilot_run(np.random.default_rng(0).normal(size=(4, 4_000, 2))).moments(),) * 2
    assert found.noise == pytest.approx(np.hypot(*(run.log_sd_error[1] for run in runs)))


def test_a_lost_chain_is_no_comparison():
    def lose(draws):
        return np.where(np.arange(4_000)[:, None] > 3_000, np.nan, draws)

    assert comparison(lose) == HalvingTest(np.inf, 0.0, False)


@pytest.mark.parametrize("excess", [-0.2, 0.05, 0.2])
def test_momenta_of_the_larger_step_must_have_their_temperature(excess):
    temperature = 1 + excess + 0.1 * np.random.default_rng(1).normal(size=(4, 4_000))
    assert comparison(lambda draws: draws, temperature=temperature).is_passed == (excess == 0.05)


def test_a_change_that_all_share_is_seen_though_each_is_within_its_error():
    """5 % of 20 parameters, each known to 2.5 %: 2 errors of one, many of their mean."""
    draws = np.random.default_rng(0).normal(size=(4, 400, 40))
    before, after = (pilot_run(scale * draws).moments() for scale in (1.0, 0.95))
    error = np.hypot(before.log_sd_error, after.log_sd_error)
    usual = np.argsort(error)[10:30]
    change = np.abs(before.log_sd - after.log_sd)[usual]
    assert np.all(change < 0.05 / 3 + 2 * error[usual])
    for is_dense in (True, False):
        whole, half = (pilot_run(scale * draws[..., usual]) for scale in (1.0, 0.95))
        assert not compare_halved(whole, half, 0.05, is_dense=is_dense).is_passed


def test_of_many_parameters_only_the_average_counts():
    for is_dense in (True, False):
        found = comparison(lambda draws: draws * [1.1, 1 / 1.1], is_dense=is_dense)
        assert found.is_passed != is_dense


@pytest.mark.parametrize(("share", "is_passed"), [(0.99, True), (1.01, False)])
def test_a_third_of_the_tolerance_and_two_errors_are_allowed(share, is_passed):
    """Means may move by the whole tolerance and two errors."""
    draws = np.repeat(np.random.default_rng(0).normal(size=(4, 400, 1)), 2, axis=2)
    whole, moments = pilot_run(draws), pilot_run(draws).moments()
    factor = np.exp(share * (0.1 / 3 + 2 * np.sqrt(2) * moments.log_sd_error[0]))
    # The other parameter changes the other way, so that their average does not change.
    scaled = pilot_run(draws * [factor, 1 / factor])
    assert compare_halved(whole, scaled, 0.1, is_dense=True).is_passed == is_passed
    shift = share * (0.1 * np.exp(moments.log_sd[0]) + 2 * np.sqrt(2) * moments.mean_error[0])
    moved = pilot_run(draws + np.array([shift, 0.0]))
    assert compare_halved(whole, moved, 0.1, is_dense=True).is_passed == is_passed


def test_squares_are_those_of_what_is_away_from_the_mean():
    rng = np.random.default_rng(0)
    draws = autoregressive(rng, -0.6, (4, 500, 2))
    far = pilot_run(draws + np.array([30.0, -5.0]))
    assert far.autocorrelation_time == pytest.approx(pilot_run(draws).autocorrelation_time)


def test_pilots_show_no_bar_of_their_own(monkeypatch):
    def told(key, target, sampler, init, options):
        raise LookupError(options)

    monkeypatch.setattr(pilots_module, "run", told)
    with pytest.raises(LookupError) as seen:
        run(Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3)), 10)
    options = seen.value.args[0]
    assert (options.progress, options.throw, options.init_axis) == (False, False, 0)
    assert (options.num_chains, options.num_samples, options.thinning) == (3, 10, 1)
