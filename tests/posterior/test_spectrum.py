import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.posterior.curvature import hessian_spectrum


def seen_of(matrix):
    def gradient(params):
        return {"w": (matrix @ params["w"].ravel()).reshape(params["w"].shape)}

    center = {"w": jnp.ones((len(matrix) // 4, 4))}
    return hessian_spectrum(jax.random.key(3), gradient, center)


@pytest.mark.slow
def test_a_small_matrix_is_known_to_its_ends():
    root = np.random.default_rng(0).normal(size=(20, 20))
    matrix = jnp.asarray(root @ root.T - 2 * np.eye(20), jnp.float32)
    values = np.linalg.eigvalsh(matrix)
    found = seen_of(matrix)
    np.testing.assert_allclose(found.largest, values[-1], rtol=1e-4)
    np.testing.assert_allclose(found.least, values[0], rtol=1e-3)


def test_the_effective_number_of_directions():
    """Of 800, 200 have curvatures 1 to 4 in random directions: the trace is known to √(2/800)."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(800, 200)))[0]
    values = np.linspace(1, 4, 200)
    found = seen_of(jnp.asarray(basis * values @ basis.T, jnp.float32))
    np.testing.assert_allclose(found.counts.sum(), 800)
    for ridge in (0.01, 0.5):
        exact = np.sum(values / (values + ridge))
        np.testing.assert_allclose(found.effective(ridge), exact, rtol=0.2)


@pytest.mark.slow
def test_no_curvature_counts_nothing():
    found = seen_of(jnp.zeros((8, 8)))
    assert found.largest == 0
    assert found.effective(1.0) == 0
