"""Curvatures of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators.networks import activate, largest_curvatures
from sghmc.estimators.weighted_rows import WeightedRows


@pytest.mark.slow
def test_curvatures_are_those_of_the_hessian():
    """For a network without hidden layers Gauss–Newton and Hessian are the same."""
    generator = np.random.default_rng(0)
    rows = WeightedRows(generator.normal(size=(9, 2)), np.arange(9) % 3, generator.random(9))
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


def test_curvatures_are_eigenvalues_of_gauss_newton_blocks():
    """JᵀHJ by differences, with a hidden layer; six power steps reach the largest to 5 %."""
    generator = np.random.default_rng(1)
    rows = WeightedRows(generator.normal(size=(6, 2)), np.arange(6) % 3, generator.random(6) + 0.5)
    shapes = ((2, 4), (4, 3))
    params = [
        {"weight": generator.normal(size=s), "bias": generator.normal(size=s[1])} for s in shapes
    ]

    def outputs():
        hidden, _ = activate("tanh", rows.x @ params[0]["weight"] + params[0]["bias"])
        return hidden @ params[1]["weight"] + params[1]["bias"]

    p = np.exp(outputs())
    p /= p.sum(1, keepdims=True)
    found = largest_curvatures(params, rows, "tanh")
    for layer, curvatures in zip(params, found, strict=True):
        for name, value in curvatures.items():
            flat, columns = layer[name].reshape(-1), []
            for k in range(flat.size):
                flat[k] += 1e-6
                after = outputs()
                flat[k] -= 2e-6
                columns.append((after - outputs()) / 2e-6)
                flat[k] += 1e-6
            jacobian = np.stack(columns, -1)
            total = sum(
                w * j.T @ (np.diag(q) - np.outer(q, q)) @ j
                for w, j, q in zip(rows.weight, jacobian, p, strict=True)
            )
            assert value == pytest.approx(np.linalg.eigvalsh(total)[-1], rel=0.05)
