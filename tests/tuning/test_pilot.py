"""What pilot draws say, against chains whose law is known; and how pilots run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.gradients.exact import FullBatch
from sghmc.tuning import pilot
from sghmc.tuning.budget import Budget
from sghmc.tuning.pilot import Pilots, Trial
from sghmc.tuning.region import Region


def trial_of(draws, heat=1.0, acceptance=1.0):
    full = np.ones(draws.shape[:2])
    return Trial(draws, heat * full, acceptance * full)


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
    assert trial_of(both).autocorrelation_time == pytest.approx(5, rel=0.1)
    # Neighbours that alternate: the means forget at once, the squares do not.
    swinging = autoregressive(rng, -0.8, (16, 4_000, 1))
    assert trial_of(swinging).autocorrelation_time == pytest.approx(1 / (1 - 0.64), rel=0.1)


def test_moments_and_their_errors():
    """Errors that 16 parts of 200 draws estimate: within 40 % of the true ones, 1 in 10³ not."""
    rng = np.random.default_rng(0)
    draws = 3 + 2 * rng.normal(size=(4, 800, 1))
    found = trial_of(draws).moments()
    assert found.mean[0] == pytest.approx(3, abs=5 * 2 / np.sqrt(3_200))
    assert np.exp(found.log_spread[0]) == pytest.approx(2, rel=0.06)
    assert found.mean_error[0] == pytest.approx(2 / np.sqrt(3_200), rel=0.5)
    assert found.log_spread_error[0] == pytest.approx(1 / np.sqrt(2 * 3_200), rel=0.5)


def test_the_worst_chain_sets_the_acceptance():
    acceptance = np.array([[0.9, 0.9], [0.8, np.nan]])
    trial = Trial(np.zeros((2, 2, 1)), np.ones((2, 2)), acceptance)
    assert trial.lowest_acceptance == pytest.approx(0.4)


def test_heat_and_finiteness():
    draws = np.zeros((2, 3, 1))
    assert not trial_of(draws, heat=1.4).is_hot
    assert trial_of(draws, heat=1.6).is_hot
    assert trial_of(draws).is_finite
    draws[1, 2] = np.nan
    assert not trial_of(draws).is_finite


def test_chains_that_disagree():
    draws = np.random.default_rng(0).normal(size=(4, 200, 2))
    assert trial_of(draws).r_hat < 1.02
    draws[0, :, 1] += 2
    assert trial_of(draws).r_hat > 1.1


def test_trials_are_cut_and_joined():
    first, second = (trial_of(np.full((2, 3, 1), value)) for value in (1.0, 2.0))
    joined = first.joined(second)
    np.testing.assert_array_equal(joined.draws[0, :, 0], [1, 1, 1, 2, 2, 2])
    assert joined.after(4).num_draws == 2
    np.testing.assert_array_equal(joined.last, [[2.0], [2.0]])


TARGET = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
REGION = Region(jnp.zeros(2), np.zeros(2), np.eye(2), 0.0, True)
SAMPLER = sghmc.HMC(0.6, 3)


def run(pilots, num_draws):
    return pilots.run(SAMPLER, FullBatch(), REGION, np.zeros((3, 2)), num_draws)


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
    assert "budget of 1e-09 s was spent" in pilots.fault()
    assert "several modes" in Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3)).fault()


def test_an_interrupted_pilot_interrupts_the_tuning(monkeypatch):
    """Ctrl-C makes a run return early: what is left of a pilot must not pass for a whole one."""
    whole = pilot.run

    def interrupted(*args):
        return dataclasses.replace(whole(*args), is_interrupted=True)

    monkeypatch.setattr(pilot, "run", interrupted)
    with pytest.raises(KeyboardInterrupt, match="tuning"):
        run(Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3)), 10)


def test_every_piece_has_a_key_of_its_own(monkeypatch):
    whole, keys = pilot.run, []

    def recorded(key, *args):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return whole(key, *args)

    monkeypatch.setattr(pilot, "run", recorded)
    pilots = Pilots(jax.random.key(0), TARGET, 3, 40, Budget(1e3))
    run(pilots, 100)
    run(pilots, 40)
    assert len(keys) == len(set(keys)) == 4
