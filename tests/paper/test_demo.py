"""The demonstration: a fair contest, judged by the exact answer, whose verdict can be no."""

import dataclasses
import html
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from demo_results import ANSWER, demo_result, drawn
from recorded_draw import RecordedDraw
from sghmc.paper import demo
from sghmc.paper.demo import Gaussian, make_regression
from shown_tables import cells, fits

CONFIG = demo.DemoConfig()
GOOD, FEW = drawn(1000), drawn(10, seed=1)
NONE = drawn(0)


def test_errors_are_in_standard_deviations_of_the_answer():
    draws = drawn(500)
    found = demo.judged(draws, ANSWER, 3.0)
    flat = draws.reshape(-1, 6)
    errors = (flat.mean(0) - ANSWER.mean) / ANSWER.sd
    np.testing.assert_allclose(found["mean_errors"], errors, atol=1e-9)
    np.testing.assert_allclose(found["sd_ratios"], flat.std(0, ddof=1) / ANSWER.sd, rtol=1e-9)
    assert found["rms_mean_error"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found["worst_sd_error"] == pytest.approx(
        np.abs(flat.std(0, ddof=1) / ANSWER.sd - 1).max()
    )
    assert (found["num_draws"], found["seconds"]) == (2000, 3.0)
    assert len(found["points"]) <= 700
    columns = demo._pair(ANSWER)["columns"]
    expected = ((flat - ANSWER.mean) / ANSWER.sd)[0, columns]
    np.testing.assert_allclose(found["points"][0], expected, atol=1e-9)


def test_draws_are_worth_as_many_independent_ones():
    """Independent draws are worth their number, up to the chance of 6 correlated errors."""
    worths = [demo.judged(drawn(250, seed=seed), ANSWER, 1.0)["worth"] for seed in range(40)]
    # 1/worth averages 1/1000; its relative standard error over 40 seeds is below √2/√40 = 22 %.
    assert 1 / np.mean(1 / np.array(worths)) == pytest.approx(1000, rel=0.66)


@pytest.mark.parametrize("num_chains", [0, 1])
def test_without_draws_there_is_nothing_to_judge(num_chains):
    found = demo.judged(NONE if num_chains == 0 else drawn(1)[:1], ANSWER, 2.0)
    assert found == {"seconds": 2.0, "num_draws": 0}


def test_the_pair_is_the_most_correlated_one():
    covariance = np.array([[1.0, 0.2, -0.1], [0.2, 4.0, -1.4], [-0.1, -1.4, 1.0]])
    found = demo._pair(Gaussian(np.zeros(3), covariance))
    assert found == {"columns": [1, 2], "correlation": pytest.approx(-0.7)}


@pytest.mark.parametrize(
    ("auto", "hmc", "auto_is_close", "hmc_is_close", "auto_is_ahead"),
    [
        (GOOD, FEW, True, False, True),
        (GOOD, NONE, True, False, True),
        (drawn(1000, moved=0.2), FEW, False, False, False),
        (drawn(1000, moved=-0.2), NONE, False, False, True),
        (drawn(1000, wide=1.15), FEW, False, False, True),
        (drawn(1000, wide=0.85), FEW, False, False, True),
        (FEW, GOOD, False, True, False),
        (NONE, FEW, False, False, False),
    ],
)
def test_the_verdict_can_be_no(auto, hmc, auto_is_close, hmc_is_close, auto_is_ahead):
    result = demo_result(auto, hmc)
    assert result["auto_is_close"] is auto_is_close
    assert result["hmc_is_close"] is hmc_is_close
    assert result["auto_is_ahead"] is auto_is_ahead
    said = demo.verdict(result)
    assert ("DOES NOT HAVE" in said) is not auto_is_close
    assert ("That is close, too" in said) is hmc_is_close
    assert ('HMC IS AHEAD OF "auto"' in said) is not auto_is_ahead
    assert said.count("no draw yet") == [len(auto[0]), len(hmc[0])].count(0)
    assert fits(demo.table(result))


def test_less_time_is_said():
    result = demo_result(GOOD, FEW)
    assert "less time" not in demo.verdict(result)
    result["auto"]["seconds"] = 14.0
    assert "HMC had less time" in demo.verdict(result)


@pytest.mark.parametrize(("auto", "words"), [(GOOD, "has"), (FEW, "misses")])
def test_the_report_begins_with_the_verdict(auto, words):
    page = html.unescape(demo.page({"num_rows": 7}, demo_result(auto, NONE)))
    assert f'"auto" {words} the posterior' in page
    assert "num_rows" in page


def test_the_table_has_the_numbers():
    result = demo_result(GOOD, FEW)
    rows = cells(demo.table(result))
    assert len(rows) == 7
    found = result["auto"], result["hmc"]
    assert rows[2][3:] == [
        *(f"{each['mean_errors'][2]:+.2f}" for each in found),
        *(f"{each['sd_ratios'][2]:.2f}" for each in found),
    ]
    assert rows[-1][3] == f"{result['auto']['rms_mean_error']:.3f}"
    assert all(row[4] == "–" for row in cells(demo.table(demo_result(GOOD, NONE))))


def test_hmc_is_told_its_scales_its_step_and_the_length_of_its_trajectory():
    """Of a posterior with variances 4 and 9 and correlation 0.8: λ = 0.2, 1.8."""
    covariance = np.array([[4.0, 4.8], [4.8, 9.0]])
    sampler: Any = demo.fair_hmc(Gaussian(np.zeros(2), covariance))
    np.testing.assert_allclose(sampler.mass, [1 / 4, 1 / 9])
    assert sampler.step_size == pytest.approx(1.3 * np.sqrt(0.2))
    # π/2 · √(1.8/0.2) / 1.3 = 3.62.
    assert sampler.num_steps == 4
    assert sampler.metropolis
    assert sampler.jitter == 0.2


@pytest.mark.slow
def test_hmc_moves_well_on_the_posterior_it_is_told_of():
    """In units of standard deviations: nine tenths accepted, draws worth as many independent ones.

    32 chains of 100 draws: the mean square of 20 · 32 means, each of variance 1/100, has a relative
    standard error below √(2/32); 1/0.7 is 1.7 of the √(2/32) above it, 2 is four.
    """
    answer = make_regression(20_000, 20, 0.95, seed=0).answer()
    sampler = demo.fair_hmc(answer)
    precision = jnp.asarray(np.linalg.inv(answer.correlation), jnp.float32)
    starts = (
        np.random.default_rng(0).normal(size=(32, 20)) @ np.linalg.cholesky(answer.correlation).T
    )
    samples = sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(lambda z: z @ (precision @ z) / 2),
        dataclasses.replace(sampler, mass=1.0),
        jnp.asarray(starts, jnp.float32),
        init_axis=0,
        num_chains=32,
        num_samples=100,
        progress=False,
    )
    assert samples.info.acceptance is not None
    assert 0.8 < samples.info.acceptance.mean() < 0.95
    assert 100 * np.mean(samples.positions.mean(1) ** 2) < 2


def test_only_draws_within_the_seconds_count():
    positions = np.arange(8.0).reshape(1, 4, 2)
    clock = np.array([3.0, 3.9, 4.1, 5.0])
    samples = RecordedDraw(positions=positions, clock=clock, startup_seconds=2.0).samples
    np.testing.assert_array_equal(demo.within(samples, 2.0), positions[:, :2])  # pyright: ignore
    assert demo.within(samples, 0.5).shape == (1, 0, 2)  # pyright: ignore


def test_hmc_runs_for_as_long_as_it_may(monkeypatch):
    data = make_regression(2_000, 6, 0.9, seed=0)
    recorded = RecordedDraw(
        positions=np.zeros((4, 3, 6)), clock=np.array([6.0, 7.0, 30.0]), startup_seconds=5.0
    )
    monkeypatch.setattr(demo, "draw", recorded)
    monkeypatch.setattr(demo, "_seconds_a_gradient", lambda *_: 0.01)
    kept = demo._run_hmc(CONFIG, data.posterior(), ANSWER, 20.0, jax.random.key(0), False)
    assert kept.shape == (4, 2, 6)
    call = recorded.call
    pace = 0.01 * (call.sampler.num_steps + 1)
    assert 1.05 * 20.0 / pace < call.num_samples < 1.2 * 20.0 / pace + 1
    np.testing.assert_allclose(call.init, np.tile(ANSWER.mean, (4, 1)), rtol=1e-6)
    assert (call.init_axis, call.num_chains, call.progress) == (0, 4, False)
    monkeypatch.setattr(demo, "_seconds_a_gradient", lambda *_: 10.0)
    demo._run_hmc(CONFIG, data.posterior(), ANSWER, 20.0, jax.random.key(0), False)
    assert recorded.call.num_samples == 1


@pytest.mark.parametrize(("seconds", "limit"), [(0.5, 3.0), (7.0, 7.0), (90.0, 15.0)])
def test_both_have_the_same_seconds(monkeypatch, seconds, limit):
    """Within what the demonstration may take in all."""
    recorded = RecordedDraw(positions=np.ones((4, 50, 3)), seconds=1.0, clock=np.ones(50))
    monkeypatch.setattr(demo, "draw", recorded)
    ticks = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(demo.time, "perf_counter", lambda: next(ticks))
    limits = []

    def run_hmc(config, posterior, answer, limit, key, progress):
        limits.append(limit)
        return np.ones((4, 5, 3))

    monkeypatch.setattr(demo, "_run_hmc", run_hmc)
    config = demo.DemoConfig(num_rows=100, num_columns=3, least_seconds=3.0)
    result = demo.run(config, jax.random.key(0), progress=False)
    assert (result["auto"]["seconds"], result["hmc"]["seconds"]) == (seconds, limit)
    assert limits == [limit]
    assert recorded.call.sampler == "auto"
    assert np.all(recorded.call.init == 0)
    assert result["num_rows"] == 100


@pytest.mark.slow
def test_the_demonstration_shows_what_it_says():
    """At full size; `"auto"` is far from its limits, HMC is timed and so left out."""
    result = demo.run(CONFIG, jax.random.key(1), progress=False)
    assert result["auto_is_close"]
    assert result["auto_is_ahead"]
    assert result["auto"]["worth"] > 500
