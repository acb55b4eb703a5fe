"""The case on which laws are exact: nothing in it is special, and orders are read off right."""

import numpy as np
import pytest

from sghmc.paper.theorems import statement


def test_the_matrices_hide_no_factor():
    """None commutes with another or is near a multiple of the identity."""
    named = [statement.PRECISION, statement.MASS, statement.FRICTION, statement.GRADIENT_NOISE]
    for i, one in enumerate(named):
        assert np.linalg.cond(one) > 1.5
        for other in named[:i]:
            assert np.abs(one @ other - other @ one).max() > 0.05


@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_an_order_is_the_exponent_of_the_step_size(exponent):
    errors = list(0.3 * statement.STEP_SIZES**exponent)
    assert statement.order(errors) == pytest.approx(exponent)


def test_half_a_drift_back_undoes_half_a_drift():
    z = np.array([0.3, -0.2, 1.0, 2.0])
    velocity = np.linalg.solve(statement.MASS, z[2:])
    back = statement.half_drift_back(0.2) @ z
    np.testing.assert_allclose(back, [*(z[:2] - 0.1 * velocity), *z[2:]])


def test_block_diagonal():
    joined = statement.block_diagonal(statement.MASS, statement.FRICTION)
    np.testing.assert_array_equal(joined[:2, :2], statement.MASS)
    np.testing.assert_array_equal(joined[2:, 2:], statement.FRICTION)
    assert not joined[:2, 2:].any()
