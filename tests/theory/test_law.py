"""`stationary_law` against published numbers and closed forms.

The laws of the samplers themselves are judged in `samplers/test_laws.py`.
"""

import dataclasses

import numpy as np
import pytest

import sghmc
from sghmc import theory

PRECISION = np.array([[2.0, 0.6], [0.6, 0.7]])
MASS = np.array([[1.5, -0.4], [-0.4, 0.8]])
FRICTION = np.array([[0.9, 0.3], [0.3, 2.1]])


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


@pytest.mark.slow
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


def test_a_chain_without_noise_has_no_autocorrelation():
    law = theory.stationary_law(sghmc.Momentum(0.1, 0.2), PRECISION)
    np.testing.assert_array_equal(law.state_covariance, 0)
    assert np.isnan(law.autocorrelation_time).all()


def test_an_unstable_step_is_refused_with_numbers():
    sampler = sghmc.HMC(3.0, 1, 2.0, metropolis=False)  # the factor is 1 − ε²h/2m = −3.5
    with pytest.raises(ValueError, match=r"unstable.* spectral radius of a step is 3.5 .*_limit"):
        theory.stationary_law(sampler, 2.0)
    with pytest.raises(ValueError, match=f"{2.0:.6g}; a chain"):
        theory.stationary_law(sampler, 2.0)


def test_a_chain_without_friction_is_refused():
    with pytest.raises(ValueError, match="never forgets its start"):
        theory.stationary_law(sghmc.SGHMC(0.1, friction=0.0), PRECISION)
