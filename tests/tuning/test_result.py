"""The result of a tuning: what its report prints, its precision after a run, and its saved form."""

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import sampling
from sghmc.checkpoint.checkpoint import DamagedError
from sghmc.core import runtime
from sghmc.core.matrices import LowRankFactor
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info
from sghmc.tuning import result
from sghmc.tuning.result import Precision, Tuned, TuneReport


def made_report(**changes) -> TuneReport:
    given: dict[str, Any] = {
        "engine": "minibatch",
        "num_parameters": 3,
        "num_examples": 12_345,
        "distance": 0.25,
        "estimator": "Minibatch",
        "gradient_noise": {"minibatch": 1.75},
        "step_size": 0.15,
        "friction": 2.5,
        "num_steps": 4,
        "acceptance": 0.87,
        "kinetic_temperature": 1.04,
        "autocorrelation_time": 6.0,
        "predicted_error": 0.013,
        "halving_change": 0.021,
        "halving_noise": 0.004,
        "tolerance": 0.05,
        "notes": ("a note",),
        "choice": "as asked for",
        "seconds": 7.25,
        "stages": {"mode": 1.5, "pilot runs": 5.5},
    }
    return TuneReport(**given | changes)


# What a report prints


def test_a_minibatch_report_is_printed_with_its_numbers():
    assert str(made_report()).splitlines() == [
        "3 parameters, 12,345 examples; tuned in 7.2 s (mode 1.5, pilot runs 5.5)",
        "engine: minibatch (as asked for)",
        "gradient: Minibatch (gradient noise: minibatch 1.75)",
        "step size 0.15, friction 2.5, whitened; one independent draw in about 12 steps",
        "standard deviations: 1.3 % too wide by theory; half the step size changed them by at most "
        "2.1 % (± 0.4 %)",
        "verdict: errors of standard deviations below 5 % are to be expected",
        "note: a note",
    ]
    untried = str(made_report(halving_change=math.nan, gradient_noise={}))
    assert "half the step size was not tried" in untried
    assert "gradient: Minibatch\n" in untried
    assert "NOT to be expected" in made_report(complaints=("x",)).verdict


@pytest.mark.parametrize(("time", "trajectories"), [(6.0, "11.0"), (0.7, "1.0")])
def test_an_exact_report_is_printed_with_its_numbers(time, trajectories):
    report = made_report(engine="exact", autocorrelation_time=time, num_examples=None)
    lines = str(report).splitlines()
    assert lines[0].startswith("3 parameters, a potential; ")
    assert lines[2] == (
        "HMC on all data, whitened: trajectories of 4 steps of 0.15, 87 % accepted; one "
        f"independent draw in about {trajectories} trajectories"
    )
    assert lines[3] == "verdict: exact: no error but that of a finite number of draws"
    known = dataclasses.replace(report, monte_carlo_error=0.021)
    assert known.verdict.endswith("draws (± 2.1 % of standard deviations)")
    unmet = dataclasses.replace(known, complaints=("x",))
    assert unmet.verdict.endswith("5 % are NOT to be expected")


def test_a_tolerance_is_met_without_complaints_and_with_enough_draws():
    """A Monte Carlo error of 0.037 is left beside a bias of 0.013."""
    assert made_report().is_met
    assert not made_report(complaints=("one",)).is_met
    assert made_report().allowed_error == pytest.approx(0.037)
    assert made_report(monte_carlo_error=0.0369).is_met
    assert not made_report(monte_carlo_error=0.0371).is_met


# How precise a run is


def chains(correlation, num_draws, size=1, num_chains=16):
    """Autoregressive chains with standard deviation 1, as if a run had made them."""
    rng = np.random.default_rng(0)
    shocks = np.sqrt(1 - correlation**2) * rng.normal(size=(num_draws, num_chains, size))
    draws = [rng.normal(size=(num_chains, size))]
    for shock in shocks[1:]:
        draws.append(correlation * draws[-1] + shock)
    positions = np.stack(draws, 1)
    is_finite = np.ones(positions.shape[:2], bool)
    return Samples(positions, None, {}, None, Info(None, is_finite), num_draws, 1.0, 0.0)


def test_the_worst_of_equal_errors_is_a_quantile_of_their_maximum():
    for count in (1, 10):
        expected = 0.02 * NormalDist().inv_cdf((1 + 0.95 ** (1 / count)) / 2)
        assert result._largest_error(np.full(count, 0.02)) == pytest.approx(expected, rel=2e-3)
    # A quantity that is known far better than another does not matter to the worst.
    found = result._largest_error(np.array([0.02] + 9 * [0.001] + [0.0]))
    assert found == pytest.approx(0.0392, rel=2e-3)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_squares_of_a_gaussian_are_worth_a_known_number_of_draws(correlation):
    """Squares of draws with correlations ρ^k have ρ^2k: (1 − ρ²)/(1 + ρ²) of them count."""
    found = result.precision(chains(correlation, 2_000))
    assert found is not None
    num_draws = 32_000
    worth = (1 - correlation**2) / (1 + correlation**2)
    independent = 1.96 / np.sqrt(2 * num_draws)
    # Kurtoses and sizes estimated from 32,000 draws are known to some percent.
    assert found.independent_error == pytest.approx(independent, rel=0.05)
    assert found.error == pytest.approx(independent / np.sqrt(worth), rel=0.15)


def test_the_error_of_a_standard_deviation_is_that_of_its_kurtosis():
    x = np.random.default_rng(0).exponential(size=(4, 60))
    away = x - x.mean()
    kurtosis = np.mean(away**4) / np.mean(away**2) ** 2
    effective = result.convergence.effective_size((away**2)[None])[0]
    error, independent = result._standard_errors(x)
    assert independent == pytest.approx(np.sqrt((kurtosis - 1) / 4 / 240))
    assert error == pytest.approx(np.sqrt((kurtosis - 1) / 4 / effective))


def test_of_very_many_quantities_some_are_evaluated(monkeypatch):
    monkeypatch.setattr(result, "_MAX_QUANTITIES", 3)
    monkeypatch.setattr(result, "_standard_errors", lambda draws: (float(draws[0, 0]), 0.5))
    positions = {"a": np.tile(np.arange(1.0, 10.0), (2, 2, 1))}
    found = result.precision(dataclasses.replace(chains(0.0, 2), positions=positions))
    assert found is not None
    assert found.error == pytest.approx(result._largest_error(np.array([1.0, 5.0, 9.0])))


def test_draws_that_do_not_vary_have_no_precision():
    kept_nothing = dataclasses.replace(chains(0.0, 50), positions=())
    assert result.precision(kept_nothing) is None
    never_moved = dataclasses.replace(chains(0.0, 50), positions=np.zeros((16, 50)))
    assert result.precision(never_moved) is None
    report = made_report()
    assert result.with_precision(report, None, kept_nothing) is report
    assert result.extension_factor(report, None, kept_nothing) is None


def test_a_run_is_extended_by_the_square_of_what_it_lacks():
    """0.1 where 0.05 − 0.01 is left: 2.5² times as long, and a fifth more."""
    run, known = chains(0.0, 30), Precision(0.1, 0.02)
    # The factor is 7.5, of 16 chains: counted 20 s are reached between these numbers of steps.
    report = made_report(predicted_error=0.01, step_cost=1e-3)

    def factor(report=report, known=known, **changes):
        return result.extension_factor(report, known, dataclasses.replace(run, **changes))

    assert factor() == pytest.approx(1.2 * 2.5**2)
    assert factor(num_steps=166) is not None
    assert factor(num_steps=167) is None
    assert factor(num_steps=166, seconds=1e6) is not None  # the clock does not count
    within = result.extension_factor(report, known, dataclasses.replace(run, seconds=2.0), 16.0)
    assert within is not None  # but that of a budget does
    assert (
        result.extension_factor(report, known, dataclasses.replace(run, seconds=2.2), 16.0) is None
    )
    assert factor(is_interrupted=True) is None
    assert factor(dataclasses.replace(report, complaints=("x",))) is None
    assert factor(known=Precision(0.1, 0.041)) is None  # no run of as many draws would do
    assert factor(known=Precision(0.039, 0.01)) is None  # enough


def test_how_many_draws_would_do_by_hand():
    run, report, known = chains(0.0, 30), made_report(predicted_error=0.01), Precision(0.1, 0.02)
    found = result.with_precision(report, known, run)
    assert found.notes == (
        "480 draws determine standard deviations only to ± 10 %: num_samples=190 would be enough",
        "a note",
    )
    assert found.monte_carlo_error == 0.1
    assert not found.is_met
    heavy = result.with_precision(report, Precision(0.6, 0.081), run)  # a Cauchy's
    assert "± 60 %: tails are so heavy that they may not exist" in heavy.notes[0]
    assert "num_samples" not in heavy.notes[0]
    assert "num_samples" in result.with_precision(report, Precision(0.6, 0.079), run).notes[0]
    unmet = dataclasses.replace(report, complaints=("x",))
    unmet = result.with_precision(unmet, known, run)
    assert (unmet.notes, unmet.monte_carlo_error) == (("a note",), 0.1)
    exact = made_report(predicted_error=0.0)
    enough = result.with_precision(exact, Precision(0.05, 0.02), run)
    assert enough.is_met
    assert enough.notes == ("a note",)


@pytest.mark.parametrize(
    ("error", "needed"), [(0.0513, 32), (0.108, 140), (0.18, 390), (0.33, 1_400), (1.1, 15_000)]
)
def test_counts_are_rounded_up_to_two_digits(error, needed):
    report = made_report(predicted_error=0.0)
    found = result.with_precision(report, Precision(error, 0.0), chains(0.0, 30))
    assert f"num_samples={needed} would" in found.notes[0]


@pytest.mark.slow
def test_auto_runs_longer_and_keeps_as_many_draws(monkeypatch):
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    start, key = jnp.zeros(2), jax.random.key(0)

    def run(*factors):
        left = list(factors)
        monkeypatch.setattr(result, "extension_factor", lambda *_: left.pop(0))
        return sampling.sample(
            key, target, "auto", start, num_samples=100, num_chains=4, progress=False
        )

    usual, longer = run(None), run(2.0, None)
    assert usual.positions.shape == longer.positions.shape == (4, 100, 2)
    assert longer.num_steps == 2 * usual.num_steps
    assert not longer.tuning.is_met  # 400 draws are too few


# Saved


INIT = {"a": np.zeros(2), "b": (np.zeros(()), np.ones(3))}


def saved_and_read(value, init=INIT):
    codec = result._Codec(init, {})
    content = codec.encode(value)
    return content, result._Codec(init, codec.arrays).decode(content)


def test_a_tuning_is_read_as_it_was_saved():
    starts = jax.tree.map(lambda leaf: np.stack([leaf, leaf + 1]), INIT)
    sampler = sghmc.Whitened(sghmc.SGHMC(0.1, 2.0, observe="middle"), INIT, np.eye(6))
    control = sghmc.ControlVariate(10, INIT, False, shared=True)
    tuned = sghmc.Tuned(sampler, control, starts, 8, made_report(complaints=("x",)))
    _, found = saved_and_read(tuned)
    assert isinstance(found, sghmc.Tuned)
    assert found.report == tuned.report
    assert found.thinning == 8
    assert isinstance(found.gradient, sghmc.ControlVariate)
    assert found.gradient.batch_size == 10
    assert found.gradient.shared
    for mine, theirs in zip(jax.tree.leaves(found.init), jax.tree.leaves(starts), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    inner: Any = found.sampler.sampler
    assert (inner.step_size, inner.friction, inner.observe) == (0.1, 2.0, "middle")
    np.testing.assert_array_equal(found.sampler.factor, np.eye(6))
    np.testing.assert_array_equal(found.sampler.center["b"][1], np.ones(3))


def test_a_factor_of_low_rank_is_read_as_it_was_saved():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 6, 1))
    factor = LowRankFactor(np.ones(6), first, second, np.ones(6))
    _, found = saved_and_read(sghmc.Whitened(sghmc.SGHMC(0.1, 2.0), INIT, factor))
    assert isinstance(found.factor, LowRankFactor)
    np.testing.assert_array_equal(found.factor.second, factor.second)


def test_values_are_saved_in_the_form_of_json():
    content, found = saved_and_read({"x": (1, 2.5, None, True, "text"), "y": np.float32(3)})
    assert found == {"x": (1, 2.5, None, True, "text"), "y": 3}
    assert content["dict"][0] == ["x", {"tuple": [1, 2.5, None, True, "text"]}]
    assert content["dict"][1] == ["y", {"array": "0000"}]


class Foreign(sghmc.SGHMC):
    """A sampler of somebody else, which another process may not have."""


def test_only_classes_of_the_library_are_saved_and_read():
    with pytest.raises(TypeError, match="cannot hold a Foreign that tuning chose"):
        result._Codec(INIT, {}).encode(Foreign(0.1, 1.0))
    for content in ({"class": "Foreign"}, {"class": "Path"}, {"what": 1}):
        with pytest.raises(DamagedError, match="it holds a"):
            result._Codec(INIT, {}).decode(content)


def test_what_process_0_chose_comes_to_all_bit_for_bit(monkeypatch):
    """As text: settings, and arrays of any dtype, of which JSON knows none."""
    half = jnp.array([0.1, -3.0], jnp.bfloat16)
    sampler: Any = sghmc.SGHMC(0.1, np.array([1.0, 2.0]))
    tuned = Tuned(sampler, sghmc.FullBatch(), {"a": half}, 3, made_report())
    monkeypatch.setattr(runtime, "is_multiprocess", lambda: True)
    monkeypatch.setattr(runtime, "text_of_leader", lambda function: function())
    found: Any = result.tune_on_leader({"a": half}, lambda: tuned)
    assert (found.thinning, repr(found.report)) == (3, repr(made_report()))
    assert found.sampler.step_size == 0.1
    np.testing.assert_array_equal(found.sampler.friction, [1.0, 2.0])
    assert found.init["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.init["a"], half)
