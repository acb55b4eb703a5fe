"""Constraints: values inside, inverses, and Jacobians against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc import transforms


def rows_of_length_one(y):
    return np.allclose(np.linalg.norm(y, axis=-1), 1, atol=1e-6)


def free_entries(name, y):
    """The entries of a value that determine all others."""
    if name == "simplex":
        return y[..., :-1]
    if name == "correlation":
        return y[..., *np.tril_indices(y.shape[-1], -1)]
    if name == "covariance":
        return y[..., *np.tril_indices(y.shape[-1])]
    return y


KINDS = {
    "positive": (transforms.Positive(), 3, lambda y: np.all(y > 0)),
    "above": (transforms.Positive(2.5), 3, lambda y: np.all(y > 2.5)),
    "interval": (transforms.Interval(-3.0, 1.0), 3, lambda y: np.all((y > -3) & (y < 1))),
    "ordered": (transforms.Ordered(), 4, lambda y: np.all(np.diff(y) > 0)),
    "simplex": (transforms.Simplex(), 4, lambda y: np.all(y > 0) and abs(y.sum() - 1) < 1e-6),
    "covariance": (
        transforms.CholeskyCovariance(),
        6,
        lambda y: np.allclose(y, np.tril(y)) and np.all(np.diag(y) > 0),
    ),
    "correlation": (
        transforms.CholeskyCorrelation(),
        6,
        lambda y: np.allclose(y, np.tril(y)) and np.all(np.diag(y) > 0) and rows_of_length_one(y),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_jacobians_are_those_of_autodiff(name):
    transform, size, _ = KINDS[name]
    with jax.enable_x64(True):
        for seed in range(3):
            x = jnp.asarray(np.random.default_rng(seed).normal(size=size) * 1.5)
            matrix = jax.jacobian(lambda x: free_entries(name, transform.forward(x)))(x)
            _, expected = np.linalg.slogdet(matrix)
            np.testing.assert_allclose(transform.log_jacobian(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_values_are_inside_and_lead_back(name):
    transform, size, is_inside = KINDS[name]
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(2, 5, size)) * 2
        y = transform.forward(jnp.asarray(x))
        assert y.shape[:2] == (2, 5)
        assert all(is_inside(np.asarray(each)) for each in y.reshape(10, *y.shape[2:]))
        np.testing.assert_allclose(transform.inverse(y), x, rtol=1e-6, atol=1e-7)
        # An array of draws is mapped as its entries are.
        np.testing.assert_allclose(y[1, 3], transform.forward(jnp.asarray(x[1, 3])), rtol=1e-12)
        both = transform.log_jacobian(jnp.asarray(x[0, 0])) + transform.log_jacobian(
            jnp.asarray(x[0, 1])
        )
        np.testing.assert_allclose(transform.log_jacobian(jnp.asarray(x[0, :2])), both, rtol=1e-12)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [30.0, -30.0])
def test_far_out_nothing_but_the_value_rounds(name, size):
    """Single precision, |x| = 30: Jacobians and their slopes stay finite."""
    transform, count, _ = KINDS[name]
    x = jnp.full(count, size)
    value, slope = jax.value_and_grad(transform.log_jacobian)(x)
    assert np.isfinite(value)
    assert np.all(np.isfinite(slope))
    assert np.all(np.isfinite(transform.forward(x)))


OUTSIDE = {
    "positive": (-1.0, "above 0"),
    "above": (2.0, "above 2.5"),
    "interval": (1.5, "between -3 and 1"),
    "ordered": ([1.0, 0.5], "rising"),
    "simplex": ([0.5, 0.6], "add to 1"),
    "covariance": ([[1.0, 0.0], [0.3, -2.0]], "positive diagonal"),
    "correlation": ([[1.0, 0.0], [0.3, 0.3]], "length 1"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_outside_are_refused(name):
    value, words = OUTSIDE[name]
    with pytest.raises(ValueError, match=words):
        KINDS[name][0].inverse(jnp.asarray(value))


def test_numbers_that_are_no_triangle_are_refused():
    with pytest.raises(ValueError, match=r"4 numbers are no triangle.*\[3, 6, 10\]"):
        transforms.CholeskyCovariance().forward(jnp.zeros(4))
    with pytest.raises(ValueError, match=r"5 numbers are no triangle.*\[1, 3, 6\]"):
        transforms.CholeskyCorrelation().forward(jnp.zeros(5))
    with pytest.raises(ValueError, match="low < high"):
        transforms.Interval(1.0, 1.0)
