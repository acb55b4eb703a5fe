"""Laws of one step and of cycles of steps, against brute force."""

import numpy as np
import pytest

import sghmc
from sghmc import theory
from sghmc.paper.literal import LiteralSGHMC
from sghmc.theory import affine as cycles

PRECISION = np.array([[2.0, 0.6], [0.6, 0.7]])
MASS = np.array([[1.5, -0.4], [-0.4, 0.8]])
FRICTION = np.array([[0.9, 0.3], [0.3, 2.1]])


SAMPLERS = {
    "sghmc": sghmc.SGHMC(0.3, FRICTION, MASS, temperature=0.7),
    "sgld": sghmc.SGLD(0.2, FRICTION, temperature=0.7),
    "repaired": sghmc.SGHMC(0.3, FRICTION, MASS, temperature=0.7, resample_every=4),
    "literal": LiteralSGHMC(0.3, FRICTION, MASS, temperature=0.7, resample_every=3),
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
        covariance = cycles.propagate(cycle[i % period], covariance)
    mean = lagged = np.zeros_like(covariance)
    for p in range(period):
        mean = mean + covariance / period
        later = covariance
        for s in range(1200):
            later = cycle[(p + s) % period].transition @ later
            lagged = lagged + later / period
        covariance = cycles.propagate(cycle[p], covariance)
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
