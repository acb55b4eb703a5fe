"""`sghmc.theory` against published numbers, closed forms and brute force.

The laws of the samplers themselves are judged in `test_laws.py`.
"""

import dataclasses
import doctest
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import sghmc
from sghmc import theory
from sghmc.samplers.sgld import SGLDKernel, SGLDState
from sghmc.types import StepInfo

PRECISION = np.array([[2.0, 0.6], [0.6, 0.7]])
MASS = np.array([[1.5, -0.4], [-0.4, 0.8]])
FRICTION = np.array([[0.9, 0.3], [0.3, 2.1]])


def test_docstrings():
    assert doctest.testmod(theory).failed == 0


FIGURE_3 = [  # i, then time and mean |error| of the covariance: SGLD, SGHMC (paper.md)
    (0, 7.216, 0.45000, 2.285, 0.00735),
    (1, 11.280, 0.12857, 3.503, 0.00239),
    (2, 14.814, 0.06792, 5.520, 0.00083),
    (3, 18.918, 0.04273, 8.875, 0.00029),
    (4, 23.925, 0.02919, 14.463, 0.00011),
]


@pytest.mark.parametrize(("i", "sgld_time", "sgld_error", "time", "error"), FIGURE_3)
def test_figure_3_is_foretold(i, sgld_time, sgld_error, time, error):
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    samplers = (
        sghmc.SGLD(0.18 * 0.8**i, gradient_noise=1.0),
        sghmc.SGHMC.from_learning_rate(0.05 * 0.36**i, 0.05 * 0.6**i, gradient_noise=1.0),
    )
    expected = ((sgld_time, sgld_error), (time, error))
    for sampler, (expected_time, expected_error) in zip(samplers, expected, strict=True):
        law = theory.stationary_law(sampler, np.linalg.inv(covariance), 1.0)
        np.testing.assert_allclose(law.autocorrelation_time, expected_time, atol=6e-4)
        error_seen = np.abs(law.covariance - covariance).mean()
        np.testing.assert_allclose(error_seen, expected_error, atol=6e-6)


def test_naive_hmc_of_figure_1_has_twice_the_variance():
    law = theory.stationary_law(sghmc.HMC(0.1, 50, metropolis=False), 1.0, gradient_noise=4.0)
    assert law.covariance[0, 0] == pytest.approx(2.14, abs=0.005)
    assert law.effective_temperature == pytest.approx(2.14, abs=0.005)


SAMPLERS = {
    "sghmc": sghmc.SGHMC(0.3, FRICTION, MASS, temperature=0.7),
    "sgld": sghmc.SGLD(0.2, FRICTION, temperature=0.7),
    "repaired": sghmc.SGHMC(0.3, FRICTION, MASS, temperature=0.7, resample_every=4),
    "literal": sghmc.SGHMC(
        0.3, FRICTION, MASS, temperature=0.7, resample_every=3, resampling="literal"
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_law_is_that_of_the_iterated_step(name):
    """All fields by brute force: thousands of steps, one after the other, from a fixed start."""
    sampler, noise = SAMPLERS[name], [0.8, 1.7]
    law = theory.stationary_law(sampler, PRECISION, noise)
    period = getattr(sampler, "resample_every", None) or 1
    cycle = [theory.affine_map(sampler, PRECISION, noise, t=period + p) for p in range(period)]
    covariance = np.zeros_like(cycle[0].transition)
    for i in range(1200 * period):
        covariance = theory._propagate(cycle[i % period], covariance)
    mean = lagged = np.zeros_like(covariance)
    for p in range(period):
        mean = mean + covariance / period
        later = covariance
        for s in range(1200):
            later = cycle[(p + s) % period].transition @ later
            lagged = lagged + later / period
        covariance = theory._propagate(cycle[p], covariance)
    np.testing.assert_allclose(law.state_covariance, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(law.covariance, mean[:2, :2], rtol=1e-9)
    np.testing.assert_allclose(
        law.autocorrelation_time, 1 + np.diag(lagged)[:2] / np.diag(mean)[:2], rtol=1e-9
    )
    np.testing.assert_allclose(
        (1 + law.standard_deviation_error) ** 2 * 0.7 * np.diag(np.linalg.inv(PRECISION)),
        np.diag(mean)[:2],
    )
    assert law.effective_temperature == pytest.approx(np.trace(PRECISION @ mean[:2, :2]) / 2)


def test_schedules_are_held_where_asked():
    decaying = sghmc.SGLD(lambda t: 0.2 * 0.5 ** (t / 10), temperature=lambda t: 1 + t / 10)
    law = theory.stationary_law(decaying, PRECISION, t=20)
    expected = theory.stationary_law(sghmc.SGLD(0.05, temperature=3.0), PRECISION)
    np.testing.assert_allclose(law.covariance, expected.covariance, rtol=1e-12)


def test_draws_in_the_middle_of_a_drift_have_the_exact_law():
    """That of the temperature τ + ½εκ where the gradient's noise exceeds V̂ by κC."""
    root = np.array([[0.8, 0.3], [-0.2, 1.1]])
    exact = (0.7 + 0.3 * 0.5 / 2) * np.linalg.inv(PRECISION)
    sampler = sghmc.SGHMC(0.3, FRICTION, MASS, temperature=0.7, observe="middle")
    law = theory.stationary_law(sampler, PRECISION, 0.5 * FRICTION)
    np.testing.assert_allclose(law.covariance, exact, rtol=1e-10)
    end = dataclasses.replace(sampler, observe="end")
    other = theory.stationary_law(end, PRECISION, 0.5 * FRICTION)
    np.testing.assert_allclose(law.state_covariance, other.state_covariance, rtol=1e-12)
    assert not np.allclose(other.covariance, exact, rtol=1e-3)
    inner = sghmc.SGHMC(0.3, 1.1, temperature=0.7, observe="middle")
    noise = 0.5 * 1.1 * np.linalg.inv(root @ root.T)
    whitened = theory.stationary_law(sghmc.Whitened(inner, np.zeros(2), root), PRECISION, noise)
    np.testing.assert_allclose(whitened.covariance, exact, rtol=1e-10)


@pytest.mark.parametrize("observe", ["end", "middle"])
def test_law_of_friction_in_closed_form(observe):
    settings: dict[str, Any] = {
        "step_size": 0.4,
        "friction": 1.3,
        "temperature": 0.7,
        "observe": observe,
    }
    exact = theory.stationary_law(sghmc.SGHMC(**settings), 2.1, 0.9)
    law = theory.friction_law(**settings, curvature=2.1, gradient_noise=0.9)
    assert law.variance * 0.7 / 2.1 == pytest.approx(exact.covariance[0, 0], rel=1e-9)
    assert law.autocorrelation_time == pytest.approx(exact.autocorrelation_time[0], rel=1e-9)
    error = exact.standard_deviation_error[0]
    assert law.standard_deviation_error == pytest.approx(error, rel=1e-9)


def test_a_chain_without_noise_has_no_autocorrelation():
    law = theory.stationary_law(sghmc.Momentum(0.1, 0.2), PRECISION)
    np.testing.assert_array_equal(law.state_covariance, 0)
    assert np.isnan(law.autocorrelation_time).all()


def test_double_precision_stays_inside():
    theory.stationary_law(sghmc.SGLD(0.1), 2.0)
    assert jnp.zeros(1).dtype == jnp.float32


def test_stability_limit_of_sghmc_is_where_its_matrix_is_singular():
    limit = theory.stability_limit(sghmc.SGHMC(0.01, FRICTION, MASS), PRECISION)
    matrix = MASS - limit / 2 * FRICTION - limit**2 / 4 * PRECISION
    assert abs(np.linalg.eigvalsh(matrix)[0]) < 1e-7


@pytest.mark.parametrize(
    ("sampler", "limit"),
    [
        (sghmc.SGLD(7.0, FRICTION), 2 / np.max(np.linalg.eigvals(FRICTION @ PRECISION))),
        (sghmc.SGLD(0.1, gradient_noise=15.0), 2 / np.linalg.eigvalsh(PRECISION)[-1]),
        (sghmc.HMC(0.1, 7, MASS), 2 / np.sqrt(scipy.linalg.eigvalsh(PRECISION, MASS)[-1])),
        (sghmc.SGD(0.1), 2 / np.linalg.eigvalsh(PRECISION)[-1]),
        (sghmc.SGHMC(900.0, 0.0, 3.0), 2 * np.sqrt(3 / np.linalg.eigvalsh(PRECISION)[-1])),
    ],
)
def test_stability_limit(sampler, limit):
    assert theory.stability_limit(sampler, PRECISION) == pytest.approx(limit, rel=1e-7)


def test_an_unstable_step_is_refused_with_numbers():
    sampler = sghmc.HMC(3.0, 1, 2.0, metropolis=False)  # the factor is 1 − ε²h/2m = −3.5
    with pytest.raises(ValueError, match=r"unstable.* spectral radius of a step is 3.5 .*_limit"):
        theory.stationary_law(sampler, 2.0)
    with pytest.raises(ValueError, match=f"{2.0:.6g}; a chain"):
        theory.stationary_law(sampler, 2.0)


def test_a_chain_without_friction_is_refused():
    with pytest.raises(ValueError, match="never forgets its start"):
        theory.stationary_law(sghmc.SGHMC(0.1, friction=0.0), PRECISION)


def test_an_accept_step_is_refused():
    with pytest.raises(ValueError, match="metropolis=False"):
        theory.stationary_law(sghmc.HMC(0.1, 3), PRECISION)


class _CubicKernel(SGLDKernel):
    def step(self, t, noise, state, oracle):
        return SGLDState(state.position - 0.1 * state.position**3), StepInfo(jnp.zeros(()))


class _CubicSampler(sghmc.SGLD):
    def prepare(self, like, num_steps=1):
        kernel = super().prepare(like, num_steps)
        return _CubicKernel(
            kernel.step_size, kernel.preconditioner, kernel.noise, kernel.temperature
        )


def test_a_step_that_is_not_affine_is_refused():
    with pytest.raises(ValueError, match="_CubicSampler is not affine"):
        theory.stationary_law(_CubicSampler(0.1), PRECISION)


@pytest.mark.parametrize("precision", [-1.0, [[1.0, 2.0], [2.0, 1.0]]])
def test_a_precision_must_be_positive(precision):
    with pytest.raises(ValueError, match="precision"):
        theory.stationary_law(sghmc.SGLD(0.1), precision)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_entropy_growth_is_that_of_the_evolved_covariance(temperature):
    """dΣ/dt = GΣ + ΣGᵀ + Q, solved by a matrix exponential (Van Loan)."""
    curvature, mass, diffusion = 2.5, 1.7, 0.3
    drift = np.array([[0, 1 / mass], [-curvature, 0]])
    noise = np.diag([0, 2 * diffusion])
    start = temperature * np.diag([1 / curvature, mass])
    times = np.array([0.0, 0.01, 0.7, 3.0, 40.0])
    expected = []
    for time in times:
        blocks = scipy.linalg.expm(time * np.block([[-drift, noise], [np.zeros((2, 2)), drift.T]]))
        flow = blocks[2:, 2:].T
        covariance = flow @ start @ flow.T + flow @ blocks[:2, 2:]
        expected.append(np.log(np.linalg.det(covariance) / np.linalg.det(start)) / 2)
    growth = theory.entropy_growth(times, curvature, mass, diffusion, temperature)
    np.testing.assert_allclose(growth, expected, rtol=1e-9, atol=1e-12)
    assert np.all(np.diff(growth) > 0)


def test_entropy_growth_broadcasts():
    growth = theory.entropy_growth(np.ones((3, 1)), np.arange(1.0, 3.0), 1.0, 0.1)
    assert growth.shape == (3, 2)
    assert growth[0, 1] == theory.entropy_growth(1.0, 2.0, 1.0, 0.1)


def test_chi_squared_is_its_integral():
    covariance, reference = 1.3, 0.9
    x, width = np.linspace(-40, 40, 400_001, retstep=True)
    densities = [
        np.exp(-(x**2) / 2 / variance) / np.sqrt(2 * np.pi * variance)
        for variance in (covariance, reference)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(densities[1] > 1e-280, densities[0] ** 2 / densities[1], 0)
    divergence = theory.chi_squared([[covariance]], [[reference]])
    assert divergence == pytest.approx(ratio.sum() * width - 1, rel=1e-6)


def test_chi_squared_is_infinite_for_tails_twice_as_heavy():
    assert theory.chi_squared(2 * MASS, MASS) == np.inf
    assert theory.chi_squared(2.5 * MASS, MASS) == np.inf
    stacked = theory.chi_squared(np.stack([MASS, 1.1 * MASS]), MASS)
    assert stacked == pytest.approx([0, 1 / 0.99 - 1])


def test_a_new_step_size_does_not_retrace():
    """`stability_limit` and `tune` ask for many: each must cost linear algebra, not compilation."""
    before = theory._differentiate._cached._cache_size()
    for step_size in (0.11, 0.12, 0.13):
        theory.affine_map(sghmc.SGLD(step_size), np.diag([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert theory._differentiate._cached._cache_size() == before + 1
