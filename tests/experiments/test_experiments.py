"""The paper's experiments at quick size: files, schema, and numbers within their own errors."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import rich.console

from sghmc import experiments
from sghmc.experiments import figure1, figure3

NAMES = ("figure1", "figure2", "figure3", "theorems")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Each experiment once, at quick size: its result and its folder."""
    out = tmp_path_factory.mktemp("results")
    done = {}

    def of(name):
        if name not in done:
            done[name] = experiments.reproduce(name, out, quick=True, progress=False)
        return done[name], out / name

    return of


@pytest.mark.parametrize("name", NAMES)
def test_files_are_written_and_hold_the_result(results, name):
    result, folder = results(name)
    written = {path.name for path in folder.iterdir()}
    assert written == {"config.json", "result.json", f"{name}.png", "report.html"}
    assert json.loads((folder / "result.json").read_text()) == result
    config = json.loads((folder / "config.json").read_text())
    assert config["experiment"] == name
    assert config["quick"]
    assert config["seed"] == 0
    fields = [field.name for field in dataclasses.fields(experiments.load(name).Config)]
    assert set(fields) <= set(config)
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", NAMES)
def test_tables_fit_eighty_columns(results, name):
    console = rich.console.Console(width=80)
    with console.capture() as capture:
        console.print(experiments.table(name, results(name)[0]))
    lines = capture.get().splitlines()
    assert "…" not in capture.get()
    # A title, a head of three lines, a foot of one: more lines than rows means a wrapped cell.
    assert len(lines) == 5 + experiments.table(name, results(name)[0]).row_count


def test_figure1_tells_the_wrong_sampler_from_the_right_ones(results):
    """8,000 draws are 0.025 to 0.05 away from their own law by chance alone, sd under 0.0065.

    (Over six seeds; the bins' shares are off by √(2p/(πn)), and naive draws are correlated.) The
    naive sampler without its accept step is 0.145 away, sd 0.005. So all limits are six standard
    deviations off: a false alarm in less than one of 10⁷ seeds.
    """
    result, _ = results("figure1")
    for target in ("double_well", "gaussian"):
        for name in ("hmc", "hmc_no_mh", "naive", "sghmc", "sghmc_repaired"):
            assert result[target][name]["total_variation"] < 0.09
        assert result[target]["naive_no_mh"]["total_variation"] > 0.11
        assert result[target]["hmc"]["acceptance"] > 0.99
        assert 0.5 < result[target]["naive"]["acceptance"] < 0.65
        assert result[target]["sghmc"]["acceptance"] == 1
    # The naive sampler's variance is 2.14: one gradient evaluation a step, as in Alg. 1.
    # 8,000 draws give it to 1.8 %: the limit is six standard deviations.
    assert result["gaussian"]["naive_no_mh"]["variance"] == pytest.approx(2.14, rel=0.11)


def test_true_bins_are_the_normal_distribution():
    edges, truth = figure1.true_bins(figure1.TARGETS["gaussian"], 0.1)
    from scipy.stats import norm

    np.testing.assert_allclose(truth, np.diff(norm.cdf(edges)), atol=1e-13)


def test_total_variation_counts_what_the_bins_miss():
    assert figure1.total_variation(np.array([0.2, 0.2]), np.array([0.5, 0.5])) == pytest.approx(0.6)


def test_figure2_grows_as_expected(results):
    """Three random radii within five standard errors: a false alarm once in 500,000 seeds."""
    result, _ = results("figure2")
    for cloud in result["clouds"].values():
        assert abs(cloud["end"]["z_score"]) < 5
    end = result["clouds"]["noisy"]["end"]
    # E|z|² = 1 + nε²V to order ε: each of 3,000 kicks adds 0.04.
    assert end["expected_rms_radius"] == pytest.approx(np.sqrt(121), rel=0.01)
    assert result["clouds"]["friction"]["end"]["rms_radius"] < 2


def test_figure2_ends_where_the_paper_says():
    from sghmc.experiments import figure2

    for noise, radius in {4.0: 24.5, 0.25: 6.2}.items():
        config = figure2.Config(gradient_noise=noise)
        sampler, variance = figure2._settings(config)["noisy"]
        square = figure2.expected_square_radius(config, sampler, variance)[-1]
        assert np.sqrt(square) == pytest.approx(radius, abs=0.06)


EXACT = {
    "sgld": [(7.216, 0.45), (11.28, 0.12857), (14.814, 0.06792), (18.918, 0.04273),
             (23.925, 0.02919)],
    "sghmc": [(2.285, 0.00735), (3.503, 0.00239), (5.52, 0.00083), (8.875, 0.00029),
              (14.463, 0.00011)],
}  # fmt: skip
"""Autocorrelation time and error of the covariance, from the design's independent solve."""


def test_figure3_exact_numbers(results):
    result, _ = results("figure3")
    for name, exact in EXACT.items():
        assert len(result[name]) == len(exact)
        for point, (time, error) in zip(result[name], exact, strict=True):
            assert point["exact_autocorrelation_time"] == pytest.approx(time, abs=6e-4)
            assert point["exact_covariance_error"] == pytest.approx(error, abs=6e-6)
            assert (point["momentum_decay"] is None) == (name == "sgld")


def test_figure3_measured_numbers(results):
    """Thirty covariances within five standard errors: a false alarm once in 60,000 seeds.

    A time from 200,000 steps has a standard error of up to 17 % (√(2(2w + 1)/n), window w = 1600):
    the limit is six of them.
    """
    result, _ = results("figure3")
    for name in ("sgld", "sghmc"):
        for point in result[name]:
            assert np.max(np.abs(point["covariance_z_scores"])) < 5
            ratio = point["autocorrelation_time"] / point["exact_autocorrelation_time"]
            assert abs(ratio - 1) < 1
            assert point["covariance_error"] > 0
            assert point["script_time"] > 15


def test_autocovariances_are_lag_products_across_blocks(monkeypatch):
    monkeypatch.setattr(figure3, "_BLOCK", 64)
    draws = np.random.default_rng(0).normal(size=(500, 2)).cumsum(axis=0).astype(np.float32)
    direct = [(draws[: 500 - s] * draws[s:]).mean(axis=0, dtype=float) for s in range(11)]
    np.testing.assert_allclose(figure3.autocovariances(draws, 10), direct, rtol=1e-5)
    np.testing.assert_allclose(figure3.second_moments(draws), draws.T @ draws / 500, rtol=1e-5)


def test_covariance_errors_have_their_closed_form():
    """SGLD's slow mode is an AR(1): n Var = 2S²(1 + φ²)/(1 − φ²), of the sum of both entries."""
    from sghmc.samplers.sgld import SGLD

    identity = np.eye(2)
    step, curvature = 0.1, 1.0
    phi = 1 - step * curvature
    variance = (2 * step) / (1 - phi**2)
    expected = np.sqrt(2 * variance**2 * (1 + phi**2) / (1 - phi**2) / 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure3, "COVARIANCE", identity)
        errors = figure3.covariance_errors(SGLD(step, gradient_noise=1.0), 1000)
    np.testing.assert_allclose(errors.diagonal(), expected, rtol=1e-6)
    np.testing.assert_allclose(errors[0, 1], expected / np.sqrt(2), rtol=1e-6)


def test_script_time_counts_lags():
    assert figure3.script_time(np.array([1, 0.5, 0.09, 0.01, 0.0]), 10**9) == pytest.approx(5)
    assert figure3.script_time(np.ones(5), 10**9) == pytest.approx(7)


def test_theorems_pass(results):
    """Two rows are sampled, each within five standard errors: a false alarm in 10⁶ seeds."""
    result, _ = results("theorems")
    failed = [row for row in result["rows"] if not row["passed"]]
    assert not failed
    assert len(result["rows"]) == 16


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"no experiment 'figure9'.*figure1, figure2, figure3"):
        experiments.reproduce("figure9", tmp_path)
    with pytest.raises(ValueError, match="theorems"):
        experiments.table("figure9", {})


def test_an_unknown_option_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"figure2 has no option 'noise'.*gradient_noise"):
        experiments.reproduce("figure2", tmp_path, noise=0.25)


def test_nothing_is_written_when_the_picture_fails(tmp_path, monkeypatch):
    def fail(result):
        raise RuntimeError("no picture")

    figure2 = experiments.load("figure2")
    monkeypatch.setattr(figure2, "plot", fail)
    with pytest.raises(RuntimeError, match="no picture"):
        experiments.reproduce("figure2", tmp_path, progress=False, num_steps=100, num_chains=2)
    assert list(tmp_path.iterdir()) == []


def test_the_registry_imports_nothing_heavy():
    code = (
        "import sys, sghmc.experiments as e; e.load('figure1'); "
        "sys.exit(any(m in sys.modules for m in ('matplotlib', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_seed_gives_the_same_result(tmp_path):
    options = {"quick": True, "progress": False, "num_steps": 100, "num_chains": 2}
    first, again, other = (
        experiments.reproduce("figure2", tmp_path, seed=seed, **options) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
