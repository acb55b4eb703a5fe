"""The local learning coefficient, against exact values at finite N and γ, and against Aoyagi's."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.complexity.learning_coefficient import (
    LlcSettings,
    agree,
    deep_linear_coefficient,
    error_of,
    judged,
)
from sghmc.posterior.curvature import Spectrum

KEY = jax.random.key(7)


def within(found, exact, errors=4.0):
    """Whether λ̂ at γ is right but for chance: 1 of 16,000 runs is not, at 4 errors."""
    return abs(found.localized - exact) < errors * found.monte_carlo_error


@pytest.fixture(scope="module")
def quadratic():
    """50 directions of curvature 0.3 to 3, 30 flat ones."""
    scales = jnp.concatenate([jnp.linspace(0.3, 3, 50), jnp.zeros(30)])

    def loss(w):
        return 0.5 * jnp.sum(scales * (w - 1) ** 2) + 17.0

    return scales, sghmc.llc(KEY, loss, jnp.ones(80), num_examples=2_000, num_chains=16)


def exact_quadratic(scales, settings):
    curvatures = settings.num_examples * settings.inverse_temperature * np.asarray(scales)
    return float(np.sum(curvatures / (curvatures + settings.localization)) / 2)


@pytest.mark.slow
def test_a_quadratic_loss_has_its_exact_coefficient(quadratic):
    scales, found = quadratic
    exact = exact_quadratic(scales, found.settings)
    assert within(found, exact)
    assert found.monte_carlo_error < 0.04 * exact
    # Without localization, from two of them: beyond 4 errors by chance in 1 of 16,000 runs.
    assert abs(found.estimate - 25) < 4 * found.standard_error
    assert found.standard_error < 0.08 * exact
    assert found.settings.inverse_temperature == pytest.approx(1 / np.log(2_000))
    assert 0.96 * 25 < exact < 25  # what the rule's localization takes away
    np.testing.assert_allclose(found.gaussian, exact, rtol=0.15)
    assert found.is_sound, found


def test_the_law_of_the_excess_loss_is_gamma(quadratic):
    """Near a minimum Nβ(L − L*) is Gamma(λ, 1): its variance is its mean, less the localization."""
    _, found = quadratic
    assert found.trace.var() / found.localized == pytest.approx(1, abs=0.2)
    assert found.chains == pytest.approx(found.trace.mean(1))
    assert np.all(found.trace > 0)


def test_localization_and_temperature_are_taken_as_given(quadratic):
    scales, _ = quadratic

    def loss(w):
        return 0.5 * jnp.sum(scales * w**2)

    found = sghmc.llc(
        KEY, loss, jnp.zeros(80), num_examples=100, inverse_temperature=0.7,
        localization=40.0, num_chains=16, check=False,
    )  # fmt: skip
    assert within(found, exact_quadratic(scales, found.settings))
    assert found.settings.inverse_temperature == 0.7
    assert np.isnan(found.halving_change)
    assert np.isnan(found.localization_change)
    assert found.estimate == found.localized
    assert found.num_steps == found.settings.num_steps


@pytest.mark.slow_cases("control variate")
@pytest.mark.parametrize("gradient", [None, "control variate"])
def test_a_posterior_is_tempered_example_by_example(gradient):
    """Linear regression: the exact law is Gaussian; the posterior's own prior does not count."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(1_000, 12)), rng.normal(size=1_000)
    best = np.linalg.lstsq(x, noise, rcond=None)[0]
    posterior = sghmc.Posterior(
        lambda w, row: -0.5 * (row["y"] - row["x"] @ w) ** 2 - 3.0,
        lambda w: -50.0 * jnp.sum(w**2),
        {"x": x.astype(np.float32), "y": noise.astype(np.float32)},
    )
    center = jnp.asarray(best, jnp.float32)
    if gradient is not None:
        gradient = sghmc.ControlVariate(300, center=center)
    found = sghmc.llc(
        KEY, posterior, center, gradient=gradient, localization=20.0, num_chains=8,
        num_samples=150, check=False,
    )  # fmt: skip

    values = np.linalg.eigvalsh(x.T @ x) * found.settings.inverse_temperature
    exact = np.sum(values / (values + found.settings.localization)) / 2
    assert 5 < exact < 5.5
    # A linear model's gradient noise around the minimum heats a little: less than 4 %.
    allowed = 4 * found.standard_error + (0 if gradient is None else 0.04 * exact)
    assert abs(found.estimate - exact) < allowed, found


def test_a_product_of_two_numbers_against_its_integral():
    """L = ½a²b² has λ = ½, m = 2, and no curvature at 0: λ̂ at finite Nβ and γ is an integral.

    Z = ∫ e^{−½γa²} (γ + Nβa²)^{−½} da, λ̂ = −∂log Z/∂log Nβ.
    """
    gamma, tempered = 3.0, 5_000.0

    def loss(w):
        return 0.5 * (w[0] * w[1]) ** 2

    found = sghmc.llc(
        KEY, loss, jnp.zeros(2), num_examples=5_000, inverse_temperature=1.0, localization=gamma,
        sampler=sghmc.BAOAB(0.01, friction=8.0), num_samples=3_000, num_burnin=2_000, num_chains=64,
        check=False,
    )  # fmt: skip
    log_a = np.linspace(-14, 2, 4_001)
    a = np.exp(log_a)
    weight = a * np.exp(-gamma * a**2 / 2) / np.sqrt(gamma + tempered * a**2)
    exact = np.sum(weight * tempered * a**2 / (gamma + tempered * a**2)) / np.sum(weight) / 2
    assert 0.3 < exact < 0.45
    assert within(found, exact), (found, exact)
    with pytest.raises(ValueError, match="no positive curvature at params"):
        sghmc.llc(KEY, loss, jnp.zeros(2), num_examples=5_000)


def deep_linear(widths, rank):
    """The loss of a deep linear network, and layers of no larger rank than their product."""
    rng = np.random.default_rng(1)
    frames = [np.linalg.qr(rng.normal(size=(width, rank)))[0] for width in widths]
    layers = [
        jnp.asarray(after @ before.T, jnp.float32) for before, after in itertools.pairwise(frames)
    ]

    def product(layers):
        return jnp.linalg.multi_dot(layers[::-1])

    best = product(layers)
    return lambda layers: 0.5 * jnp.sum((product(layers) - best) ** 2), layers


@pytest.mark.slow
def test_singular_directions_count_in_part_and_the_error_bar_says_so():
    """Half the rank: a fifth of λ no Hessian sees, and γ keeps a part of that away.

    What γ keeps away is many Monte Carlo errors. The standard error has it: it is no chance, but
    less than one of them in all networks that were tried, so that two are a wide margin.
    """
    widths, rank = [14, 18, 14], 7
    found = sghmc.llc(KEY, *deep_linear(widths, rank), num_examples=500_000, num_chains=8)
    exact = deep_linear_coefficient(widths, rank)
    assert found.localized < exact - 4 * found.monte_carlo_error
    assert abs(found.estimate - exact) < 2 * found.standard_error, found
    assert found.standard_error < 0.1 * exact
    assert found.localization_change > 3 * found.localization_error
    assert "a quarter of the localization changes the estimate" in found.verdict


def test_a_budget_of_gradients_is_kept():
    """Also by a verdict that says how little it was."""

    def loss(w):
        return jnp.sum(jnp.linspace(1, 2, 400) * w[:400] ** 2)

    arguments = {"num_examples": 100_000, "num_chains": 1, "check": False}
    found = sghmc.llc(KEY, loss, jnp.zeros(600), **arguments, num_gradients=100)
    assert found.num_steps <= 100
    # 200, of which the localization takes less than 2 %; 4 errors are 1 of 16,000 by chance.
    assert abs(found.estimate - 200) < 4 * found.standard_error + 4
    assert found.standard_error < 20
    all_runs = sghmc.llc(KEY, loss, jnp.zeros(600), num_examples=100_000, num_gradients=1_000)
    assert 500 < all_runs.num_steps <= 1_000
    with pytest.raises(ValueError, match=r"num_gradients leaves each chain \d+ steps"):
        sghmc.llc(KEY, loss, jnp.zeros(600), num_examples=100_000, num_gradients=50)
    with pytest.raises(ValueError, match="not both"):
        sghmc.llc(KEY, loss, jnp.zeros(600), **arguments, num_gradients=100, num_samples=9)


@pytest.mark.slow
def test_a_deep_linear_network_untuned():
    """Half the parameters are flat or singular; within 5 % of Aoyagi's value."""
    widths, rank = [12, 16, 14, 12], 10
    found = sghmc.llc(KEY, *deep_linear(widths, rank), num_examples=1_000_000)
    exact = deep_linear_coefficient(widths, rank)
    assert exact == 72
    assert abs(found.estimate / exact - 1) < 0.05, found
    assert found.is_sound, found


@pytest.mark.slow
def test_a_step_that_is_too_large_is_halved_and_told():
    """SGLD's variance on a quadratic is 1/(1 − ½εk) times right: halving moves it far."""

    def loss(w):
        return 0.5 * jnp.sum(w**2)

    arguments = {"num_examples": 100, "inverse_temperature": 1.0, "num_burnin": 100}
    arguments |= {"localization": 1.0, "num_chains": 16, "num_samples": 200}
    found = sghmc.llc(KEY, loss, jnp.zeros(40), sampler=sghmc.SGLD(0.0196), **arguments)
    chosen = found.settings.sampler
    assert isinstance(chosen, sghmc.SGLD)
    assert chosen.step_size == pytest.approx(0.0196 / 4)
    assert found.halving_change < 0
    assert not found.is_sound
    assert "half the step size changes the estimate" in found.verdict


def judgement(trace, values=(1.0,), fine=None, weak=None, size=1_000):
    """What is made of a trace, where the Hessian has these eigenvalues."""
    settings = LlcSettings(
        num_examples=100, inverse_temperature=1.0, localization=1.0, gradient=None,
        sampler=sghmc.SGLD(0.1), num_samples=50, num_burnin=0, thinning=1, num_chains=4,
    )  # fmt: skip
    counts = np.full(len(values), size / len(values))
    spectrum = Spectrum(np.array(values), counts, size)
    return judged(trace, fine, weak, settings, spectrum, 200)


def verdict_on(trace, **others):
    return judgement(trace, **others).verdict


def test_what_a_quarter_of_the_localization_adds_is_added_again_and_is_part_of_the_error():
    """λ − λ̂ ∝ √γ: a quarter of γ leaves half of it."""
    rng = np.random.default_rng(1)
    trace = 300 + 17 * rng.normal(size=(4, 2_000))
    weak = 320 + 17 * rng.normal(size=(4, 2_000))
    found = judgement(trace, weak=weak)
    apart = weak.mean() - trace.mean()
    assert found.localized == pytest.approx(trace.mean())
    assert found.estimate == pytest.approx(trace.mean() + 2 * apart)
    assert found.localization_change == pytest.approx(apart)
    chance = found.monte_carlo_error
    assert found.standard_error == pytest.approx(np.hypot(apart, 5**0.5 * chance), rel=0.02)
    assert "a quarter of the localization changes the estimate by +20" in found.verdict
    assert verdict_on(trace, weak=trace + 2) == "trustworthy: no sign of trouble"
    assert "non-finite" in verdict_on(trace, weak=np.where(weak > 330, np.nan, weak))


def test_verdicts_say_what_is_wrong():
    rng = np.random.default_rng(0)
    sound = 300 + 17 * rng.normal(size=(4, 200))
    assert verdict_on(sound) == "trustworthy: no sign of trouble"
    assert "half the step size changes" in verdict_on(sound, fine=sound - 50)
    assert "chains disagree" in verdict_on(sound + 100 * np.arange(4)[:, None])
    assert "above half the number of parameters" in verdict_on(sound, size=500)
    assert "params are no minimum" in verdict_on(sound - 400)
    assert "params are no minimum" in verdict_on(sound - 300, values=(-1.0, 1.0))
    lost = sound.copy()
    lost[1, 100:] = np.nan
    assert "non-finite" in verdict_on(lost)
    walk = 300 + np.cumsum(rng.normal(size=(4, 50)), 1) * 3
    assert "effective draws" in verdict_on(walk)
    # Their error is then not well known, which does not matter where it is a thousandth.
    assert "effective draws" not in verdict_on(300 + (walk - 300) / 100)


def test_two_traces_agree_but_for_chance():
    rng = np.random.default_rng(0)
    one, other = 10 + rng.normal(size=(2, 4, 500))
    error, effective = error_of(one)
    assert 1_000 < effective < 4_000
    assert error == pytest.approx(1 / np.sqrt(effective), rel=0.1)
    assert agree(one, other)
    assert not agree(one, other + 1)
    assert not agree(np.full((4, 500), np.nan), other)
    assert error_of(one, most=4)[1] == 4
    assert error_of(one, most=4)[0] == pytest.approx(np.sqrt(one.mean() / 4))  # a Gamma law's


def test_errors_name_what_came():
    def loss(w):
        return jnp.sum(w**2)

    with pytest.raises(ValueError, match=r"num_examples must be a whole number from 2.*None"):
        sghmc.llc(KEY, loss, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"localization must be positive, but is -1"):
        sghmc.llc(KEY, loss, jnp.zeros(2), num_examples=10, localization=-1)
    with pytest.raises(TypeError, match="llc needs a Posterior, or a function"):
        sghmc.llc(KEY, sghmc.Potential(loss), jnp.zeros(2), num_examples=10)  # pyright: ignore[reportArgumentType]
    posterior = sghmc.Posterior(lambda w, x: -((x - w) ** 2), lambda w: 0.0 * w, jnp.arange(3.0))
    with pytest.raises(ValueError, match="a Posterior has its own"):
        sghmc.llc(KEY, posterior, jnp.array(1.0), num_examples=10)


def test_the_report_reads_as_text_and_as_a_page(quadratic):
    _, found = quadratic
    assert "local learning coefficient: 25" in str(found)
    assert "verdict: trustworthy: no sign of trouble" in str(found)
    assert "Verdict: trustworthy: no sign of trouble" in found._repr_html_()
