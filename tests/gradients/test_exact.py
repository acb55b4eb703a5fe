"""Exact gradients, and gradients with noise of a known covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import random, tree
from sghmc.gradients import KeyedEstimator

LIKE = {"a": jnp.array([0.3, -0.2]), "b": jnp.asarray(0.5)}
TARGET = sghmc.Potential(lambda p: jnp.sum(p["a"] ** 2) * p["b"] + p["b"] ** 3)
DENSE = np.array([[2.0, 0.7, 0.1], [0.7, 1.0, -0.3], [0.1, -0.3, 0.5]])


def test_the_exact_gradient_is_that_of_the_target_at_every_batch():
    estimator = sghmc.FullBatch().prepare(TARGET, LIKE)
    oracle = estimator.oracle(TARGET, [])
    assert oracle.is_exact
    moved = {"a": LIKE["a"], "b": jnp.asarray(0.9)}
    (value, grad), exact, change = jax.jit(
        lambda p, new: (oracle(3, p), oracle.potential(p), oracle.change(p, new).known)
    )(LIKE, moved)
    np.testing.assert_allclose(value, 0.13 * 0.5 + 0.125, rtol=1e-6)
    np.testing.assert_allclose(exact, value, rtol=1e-6)
    np.testing.assert_allclose(grad["a"], [0.3, -0.2], rtol=1e-6)
    np.testing.assert_allclose(grad["b"], 0.13 + 0.75, rtol=1e-6)
    np.testing.assert_allclose(change, 0.13 * 0.4 + 0.729 - 0.125, rtol=1e-5)


def test_a_stochastic_potential_gets_keys():
    noisy = sghmc.Potential(lambda p, key: jnp.sum(p), stochastic=True)
    assert isinstance(sghmc.FullBatch().prepare(noisy, LIKE), KeyedEstimator)
    assert not isinstance(sghmc.FullBatch().prepare(TARGET, LIKE), KeyedEstimator)


@pytest.mark.parametrize(
    ("variance", "covariance"),
    [
        ({"a": np.array([0.5, 2.0]), "b": 3.0}, np.diag([0.5, 2.0, 3.0])),
        (DENSE, DENSE),
        (1.7, 1.7 * np.eye(3)),
    ],
    ids=["diagonal", "dense", "scalar"],
)
def test_noise_is_the_root_of_its_covariance_times_the_normals_of_its_evaluation(
    variance, covariance
):
    """The second of two evaluations: the Jacobian in its own normals, nothing from the others."""
    estimator = sghmc.NoisyGradient(variance).prepare(TARGET, LIKE)
    normals = [jnp.zeros(4), jnp.zeros(2)]

    @jax.jit
    def facts(normals):
        oracle = estimator.oracle(TARGET, normals)
        seen, slope = oracle(1, LIKE), lambda n: tree.ravel(estimator.oracle(TARGET, n)(1, LIKE)[1])
        return seen, jax.jacobian(slope)(normals)

    (value, grad), parts = facts(normals)
    np.testing.assert_allclose(value, 0.13 * 0.5 + 0.125, rtol=1e-6)
    np.testing.assert_allclose([*grad["a"], grad["b"]], [0.3, -0.2, 0.88], rtol=1e-5)
    root = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(root @ root.T, covariance, atol=1e-5)
    np.testing.assert_array_equal(root[:, [0, 1, 4]], 0)
    assert np.abs(root[:, 2:4]).max() > 0.1
    assert not estimator.oracle(TARGET, normals).is_exact


def test_a_step_has_normals_for_each_of_its_evaluations():
    estimator = sghmc.NoisyGradient(1.7).prepare(TARGET, LIKE)
    key = random.words(jax.random.key(5))
    found = estimator.draw(key, 2, 1, 3, LIKE)
    assert [leaf.size for leaf in found] == [6, 3]
    expected = random.normals_like(key, 2, 1, LIKE, copies=3)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_negative_variance_is_refused():
    with pytest.raises(ValueError, match="variance"):
        sghmc.NoisyGradient(-1.0).prepare(TARGET, LIKE)
