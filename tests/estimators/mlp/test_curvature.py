"""Curvatures of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators.mlp.curvature import activate, largest_curvatures
from sghmc.estimators.rows import Rows


def test_curvatures_are_those_of_the_hessian():
    """For a network without hidden layers Gauss–Newton and Hessian are the same."""
    generator = np.random.default_rng(0)
    rows = Rows(generator.normal(size=(9, 2)), np.arange(9) % 3, generator.random(9))
    params = [{"weight": generator.normal(size=(2, 3)), "bias": generator.normal(size=3)}]

    def potential(weight):
        outputs = rows.x @ weight + params[0]["bias"][None]
        return -jnp.sum(rows.weight * jax.nn.log_softmax(outputs)[np.arange(9), rows.y])

    hessian = jax.hessian(potential)(params[0]["weight"]).reshape(6, 6)
    found = largest_curvatures(params, rows, "relu")[0]["weight"]
    assert found == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=0.05)


@pytest.mark.parametrize("name", ["relu", "tanh", "silu"])
def test_slopes_are_derivatives(name):
    z = np.random.default_rng(0).normal(size=(4, 3))
    slope = (activate(name, z + 1e-6)[0] - activate(name, z - 1e-6)[0]) / 2e-6
    np.testing.assert_allclose(activate(name, z)[1], slope, rtol=1e-5, atol=1e-8)
