"""The kernel Stein discrepancy, against its definition and on right and wrong draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results.scores import _stein_kernel

TARGET = sghmc.Potential(lambda p: 0.5 * jnp.sum(p["a"] ** 2) + jnp.sum(jnp.cosh(p["b"])))


@pytest.mark.slow
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


@pytest.mark.slow
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


def stein_by_hand(x, score, width):
    """k_p of all pairs in NumPy, from the derivatives of k = (1 + ‖x − y‖²/h)^(−½)."""
    found = np.empty((len(x), len(x)))
    for i, j in np.ndindex(found.shape):
        away = x[i] - x[j]
        base = 1 + away @ away / width
        by_x = -away / width * base**-1.5
        mixed = x.shape[1] / width * base**-1.5 - 3 * away @ away / width**2 * base**-2.5
        found[i, j] = score[i] @ score[j] * base**-0.5 - score[i] @ by_x + score[j] @ by_x + mixed
    return found


def test_the_kernel_the_value_and_the_p_value_by_hand():
    """Six draws of two chains, of which every other is compared."""
    target = sghmc.Potential(lambda p: 0.5 * jnp.sum(p["a"] ** 2 * jnp.array([1.0, 3.0])))
    draws = np.random.default_rng(0).normal(size=(2, 4, 2)).astype(np.float32) + np.array(
        [0.4, 0.0]
    )
    chosen = np.linspace(0, 7, 5).astype(int)
    rows = draws.reshape(8, 2)[chosen].astype(np.float32)
    scale = rows.std(0)
    x, score = rows / scale, -rows * [1.0, 3.0] * scale
    squares = np.sum((x[:, None] - x[None]) ** 2, -1)
    expected = stein_by_hand(x, score, np.median(squares))
    kernel = _stein_kernel(target, {"a": jnp.asarray(rows)})
    np.testing.assert_allclose(kernel, expected, rtol=1e-3, atol=1e-3)

    found = sghmc.kernel_stein_discrepancy(jax.random.key(5), target, {"a": draws}, num_draws=5)
    assert found.value == pytest.approx(np.sqrt(max(expected.mean(), 0)), rel=1e-3)
    signs = np.asarray(jax.random.rademacher(jax.random.key(5), (1_000, 5), np.float32))
    chance = np.array([s @ expected @ s for s in signs]) / 25
    share = (1 + np.sum(chance >= expected.mean() - 1e-5)) / 1_001
    assert found.p_value == pytest.approx(share, abs=0.003)


def test_draws_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="in pairs, but there are 1 draws"):
        sghmc.kernel_stein_discrepancy(jax.random.key(0), TARGET, np.zeros((1, 1, 3)))
    wall = sghmc.Potential(lambda x: jnp.sum(jnp.log(x)))
    with pytest.raises(ValueError, match="not finite at some draws"):
        sghmc.kernel_stein_discrepancy(jax.random.key(0), wall, np.zeros((1, 3, 2), np.float32))
