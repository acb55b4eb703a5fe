"""The kernel Stein discrepancy, against its definition and on right and wrong draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results.stein import _stein_kernel

TARGET = sghmc.Potential(lambda p: 0.5 * jnp.sum(p["a"] ** 2) + jnp.sum(jnp.cosh(p["b"])))


def test_the_stein_kernel_is_that_of_its_definition():
    points = {
        "a": jax.random.normal(jax.random.key(0), (5, 2)),
        "b": jax.random.normal(jax.random.key(1), (5,)),
    }
    rows = np.concatenate([points["a"], points["b"][:, None]], 1)
    scale = rows.std(0)
    x = jnp.asarray(rows / scale)
    away = x[:, None] - x[None]
    width = jnp.median(jnp.sum(away**2, -1))

    def kernel(x, y):
        return (1 + jnp.sum((x - y) ** 2) / width) ** -0.5

    def log_density(x):
        z = x * scale
        return -0.5 * jnp.sum(z[:2] ** 2) - jnp.cosh(z[2])

    def stein(x, y):
        s, r = jax.grad(log_density)(x), jax.grad(log_density)(y)
        mixed = jax.jacfwd(jax.grad(kernel, 0), 1)(x, y)
        return (
            s @ r * kernel(x, y)
            + s @ jax.grad(kernel, 1)(x, y)
            + r @ jax.grad(kernel, 0)(x, y)
            + jnp.trace(mixed)
        )

    expected = jax.vmap(lambda a: jax.vmap(lambda b: stein(a, b))(x))(x)
    np.testing.assert_allclose(_stein_kernel(TARGET, points), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.5, 1.0), (0.0, 1.5), (0.0, 0.6)])
def test_right_draws_pass_and_wrong_ones_do_not(shift, scale):
    target = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
    draws = shift + scale * jax.random.normal(jax.random.key(2), (4, 250, 3))
    result = sghmc.kernel_stein_discrepancy(jax.random.key(3), target, draws)
    is_right = (shift, scale) == (0.0, 1.0)
    # Under right draws p < 0.01 in one run of a hundred; the key is fixed.
    assert (result.p_value > 0.01) == is_right
    assert result.value > 0


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="Posterior or a Potential"):
        sghmc.kernel_stein_discrepancy(jax.random.key(0), lambda p: 0.0, np.zeros((2, 3, 1)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="axes"):
        sghmc.kernel_stein_discrepancy(jax.random.key(0), TARGET, np.zeros(3))
