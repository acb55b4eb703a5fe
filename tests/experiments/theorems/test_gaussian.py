"""The case on which laws are exact: nothing in it is special, and orders are read off right."""

import numpy as np
import pytest

from sghmc.experiments.theorems import gaussian


def test_the_matrices_hide_no_factor():
    """None commutes with another or is near a multiple of the identity."""
    named = [gaussian.PRECISION, gaussian.MASS, gaussian.FRICTION, gaussian.GRADIENT_NOISE]
    for i, one in enumerate(named):
        assert np.linalg.cond(one) > 1.5
        for other in named[:i]:
            assert np.abs(one @ other - other @ one).max() > 0.05


@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_an_order_is_the_exponent_of_the_step_size(exponent):
    errors = list(0.3 * gaussian.STEP_SIZES**exponent)
    assert gaussian.order(errors) == pytest.approx(exponent)


def test_half_a_drift_back_undoes_half_a_drift():
    z = np.array([0.3, -0.2, 1.0, 2.0])
    velocity = np.linalg.solve(gaussian.MASS, z[2:])
    back = gaussian.half_drift_back(0.2) @ z
    np.testing.assert_allclose(back, [*(z[:2] - 0.1 * velocity), *z[2:]])


def test_block_diagonal():
    joined = gaussian.block_diagonal(gaussian.MASS, gaussian.FRICTION)
    np.testing.assert_array_equal(joined[:2, :2], gaussian.MASS)
    np.testing.assert_array_equal(joined[2:, 2:], gaussian.FRICTION)
    assert not joined[:2, 2:].any()
