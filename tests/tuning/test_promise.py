"""What draws know of standard deviations, held against laws that are known."""

import dataclasses
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import sampling
from sghmc.results.info import Info
from sghmc.results.samples import Samples
from sghmc.tuning import promise


def chains(correlation, num_draws, size=1, num_chains=16):
    """Autoregressive chains of spread 1, as if a run had made them."""
    rng = np.random.default_rng(0)
    shocks = np.sqrt(1 - correlation**2) * rng.normal(size=(num_draws, num_chains, size))
    draws = [rng.normal(size=(num_chains, size))]
    for shock in shocks[1:]:
        draws.append(correlation * draws[-1] + shock)
    positions = np.stack(draws, 1)
    is_finite = np.ones(positions.shape[:2], bool)
    return Samples(positions, None, {}, None, Info(None, is_finite), num_draws, 1.0, 0.0)


@pytest.fixture(scope="module")
def report():
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    return sghmc.tune(jax.random.key(0), target, jnp.zeros(1)).report


def test_the_worst_of_equal_errors_is_a_quantile_of_their_maximum():
    for count in (1, 10):
        expected = 0.02 * NormalDist().inv_cdf((1 + 0.95 ** (1 / count)) / 2)
        assert promise._reach(np.full(count, 0.02)) == pytest.approx(expected, rel=2e-3)
    # What is known far better than another number does not matter to the worst.
    assert promise._reach(np.array([0.02] + 9 * [0.001])) == pytest.approx(0.0392, rel=2e-3)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_squares_of_a_gaussian_are_worth_a_known_number_of_draws(correlation):
    """Squares of draws with correlations ρ^k have ρ^2k: (1 − ρ²)/(1 + ρ²) of them count."""
    found = promise.precision(chains(correlation, 2_000))
    assert found is not None
    num_draws = 32_000
    worth = (1 - correlation**2) / (1 + correlation**2)
    least = 1.96 / np.sqrt(2 * num_draws)
    # Kurtoses and sizes estimated from 32,000 draws are known to some percent.
    assert found.least == pytest.approx(least, rel=0.05)
    assert found.error == pytest.approx(least / np.sqrt(worth), rel=0.15)


def test_a_run_is_stretched_where_dependence_is_what_spoils_it(report):
    found = promise.precision(chains(0.9, 200))
    assert found is not None
    assert found.least < 0.05 < found.error
    stretch = promise.stretch(chains(0.9, 200), report)
    assert stretch == pytest.approx(1.2 * (found.error / 0.05) ** 2)
    assert promise.stretch(chains(0.0, 2_000), report) is None  # enough
    assert promise.stretch(chains(0.0, 20), report) is None  # too few, however independent
    dear = dataclasses.replace(chains(0.9, 200), seconds=1e3)
    assert promise.stretch(dear, report) is None


def test_too_few_draws_are_told_with_how_many_would_do(report):
    assert report.is_met
    few = promise.judged(report, chains(0.0, 30))
    assert not few.is_met
    assert few.monte_carlo_error == pytest.approx(1.96 / np.sqrt(960), rel=0.15)
    assert few.notes[0].startswith("480 draws know standard deviations to ± ")
    needed = int(few.notes[0].split("num_samples=")[1].split()[0])
    enough = promise.judged(report, chains(0.0, 2 * needed))
    assert enough.is_met
    assert "± " in enough.verdict


def test_nothing_is_said_of_draws_that_are_not_there(report):
    kept_nothing = dataclasses.replace(chains(0.0, 50), positions=())
    assert promise.judged(report, kept_nothing) is report
    never_moved = dataclasses.replace(chains(0.0, 50), positions=np.zeros((16, 50)))
    assert promise.judged(report, never_moved) is report


def test_auto_runs_longer_and_keeps_as_many_draws(monkeypatch):
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    start, key = jnp.zeros(2), jax.random.key(0)

    def run(*factors):
        left = list(factors)
        monkeypatch.setattr(promise, "stretch", lambda *_: left.pop(0))
        return sampling.sample(
            key, target, "auto", start, num_samples=100, num_chains=4, progress=False
        )

    usual, longer = run(None), run(2.0, None)
    assert usual.positions.shape == longer.positions.shape == (4, 100, 2)
    assert longer.num_steps == 2 * usual.num_steps
    assert not longer.tuning.is_met  # 400 draws are too few
