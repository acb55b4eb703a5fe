"""What is computed in double precision does not ask how strict a user's program is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import theory
from sghmc.core.runtime import double_precision, widened


def test_numbers_of_different_precision_meet():
    with jax.numpy_dtype_promotion("strict"), double_precision():
        total = jnp.ones((), jnp.float32) + jnp.ones((), jnp.float64)
    assert total.dtype == np.float64


@pytest.mark.slow
def test_runs_and_their_health_under_strict_promotion():
    target = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
    sampler = sghmc.SGHMC(0.1, friction=1.0)
    with jax.numpy_dtype_promotion("strict"):
        samples = sghmc.sample(
            jax.random.key(0), target, sampler, jnp.zeros(2), num_samples=4, progress=False
        )
        health = samples.health()
        law = theory.stationary_law(sampler, np.eye(2))
    assert health.predicted_error is not None
    assert abs(health.predicted_error) < 0.01
    np.testing.assert_allclose(law.covariance, np.eye(2), atol=0.01)


def test_arrays_of_real_numbers_are_widened_and_nothing_else():
    for array in (np.ones(2, np.float32), jnp.ones(2, jnp.bfloat16)):
        found = widened(array)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, [1, 1])
    integers = np.arange(2)
    assert widened(integers) is integers
    assert widened("text") == "text"
    assert widened(0.5) == 0.5
