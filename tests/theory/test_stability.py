"""Where a step becomes unstable, against closed forms."""

import numpy as np
import pytest
import scipy.linalg

import sghmc
from sghmc import theory

PRECISION = np.array([[2.0, 0.6], [0.6, 0.7]])
MASS = np.array([[1.5, -0.4], [-0.4, 0.8]])
FRICTION = np.array([[0.9, 0.3], [0.3, 2.1]])


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
