"""Limits of a run: what they judge, when, and where the run ends."""

import math
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results.summaries import SummaryTable
from sghmc.results.until import Until, next_check

GAUSSIAN = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)


def walk(coefficient, num_chains=4, num_draws=20_000, scale=1.0) -> Any:
    """Draws whose autocorrelations are powers of a coefficient, standard deviation `scale`."""
    noise = np.random.default_rng(0).normal(size=(num_draws, num_chains))
    draws = np.empty_like(noise)
    draws[0] = noise[0]
    for i in range(1, num_draws):
        draws[i] = coefficient * draws[i - 1] + math.sqrt(1 - coefficient**2) * noise[i]
    return types.SimpleNamespace(variables={"x": scale * draws.T[..., None]})


def end(until, samples):
    """The number of draws at which a run with these draws ends, as the driver has it."""
    check, checks = until.first_check(4), []
    while True:
        checks.append(check)
        share = until.share(samples, check)
        if share >= 1:
            return check, checks
        check = next_check(check, share)


@pytest.mark.parametrize("coefficient", [0.0, 0.9, 0.98])
def test_a_run_ends_within_a_fifth_of_its_target(coefficient):
    samples = walk(coefficient)
    count, checks = end(Until(ess=400), samples)
    found = SummaryTable.of({"x": samples.variables["x"][:, :count]}).columns
    assert 400 <= found["ess_bulk"][0] <= 480
    assert len(checks) < 20
    # 4 chains; (1 + ρ)/(1 − ρ) draws for an independent one
    assert count == pytest.approx(100 * (1 + coefficient) / (1 - coefficient), rel=0.35)


def test_a_monte_carlo_error_is_in_the_units_of_its_quantity():
    samples = walk(0.5, scale=10.0)
    count, _ = end(Until(mcse=0.4), samples)
    found = SummaryTable.of({"x": samples.variables["x"][:, :count]}).columns
    assert 0.4 / math.sqrt(1.2) <= found["mcse_mean"][0] <= 0.4
    # whichever comes first
    assert end(Until(mcse=0.4, ess=100), samples)[0] < count
    assert end(Until(mcse=0.4, ess=1e5), samples)[0] == count


def test_the_quantity_that_mixes_worst_decides():
    fast, slow = walk(0.0).variables["x"], walk(0.9).variables["x"]
    both: Any = types.SimpleNamespace(variables={"x": np.concatenate([fast, slow], axis=2)})
    assert end(Until(ess=400), both)[0] > 1000
    still: Any = types.SimpleNamespace(variables={"x": np.ones((4, 100, 1)), "y": fast[:, :1000]})
    assert Until(mcse=0.04).share(still, 100) == pytest.approx(
        (0.04 / SummaryTable.of({"y": fast[:, :100]}).columns["mcse_mean"][0]) ** 2
    )


def test_a_chain_that_hardly_moved_is_not_precise():
    steps = np.random.default_rng(1).normal(size=(4, 400, 1))
    stuck: Any = types.SimpleNamespace(variables={"x": 1e-6 * np.cumsum(steps, axis=1)})
    assert Until(mcse=0.1).share(stuck, 50) < 0.2


def test_wrong_limits_are_refused():
    cases: Any = ({}, {"ess": 0}, {"seconds": -1.0}, {"mcse": "small"}, {"gradients": math.nan})
    for given in cases:
        with pytest.raises(ValueError, match=r"Until needs a limit|must be a number above 0"):
            Until(**given)
    with pytest.raises(TypeError, match=r"until must be sghmc.Until\(ess=400\)"):
        run(60)
    with pytest.raises(ValueError, match="keep stores nothing"):
        run(Until(ess=5), keep=lambda theta: ())
    with pytest.raises(ValueError, match="allows 3 draws at 4 gradients each"):
        run(Until(gradients=15), num_burnin=5)


def run(until: Any, **options):
    return sghmc.sample(
        jax.random.key(1), GAUSSIAN, sghmc.SGHMC(0.5, friction=1.0), jnp.zeros(1),
        **({"num_chains": 4, "progress": False, "until": until} | options),
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_ends_where_its_draws_say_and_not_where_the_clock_does(monkeypatch, tmp_path):
    samples = run(Until(ess=100, seconds=1e6), num_burnin=7)
    whole = run(None, num_burnin=7, num_samples=samples.num_draws)
    np.testing.assert_array_equal(samples.positions, whole.positions)
    assert 100 <= samples.summary().ess_bulk.min() <= 120
    monkeypatch.setattr("sghmc.engine.driver._BLOCK_SECONDS", 1e-9)  # a draw at a time
    saved = sghmc.Checkpoint(tmp_path / "run", every=5)
    run(None, num_burnin=7, num_samples=20, checkpoint=saved)
    for _ in range(2):  # resumed, and when it has ended
        again = run(Until(ess=100), num_burnin=7, checkpoint=saved)
        np.testing.assert_array_equal(again.positions, samples.positions)


def test_gradients_are_those_of_all_chains_with_burnin():
    samples = run(Until(gradients=4 * 3 * 20 + 1), num_burnin=5, thinning=3)
    assert (samples.num_draws, samples.num_steps) == (15, 60)
    hmc = sghmc.sample(
        jax.random.key(1), GAUSSIAN, sghmc.HMC(0.5, num_steps=4), jnp.zeros(1),
        num_chains=2, progress=False, until=Until(gradients=100),
    )  # fmt: skip
    assert hmc.num_draws == 10  # five gradients a trajectory


def test_a_clock_ends_a_run_and_room_does():
    assert run(Until(seconds=1e6), num_samples=10).num_draws == 10
    began = time.perf_counter()
    samples = run(Until(seconds=1.0))
    assert 1.0 <= time.perf_counter() - began < 30
    assert samples.num_draws >= 1  # at the least, where compiling took longer


def test_a_run_without_room_says_so(monkeypatch):
    monkeypatch.setattr("sghmc.engine.checks._MAX_DRAWS", 50)
    with pytest.warns(UserWarning, match="ended after 50 draws of each chain, all there is room"):
        assert run(Until(ess=1e6)).num_draws == 50
