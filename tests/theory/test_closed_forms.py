"""Closed forms against laws, integrals and evolved covariances."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import sghmc
from sghmc import theory

MASS = np.array([[1.5, -0.4], [-0.4, 0.8]])


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
