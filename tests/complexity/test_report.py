"""What `llc` runs and what it makes of the traces, without running any chain."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.complexity import learning_coefficient
from sghmc.complexity import llc as module
from sghmc.complexity.learning_coefficient import LlcSettings
from sghmc.posterior.curvature import Spectrum, _tridiagonal, hessian_spectrum

KEY = jax.random.key(7)
SPECTRUM = Spectrum(np.array([400.0, 100.0, -3.0]), np.array([10.0, 20.0, 5.0]), 35)
RNG = np.random.default_rng(0)


@pytest.fixture
def ran(monkeypatch):
    """The settings and targets of all runs, whose traces are around 12."""
    runs, traces = [], []
    monkeypatch.setattr(module, "hessian_spectrum", lambda *args: traces.append(args) or SPECTRUM)

    def excess(key, localized, center, settings, progress):
        runs.append((settings, localized))
        return 12 + 0.1 * RNG.normal(size=(settings.num_chains, 400))

    monkeypatch.setattr(module, "_excess", excess)
    return runs, traces


def loss(w):
    return jnp.sum(w**2)


def found_by(**settings) -> Any:
    given: dict[str, Any] = {"num_examples": 1_000} | settings
    return sghmc.llc(KEY, loss, jnp.zeros(35), **given)


def test_the_rule_for_steps_friction_and_lengths(ran):
    """γ given: step 1/√(k + γ), friction 2√γ, relaxation √(k/γ), burn-in 4 of them, 8 draws."""
    runs, _ = ran
    found = found_by(localization=0.25)
    settings = runs[0][0]
    stiffest = 400.25
    assert settings.sampler.step_size == pytest.approx(1 / math.sqrt(stiffest))
    assert settings.sampler.friction == pytest.approx(2 * 0.5)
    relaxation = math.ceil(math.sqrt(stiffest) / 0.5)
    assert settings.relaxation == relaxation == 41
    assert settings.thinning == relaxation // 8 == 5
    assert settings.num_burnin == math.ceil(4 * 41 / 5)
    expected = (10 * 400 / 400.25 + 20 * 100 / 100.25) / 2
    independent = 1 / (expected * 0.01**2)
    assert settings.num_samples == math.ceil(independent / 4 * (41 // 5))
    assert settings.inverse_temperature == pytest.approx(1 / math.log(1_000))
    assert (settings.num_chains, settings.localization) == (4, 0.25)
    assert len(runs) == 2, "half the step size, no weaker localization"
    half = runs[1][0]
    assert half.sampler.step_size == pytest.approx(settings.sampler.step_size / 2)
    assert (half.thinning, half.relaxation) == (10, 82)
    assert found.num_steps == settings.num_steps + half.num_steps
    assert found.estimate == found.localized


def test_noisy_gradients_have_more_friction(ran):
    runs, _ = ran
    found_by(localization=0.25, gradient=sghmc.NoisyGradient(1.0), check=False)
    settings = runs[0][0]
    friction = math.sqrt(400.25) / 2
    assert settings.sampler.friction == pytest.approx(friction)
    assert settings.relaxation == math.ceil(friction * math.sqrt(400.25) / 0.5)
    assert len(runs) == 1
    found_by(localization=0.25, gradient=sghmc.FullBatch(), check=False)
    assert runs[1][0].sampler.friction == pytest.approx(1.0)


def test_without_a_localization_a_quarter_of_it_is_tried_too(ran):
    runs, _ = ran
    found = found_by()
    gamma = module._localization(SPECTRUM)
    assert [s.localization for s, _ in runs] == pytest.approx([gamma, gamma, gamma / 4])
    assert found.num_steps == sum(s.num_steps for s, _ in runs)
    assert found.localization_change == pytest.approx(0, abs=0.1)
    assert not np.isnan(found.localization_change)
    assert found.settings == runs[0][0]


def test_a_step_is_halved_while_that_matters(monkeypatch, ran):
    """Three times at most; then a quarter of the localization runs with as small steps."""
    runs, _ = ran
    plain = module._excess

    def falling(key, localized, center, settings, progress):
        trace = plain(key, localized, center, settings, progress)
        return trace - 2.0 * len(runs)

    monkeypatch.setattr(module, "_excess", falling)
    found = found_by()
    steps = np.array([s.sampler.step_size for s, _ in runs])
    gammas = np.array([s.localization for s, _ in runs])
    np.testing.assert_allclose(steps[:4] / steps[0], [1, 1 / 2, 1 / 4, 1 / 8])
    assert gammas[4] == pytest.approx(gammas[0] / 4)
    weak = 1 / math.sqrt(400 + gammas[4])
    assert steps[4] == pytest.approx(weak / 4)
    assert found.settings.sampler.step_size == pytest.approx(steps[0] / 4)
    assert "half the step size changes the estimate" in found.verdict
    runs.clear()
    found_by(check=False)
    assert len(runs) == 1


def test_a_budget_is_shared_by_all_runs(ran):
    """Of 10,000: 2 · 30 for the spectrum, the rest over 5 units of 4 chains."""
    runs, spectra = ran
    found_by(num_gradients=10_000)
    assert spectra[-1][3:] == (1, 30)
    steps = (10_000 - 60) // 20
    for settings, _ in runs[:1]:
        draws = steps // settings.thinning
        assert settings.num_burnin == 2 * draws // 5
        assert settings.num_samples == draws - 2 * draws // 5
    assert runs[2][0].localization == pytest.approx(runs[0][0].localization / 4)
    longer = (runs[2][0].num_burnin + runs[2][0].num_samples) * runs[2][0].thinning
    assert longer == pytest.approx(2 * steps, rel=0.1)
    runs.clear()
    found_by(num_gradients=1_000, localization=0.25, check=False, num_chains=2)
    settings = runs[0][0]
    assert (settings.num_burnin + settings.num_samples) == (1_000 - 60) // 2 // settings.thinning
    found_by(num_gradients=100, localization=0.25, check=False, num_chains=1)
    assert spectra[-1][3:] == (1, 13)
    runs.clear()
    found_by(num_gradients=9_000, localization=0.25)
    assert len(runs) == 2
    total = (runs[0][0].num_burnin + runs[0][0].num_samples) * runs[0][0].thinning
    assert total == pytest.approx((9_000 - 60) // 12, abs=runs[0][0].thinning)


def test_numbers_of_draws_that_are_given_are_taken(ran):
    runs, spectra = ran
    sampler = sghmc.SGLD(0.01)
    found_by(num_samples=9, num_burnin=0, sampler=sampler, localization=0.25, check=False)
    settings = runs[0][0]
    assert (settings.num_samples, settings.num_burnin, settings.sampler) == (9, 0, sampler)
    assert settings.relaxation is None
    assert spectra[-1][3:] == (4, 30)
    for name, least in (("num_samples", 4), ("num_burnin", 0)):
        with pytest.raises(ValueError, match=f"{name} must be .*from {least}"):
            found_by(**{name: least - 1})
    with pytest.raises(ValueError, match="Give num_gradients, or num_samples"):
        found_by(num_gradients=100, num_burnin=0)


def test_the_localization_is_the_strongest_that_hardly_matters():
    """Of one curvature h: h/(h + γ/2) ≤ 1.0025 h/(h + γ), so γ = 0.0025/(0.5 − 0.00125) h."""
    one = Spectrum(np.array([200.0]), np.array([7.0]), 7)
    found = module._localization(one)
    bound = 200 * 0.0025 / (0.5 - 0.00125)
    grid = 200 * np.geomspace(1, 1e-4, 81)
    assert found == pytest.approx(grid[grid <= bound][0])
    wide = Spectrum(np.geomspace(1e-3, 1e3, 7), np.ones(7), 7)
    assert module._localization(wide) == pytest.approx(1e3 * 1e-4)
    with pytest.raises(ValueError, match=r"the largest is -2\)"):
        module._localization(Spectrum(np.array([-2.0]), np.ones(1), 1))


def test_the_number_of_draws():
    assert module._num_samples(20.0, 5, 4) == math.ceil(1 / (20 * 1e-4) / 4 * 5)
    assert module._num_samples(1e6, 5, 4) == 25
    assert module._num_samples(0.1, 3, 10) == math.ceil(20_000 / 10 * 3) - 1_000
    assert module._num_samples(1e6, 0, 4) == 5


def test_a_temperature_follows_from_the_number_of_examples():
    assert module._temper(loss, 100, None) == (100, pytest.approx(1 / math.log(100)))
    assert module._temper(loss, 2, None) == (2, pytest.approx(1 / math.log(3)))
    assert module._temper(loss, 100, 0.7) == (100, 0.7)
    rows = sghmc.Posterior(lambda w, x: 0.0, lambda w: 0.0, np.ones(9))
    assert module._temper(rows, None, None) == (9, pytest.approx(1 / math.log(9)))
    with pytest.raises(ValueError, match="inverse_temperature must be positive, but is 0"):
        module._temper(loss, 100, 0)


CENTER = {"a": jnp.array([0.5, -1.0]), "b": jnp.asarray(2.0)}
PLACE = {"a": jnp.array([1.5, 1.0]), "b": jnp.asarray(5.0)}
"""1, 2 and 3 away: 14 squared."""


def test_a_loss_is_tempered_and_localized_around_the_center():
    def cubic(w):
        return jnp.sum(w["a"]) * w["b"] + 17

    target = module._localized(cubic, CENTER, 50, 0.3, 0.8)
    excess = 2.5 * 5 - (-0.5) * 2
    np.testing.assert_allclose(target.potential(PLACE), 15 * excess + 0.4 * 14, rtol=1e-6)
    np.testing.assert_allclose(target.potential(CENTER), 0, atol=1e-6)
    assert float(module._Distance(CENTER)(PLACE)) == 14


def test_a_posterior_is_tempered_row_by_row_without_its_prior():
    own = sghmc.Posterior(
        lambda w, x, h: -h * x * w**2 - 9, lambda w, h: 1e6 * w, jnp.array([1.0, 4.0]), 3.0
    )
    target = module._localized(own, jnp.asarray(2.0), 2, 0.3, 0.8)
    np.testing.assert_allclose(
        target.potential(jnp.asarray(5.0)), 0.3 * 3 * 5 * (25 - 4) + 0.4 * 9, rtol=1e-5
    )


def test_the_slope_of_many_rows_is_that_of_evenly_spaced_ones(monkeypatch):
    monkeypatch.setattr(module, "_MAX_CURVATURE_ROWS", 3)
    rows = jnp.array([1.0, 50.0, 2.0, 60.0, 6.0])
    target = sghmc.Posterior(lambda w, x: -x * w, lambda w: -0.5 * w**2, rows)
    slope = module._Slope(target)
    np.testing.assert_array_equal(slope.rows, [1, 2, 6])
    np.testing.assert_allclose(slope(jnp.asarray(2.0)), 5 / 3 * 9 + 2, rtol=1e-6)
    monkeypatch.setattr(module, "_MAX_CURVATURE_ROWS", 5)
    assert module._Slope(target).rows is None
    np.testing.assert_allclose(module._Slope(target)(jnp.asarray(2.0)), 119 + 2, rtol=1e-6)


def made_settings(**changes):
    usual: dict[str, Any] = {
        "num_examples": 100, "inverse_temperature": 0.5, "localization": 0.8, "gradient": None,
        "sampler": sghmc.SGLD(0.1), "num_samples": 50, "num_burnin": 7, "thinning": 3,
        "num_chains": 2, "relaxation": 40,
    }  # fmt: skip
    return LlcSettings(**usual | changes)


def test_the_excess_is_the_potential_without_its_localization(monkeypatch):
    seen = []

    def run(key, target, sampler, init, options):
        seen.append((sampler, init, options))
        info = SimpleNamespace(
            potential=np.array([[5.0, 6.0], [7.0, 8.0]]),
            is_finite=np.array([[True, True], [True, False]]),
        )
        return SimpleNamespace(positions=np.array([[1.0, 2.0], [3.0, 4.0]]), info=info)

    monkeypatch.setattr(module, "run", run)
    settings = made_settings()
    target: Any = None
    found = module._excess(KEY, target, CENTER, settings, progress=True)
    np.testing.assert_allclose(found, [[4.6, 5.2], [5.8, np.nan]])
    sampler, init, options = seen[0]
    assert sampler is settings.sampler
    assert init is CENTER
    assert (options.num_samples, options.num_burnin, options.thinning) == (50, 7, 3)
    assert (options.num_chains, options.progress, options.throw) == (2, True, False)
    assert isinstance(options.gradient, sghmc.FullBatch)
    assert float(options.keep(PLACE)) == 14


# What a trace is worth


def test_settings_count_their_steps():
    settings = made_settings()
    assert settings.num_steps == 2 * 3 * 57
    assert settings.most_effective == 2 * 2 * 50 * 3 / 40
    assert made_settings(relaxation=None).most_effective == math.inf
    half = settings.halved()
    assert isinstance(half.sampler, sghmc.SGLD)
    assert (half.sampler.step_size, half.thinning, half.relaxation) == (0.05, 6, 80)
    assert made_settings(relaxation=None).halved().relaxation is None
    assert dataclasses.replace(half, thinning=3).num_steps == settings.num_steps


def test_settings_are_cut_to_a_number_of_steps():
    """Two fifths of the draws are burn-in, and four draws are left at least."""
    cut = made_settings().within(3 * 11 + 2)
    assert (cut.num_burnin, cut.num_samples) == (4, 7)
    least = made_settings().within(3 * 6)
    assert (least.num_burnin, least.num_samples) == (2, 4)
    with pytest.raises(ValueError, match="leaves each chain 15 steps, of which a draw takes 3"):
        made_settings().within(15)
    with pytest.raises(ValueError, match="leaves each chain 0 steps"):
        made_settings().within(-5)


def size_of(monkeypatch, *sizes):
    """Effective sizes that are known, one call after another."""
    given = iter(sizes)
    monkeypatch.setattr(
        learning_coefficient.convergence, "effective_size", lambda trace: np.array([next(given)])
    )


def test_the_error_of_a_mean_by_its_effective_size(monkeypatch):
    trace = np.array([[9.0, 16.0, 23.0], [2.0, 4.0, 6.0]])
    size_of(monkeypatch, 7.0, 7.0, 7.0)
    assert learning_coefficient.error_of(trace) == pytest.approx(
        (trace.std(ddof=1) / math.sqrt(7), 7)
    )
    assert learning_coefficient.error_of(trace, 4.0)[0] == pytest.approx(trace.std(ddof=1) / 2)
    flat = 100 + trace / 1e3  # too narrow for a Gamma law: √mean instead
    assert learning_coefficient.error_of(flat, 4.0) == pytest.approx(
        (math.sqrt(flat.mean()) / 2, 4)
    )


def test_two_runs_agree_within_three_errors_and_a_hundredth(monkeypatch):
    one = np.array([[90.0, 110.0], [100.0, 100.0]])
    error = one.std(ddof=1)
    for shift, expected in ((0.999, True), (1.001, False)):
        apart = (3 * math.hypot(error / 2, error / 4) + 1) / 0.99 * shift
        size_of(monkeypatch, 4.0, 16.0)
        moved = learning_coefficient.change(one, one + apart)
        assert moved == pytest.approx((apart, math.hypot(error / 2, error / 4)))
        size_of(monkeypatch, 4.0, 16.0)
        assert learning_coefficient.agree(one, one + apart) == expected


def judged(trace, fine=None, weak=None, spectrum=SPECTRUM, **settings):
    return learning_coefficient.judged(trace, fine, weak, made_settings(**settings), spectrum, 321)


NOISE = RNG.normal(size=(4, 400))


def test_the_report_has_every_number():
    trace = 12 + NOISE
    found = judged(trace, relaxation=None)
    np.testing.assert_allclose(found.chains, trace.mean(1))
    error, effective = learning_coefficient.error_of(trace)
    assert (found.monte_carlo_error, found.effective) == pytest.approx((error, effective))
    assert found.standard_error == found.monte_carlo_error
    assert found.estimate == found.localized == pytest.approx(trace.mean())
    full = 10 * 400 / 400.8 + 20 * 100 / 100.8
    assert found.gaussian == pytest.approx(full / 2)
    assert found.sensitivity == pytest.approx((4000 / 400.4 + 2000 / 100.4) / full - 1)
    assert (found.num_steps, found.reasons) == (321, ())
    evidence = found.evidence
    assert evidence["local learning coefficient"] == f"{found.estimate:.4g} ± {error:.2g}"
    assert evidence["a quarter of it changed"] == "not tried"
    assert evidence["half the localization would add there"] == f"{found.sensitivity:.1%}"
    assert evidence["N, β, γ"] == "100, 0.5, 0.8"
    assert evidence["sampler"].endswith("321 gradients")
    assert evidence["if the loss were quadratic"] == f"{full / 2:.4g}"
    tried = judged(trace, fine=trace + 0.01, relaxation=None)
    assert tried.halving_change == pytest.approx(0.01)
    assert tried.halving_error == pytest.approx(error * math.sqrt(2))
    assert evidence["half the step size changed"] == "not tried"
    assert tried.evidence["half the step size changed"].startswith("+0.01 ± ")


def test_an_estimate_above_a_regular_model_s_is_told():
    """1.1 · d/2 = 19.25."""
    assert judged(19.2 + NOISE / 10 - NOISE.mean() / 10, relaxation=None).is_sound
    found = judged(19.3 + NOISE / 10 - NOISE.mean() / 10, relaxation=None)
    assert "above half the number of parameters, 17.5" in found.verdict


def test_few_effective_draws_are_told_unless_the_error_is_small(monkeypatch):
    monkeypatch.setattr(learning_coefficient.convergence, "r_hat", lambda trace: np.array([1.0]))
    for effective, is_told in ((9.9, True), (10.0, False)):
        size_of(monkeypatch, effective)
        found = judged(12 + NOISE, relaxation=None)
        assert ("effective draws" in found.verdict) == is_told
    for share, is_told in ((0.0051, True), (0.0049, False)):  # of 12, one standard error
        size_of(monkeypatch, 4.0)
        trace = (NOISE - NOISE.mean()) / NOISE.std(ddof=1) * share * 12 * 2 + 12
        assert ("effective draws" in judged(trace, relaxation=None).verdict) == is_told


def test_chains_disagree_from_an_r_hat_of_105_hundredths_where_it_matters(monkeypatch):
    apart = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
    level = NOISE - NOISE.mean(1, keepdims=True)
    for r_hat, spread, is_told in ((1.051, 0.13, True), (1.05, 0.13, False), (1.051, 0.11, False)):
        monkeypatch.setattr(
            learning_coefficient.convergence, "r_hat", lambda trace, r=r_hat: np.array([r])
        )
        found = judged(12 + level + spread * apart, relaxation=None)
        assert ("chains disagree" in found.verdict) == is_told


def test_a_loss_below_that_of_params_is_told():
    """Where more than half of the draws are below, or where the Hessian bends down."""
    flat = Spectrum(np.array([400.0, -3.0]), np.array([10.0, 5.0]), 35)
    bent = Spectrum(np.array([400.0, -5.0]), np.array([10.0, 5.0]), 35)
    below = "params are no minimum"
    assert below not in judged(0.2 + NOISE, spectrum=flat, relaxation=None).verdict
    assert below in judged(0.2 + NOISE, spectrum=bent, relaxation=None).verdict
    found = judged(-0.5 + NOISE, spectrum=flat, relaxation=None).verdict
    assert f"in {np.mean(NOISE < 0.5):.0%} of the draws" in found
    assert below not in judged(3.2 + NOISE, spectrum=bent, relaxation=None).verdict


# Spectra


def test_the_effective_number_of_directions_by_hand():
    assert SPECTRUM.effective(100.0) == pytest.approx(10 * 0.8 + 20 * 0.5)
    assert (SPECTRUM.largest, SPECTRUM.least) == (400, -3)
    rounding = Spectrum(np.array([1e6, 9.0, 11.0]), np.ones(3), 3)
    assert rounding.effective(10.0) == pytest.approx(1e6 / (1e6 + 10) + 11 / 21)


def test_lanczos_finds_the_spectrum_of_a_small_matrix():
    """As many products as directions: eigenvalues are exact; weights sum to d, means to traces."""
    root = np.random.default_rng(0).normal(size=(4, 4))
    matrix = jnp.asarray(root @ root.T - np.eye(4), jnp.float32)
    found = hessian_spectrum(
        jax.random.key(3), lambda w: (matrix @ w.ravel()).reshape(2, 2), jnp.ones((2, 2))
    )
    values = np.linalg.eigvalsh(matrix)
    assert found.values.shape == (16,)
    assert found.size == 4
    for nodes, counts in zip(found.values.reshape(4, 4), found.counts.reshape(4, 4), strict=True):
        np.testing.assert_allclose(nodes, values, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(counts.sum(), 1, rtol=1e-6)
    # Rademacher vectors know a trace but for entries off the diagonal.
    draw = jax.jit(jax.vmap(lambda key: jax.random.rademacher(key, (4,), jnp.float32)))
    signs = draw(jax.random.split(jax.random.key(3), 4))
    forms = np.einsum("pi,ij,pj->p", signs, matrix, signs)
    np.testing.assert_allclose(found.values @ found.counts, forms.mean(), rtol=1e-3)


def test_lanczos_ends_where_its_space_is_exhausted():
    """Two different eigenvalues: the third product finds nothing new."""
    scales = jnp.array([2.0, 2.0, 5.0, 5.0, 5.0])
    keys = jax.random.split(jax.random.key(4), 1)
    diagonal, beside = _tridiagonal(keys, lambda w: scales * w, jnp.zeros(5), 4)
    np.testing.assert_allclose(diagonal[0, 0], 19 / 5, rtol=1e-5)
    np.testing.assert_allclose(beside[0, 0], np.sqrt(83 / 5 - (19 / 5) ** 2), rtol=1e-5)
    np.testing.assert_allclose(beside[0, 1:], 0, atol=1e-5)
    np.testing.assert_allclose(diagonal[0, 1], 7 - 19 / 5, rtol=1e-4)
