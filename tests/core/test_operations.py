"""Operations of a function, counted by hand and by program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from sghmc.core.operations import count_operations

X = jax.ShapeDtypeStruct((10, 20), jnp.float32)
Y = jax.ShapeDtypeStruct((20, 30), jnp.float32)


def test_products_sums_and_functions_by_hand():
    assert count_operations(lambda x, y: x @ y, X, Y).elementary == 2 * 10 * 20 * 30
    assert count_operations(lambda x: jnp.sum(x), X).elementary == 200  # noqa: PLW0108
    assert count_operations(jnp.exp, X).elementary == 8 * 200
    assert count_operations(lambda x: x + 1, X).equations == 1


def test_loops_count_every_iteration():
    def scanned(x):
        return lax.scan(lambda carry, row: (carry + row, None), x[0], x)[0]

    found = count_operations(scanned, X)
    assert found.iterations == 10
    assert found.elementary == pytest.approx(10 * 20, rel=0.2)
    nested = count_operations(lambda x: lax.map(scanned, jnp.stack([x] * 7)), X)
    assert nested.iterations == 7 * (1 + 10)


def test_branches_count_by_the_dearest():
    def branch(x):
        return lax.cond(x[0, 0] > 0, jnp.exp, lambda x: x, x)

    assert count_operations(branch, X).elementary >= 8 * 200
