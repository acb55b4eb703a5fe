"""What a pencil of two matrices knows: functions of it are those of dense matrices, by NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from sghmc.core import matrices, tree
from sghmc.core.matrices import Dense, Diagonal

LIKE = {"a": jnp.zeros(2), "b": jnp.zeros(())}
SIZES = [2, 1]
A = np.array([[1.9, 0.4, -0.3], [0.4, 1.3, 0.2], [-0.3, 0.2, 0.8]])
B = np.array([[0.7, -0.2, 0.1], [-0.2, 1.6, 0.3], [0.1, 0.3, 0.5]])
OUTER = np.array([[1.2, 0.5, 0.0], [0.5, 2.1, 0.1], [0.0, 0.1, 0.6]])
VECTOR = np.array([0.7, -1.3, 2.2])


def made(kind, outer=True) -> tuple[Any, ...]:
    """A pencil, and its A, B and outer as arrays."""
    arrays = [A, B, OUTER if outer else np.eye(3)]
    if kind == "diagonal":
        arrays = [np.diag(np.diag(each)) for each in arrays]
        given = [Diagonal([np.diag(each)[:2], np.diag(each)[2]]) for each in arrays]
    else:
        given = [Dense(each) for each in arrays]
    found = matrices.pencil(given[0], given[1], SIZES, "mass", outer=given[2])
    return matrices.finish(found, jnp.float32), *arrays


def function(scale):
    """Of the pencil's rates: neither linear nor odd."""
    return jnp.exp(-scale) + 0.3 * scale**2


def of_matrix(rates):
    """The same function of the matrix A⁻¹B."""
    values, vectors = np.linalg.eig(rates)
    return (vectors * np.asarray(function(np.real(values)))) @ np.linalg.inv(vectors)


def jacobian(linear):
    rows = [tree.ravel(linear(tree.unravel(row, LIKE))) for row in jnp.eye(3)]
    return np.asarray(jnp.stack(rows), float).T


@pytest.fixture(params=["diagonal", "dense"])
def kind(request):
    return request.param


def test_a_function_of_the_rates_acts_on_vectors_and_spreads_normals(kind):
    pencil, a, b, _ = made(kind, outer=False)
    wanted = of_matrix(np.linalg.solve(a, b))
    found = jacobian(lambda vector: pencil.apply(function, vector))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    root = jacobian(lambda vector: pencil.spread(function, vector))
    np.testing.assert_allclose(
        root @ root.T, wanted @ wanted @ np.linalg.inv(a), rtol=1e-4, atol=1e-5
    )


def test_roots_inverse_roots_and_quadratic_forms(kind):
    pencil, a, b, outer = made(kind)
    x, y = 2.3, 0.4
    root = jacobian(lambda vector: pencil.sqrt(x, y, vector))
    np.testing.assert_allclose(root @ root.T, outer @ (x * a - y * b) @ outer.T, rtol=1e-4)
    pencil, a, b, _ = made(kind, outer=False)
    combined = x * a - y * b
    root = jacobian(lambda vector: pencil.inverse_sqrt(x, y, vector))
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(combined), rtol=1e-4, atol=1e-5)
    value = pencil.quadratic(x, y, tree.unravel(jnp.asarray(VECTOR, jnp.float32), LIKE))
    assert value == pytest.approx(VECTOR @ combined @ VECTOR, rel=1e-4)


def test_the_largest_rate_before_and_inside_of_a_program(kind):
    pencil, a, b, _ = made(kind)
    worst = scipy.linalg.eigh(b, a, eigvals_only=True)[-1]
    assert pencil.largest == pytest.approx(worst, rel=1e-5)
    assert pencil.largest_now() == pytest.approx(worst, rel=1e-5)


def test_a_leaf_without_entries_is_no_rate():
    first, second = Diagonal([np.ones((0, 3)), 2.0]), Diagonal([np.ones((0, 3)), 3.0])
    pencil = matrices.DiagonalPencil(first, second, Diagonal([1.0, 1.0]))
    assert pencil.largest == pencil.largest_now() == 1.5


def test_where_nothing_is_needed_nothing_is_divided():
    """0/0 of a friction of 0 without noise is 0, and noise without friction infinite."""
    first = Diagonal([np.array([2.0, 0.0]), np.asarray(4.0)])
    second = Diagonal([np.array([1.0, 0.0]), np.asarray(3.0)])
    pencil = matrices.DiagonalPencil(first, second, Diagonal([1.0, 1.0]))
    assert pencil.largest == 0.75
    brought = Diagonal([np.array([1.0, 0.5]), np.asarray(3.0)])
    assert pencil.with_second(brought).largest == np.inf


def test_another_second_matrix_and_a_raised_first_one(kind):
    pencil, a, b, outer = made(kind)
    other = 1.7 * b + 0.2 * (a if kind == "dense" else np.diag(np.diag(a)))
    entries = jnp.asarray(other if kind == "dense" else np.diag(other), jnp.float32)
    with_other = pencil.with_second(matrices.from_entries(entries, SIZES))
    root = jacobian(lambda vector: with_other.sqrt(2.3, 0.2, vector))
    wanted = outer @ (2.3 * a - 0.2 * other) @ outer.T
    np.testing.assert_allclose(root @ root.T, wanted, rtol=1e-4, atol=1e-5)
    # A in a basis where B is diag(λ), times max(1, λ/limit).
    values, basis = scipy.linalg.eigh(other, a)
    limit = float(values.mean())
    assert values[0] < limit < values[-1]
    factor = a @ basis
    higher = (factor * np.maximum(1, values / limit)) @ factor.T
    raised = with_other.raised(jnp.asarray(limit))
    root = jacobian(lambda vector: raised.sqrt(2.3, 0.2, vector))
    wanted = outer @ (2.3 * higher - 0.2 * other) @ outer.T
    np.testing.assert_allclose(root @ root.T, wanted, rtol=1e-4, atol=1e-5)
    product = jacobian(lambda vector: raised.outer_first() @ vector)
    np.testing.assert_allclose(product, outer @ higher, rtol=1e-4, atol=1e-5)
    first = jacobian(lambda vector: raised.first @ vector)
    np.testing.assert_allclose(first, higher, rtol=1e-4, atol=1e-5)
    assert raised.largest_now() == pytest.approx(limit, rel=1e-4)


def test_without_an_outer_matrix_it_is_the_identity():
    diagonal = matrices.pencil(Diagonal([2.0, 3.0]), Diagonal([1.0, 0.5]), SIZES, "mass")
    assert isinstance(diagonal, matrices.DiagonalPencil)
    assert diagonal.outer.values == (1.0, 1.0)
    dense = matrices.finish(matrices.pencil(Dense(A), Dense(B), SIZES, "mass"), jnp.float32)
    root = jacobian(lambda vector: dense.sqrt(1.0, 0.0, vector))
    np.testing.assert_allclose(root @ root.T, A, rtol=1e-4, atol=1e-5)


def test_a_singular_first_matrix_has_no_inverse_root():
    singular = Dense(np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]))
    nothing = matrices.scaled(singular, 0.0)
    found = matrices.pencil(singular, nothing, SIZES, "mass")
    assert isinstance(found, matrices.DensePencil)
    assert np.isnan(found.inverse_root).all()
    regular = matrices.pencil(Dense(A), matrices.scaled(Dense(A), 0.0), SIZES, "mass")
    assert isinstance(regular, matrices.DensePencil)
    np.testing.assert_allclose(regular.inverse_root @ regular.root, np.eye(3), atol=1e-12)
    assert not regular.eigenvalues.any()


def test_a_negative_number_under_a_root_is_rounding():
    edge = Diagonal([np.array([1.0, 4.0]), np.asarray(9.0)])
    pencil = matrices.DiagonalPencil(edge, edge, Diagonal([1.0, 1.0]))
    normals = jax.tree.map(jnp.ones_like, LIKE)
    np.testing.assert_array_equal(tree.ravel(pencil.sqrt(1.0, 1.5, normals)), np.zeros(3))
