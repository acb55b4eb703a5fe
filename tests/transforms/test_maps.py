"""Constraints: values inside, inverses, and Jacobians against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc import transforms
from sghmc.transforms import _log_sech_squared, _triangle_size, checked


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


@pytest.mark.slow_cases("correlation", "covariance", "simplex")
@pytest.mark.parametrize("name", KINDS)
def test_jacobians_are_those_of_autodiff(name):
    transform, size, _ = KINDS[name]
    with jax.enable_x64(True):
        for seed in range(3):
            x = jnp.asarray(np.random.default_rng(seed).normal(size=size) * 1.5)
            matrix = jax.jacobian(lambda x: free_entries(name, transform.forward(x)))(x)
            _, expected = np.linalg.slogdet(matrix)
            np.testing.assert_allclose(transform.log_jacobian(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow_cases("correlation", "covariance", "simplex")
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


@pytest.mark.slow_cases("-30.0-correlation", "30.0-correlation", "30.0-simplex")
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


@pytest.mark.parametrize("name", ["CholeskyCovariance", "CholeskyCorrelation"])
def test_factors_of_a_batch_are_checked_one_by_one(name):
    """Three 2 × 2 factors, of which the last has its second row turned round."""
    transform = getattr(transforms, name)()
    sine, cosine = np.array([0.3, -0.6, 0.8]), np.sqrt(1 - np.array([0.3, -0.6, 0.8]) ** 2)
    factors = np.zeros((3, 2, 2))
    factors[:, 0, 0], factors[:, 1, 0], factors[:, 1, 1] = 1.0, sine, cosine
    assert transform.inverse(factors).shape[0] == 3
    factors[2, 1] *= -1
    with pytest.raises(ValueError, match="with a positive diagonal"):
        transform.inverse(factors)


@pytest.mark.slow
def test_numbers_that_are_no_triangle_are_refused():
    with pytest.raises(ValueError, match=r"4 numbers do not fill a triangle.*\[3, 6, 10\]"):
        transforms.CholeskyCovariance().forward(jnp.zeros(4))
    with pytest.raises(ValueError, match=r"5 numbers do not fill a triangle.*\[1, 3, 6\]"):
        transforms.CholeskyCorrelation().forward(jnp.zeros(5))
    with pytest.raises(ValueError, match="low < high"):
        transforms.Interval(1.0, 1.0)


# Exact values, computed by numpy one entry at a time

X = np.array([0.4, -1.1, 0.7])
"""No number is 0 or 1, and no order of them gives the same result."""


def simplex_by_hand(x):
    """Break the stick entry by entry; the Jacobian is triangular, ∂yᵢ/∂xᵢ = zᵢ(1 − zᵢ) restᵢ."""
    k, rest, shares, log_jacobian = len(x) + 1, 1.0, [], 0.0
    for i, number in enumerate(x, start=1):
        z = 1 / (1 + (k - i) * np.exp(-number))
        log_jacobian += np.log(z * (1 - z) * rest)
        shares.append(z * rest)
        rest -= z * rest
    return np.array([*shares, rest]), log_jacobian


def covariance_by_hand(x):
    factor = np.array([[np.exp(x[0]), 0.0], [x[1], np.exp(x[2])]])
    return factor, x[0] + x[2]


def correlation_by_hand(x):
    """∂Lᵢⱼ/∂xᵢⱼ = (1 − tanh²) √(1 − Σ L² before)."""
    factor, log_jacobian = np.zeros((3, 3)), 0.0
    for i, row in enumerate(([], x[:1], x[1:])):
        left = 1.0
        for j, number in enumerate(row):
            factor[i, j] = np.tanh(number) * np.sqrt(left)
            log_jacobian += np.log((1 - np.tanh(number) ** 2) * np.sqrt(left))
            left -= factor[i, j] ** 2
        factor[i, i] = np.sqrt(left)
    return factor, log_jacobian


BY_HAND = {
    "positive": (np.exp(X), X.sum()),
    "above": (2.5 + np.exp(X), X.sum()),
    "interval": (
        -3 + 4 / (1 + np.exp(-X)),
        np.sum(np.log(4 * np.exp(-X) / (1 + np.exp(-X)) ** 2)),
    ),
    "ordered": (np.array([0.4, 0.4 + np.exp(-1.1), 0.4 + np.exp(-1.1) + np.exp(0.7)]), -1.1 + 0.7),
    "simplex": simplex_by_hand(X),
    "covariance": covariance_by_hand(X),
    "correlation": correlation_by_hand(X),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_values_inverses_and_jacobians_by_hand(name):
    transform, (value, log_jacobian) = KINDS[name][0], BY_HAND[name]
    # Two rows: leading axes stay, and Jacobians add up over them.
    x = np.stack([X, X[::-1]]).astype(np.float32)
    y, first, second, both, back = jax.jit(  # one program, which takes less than its operations
        lambda x: (
            transform.forward(x),
            transform.log_jacobian(x[0]),
            transform.log_jacobian(x[1]),
            transform.log_jacobian(x),
            transform.inverse(transform.forward(x)),
        )
    )(x)
    np.testing.assert_allclose(y[0], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first, log_jacobian, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both, first + second, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-5)


def test_far_out_jacobians_do_not_overflow():
    """log(1 − tanh² x) at |x| = 30, where 1 − tanh² rounds to zero."""
    for number in (30.0, -30.0):
        found = _log_sech_squared(jnp.asarray(number))
        np.testing.assert_allclose(found, 2 * np.log(2) - 60, rtol=1e-6)
    np.testing.assert_allclose(
        _log_sech_squared(jnp.asarray(0.7)), np.log(1 - np.tanh(0.7) ** 2), rtol=1e-5
    )


def test_sizes_of_triangles():
    with_diagonal = [_triangle_size(count, 1) for count in (1, 3, 6, 10, 15)]
    without = [_triangle_size(count, 0) for count in (1, 3, 6, 10, 15)]
    assert (with_diagonal, without) == ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6])
    with pytest.raises(
        ValueError, match=r"4 numbers do not fill a triangle.*sizes 2, 3, 4 have \[3, 6, 10\]"
    ):
        _triangle_size(4, 1)
    with pytest.raises(
        ValueError, match=r"5 numbers do not fill a triangle.*sizes 2, 3, 4 have \[1, 3, 6\]"
    ):
        _triangle_size(5, 0)


HALF = np.sqrt(0.5)
ON_THE_EDGE = {  # of each kind one value that is refused, and one next to it that is not
    "positive": ([0.0, 2.0], [1e-3, 2.0]),
    "above": ([2.5, 3.0], [2.6, 3.0]),
    "interval, low": ([-3.0, 0.5], [-2.9, 0.5]),
    "interval, high": ([0.5, 1.0], [0.5, 0.9]),
    "ordered": ([1.0, 1.0, 2.0], [1.0, 1.1, 2.0]),
    "ordered, at its end": ([0.5, 1.0, 0.9], [0.5, 1.0, 1.1]),
    "simplex": ([0.0, 0.4, 0.6], [0.1, 0.3, 0.6]),
    "simplex, sum": ([0.1, 0.3, 0.601], [0.1, 0.3, 0.60005]),
    "simplex, sum below": ([0.1, 0.3, 0.599], [0.1, 0.3, 0.59995]),
    "covariance": ([[2.0, 0.1], [0.3, 2.0]], [[2.0, 0.0], [0.3, 2.0]]),
    "covariance, diagonal": ([[0.0, 0.0], [0.3, 2.0]], [[0.1, 0.0], [0.3, 2.0]]),
    "correlation": ([[1.0, 0.01], [HALF, HALF]], [[1.0, 0.0], [HALF, HALF]]),
    "correlation, diagonal": ([[1.0, 0.0], [HALF, -HALF]], [[1.0, 0.0], [-HALF, HALF]]),
    "correlation, length": ([[1.0, 0.0], [0.6, 0.801]], [[1.0, 0.0], [0.6, 0.8]]),
}


@pytest.mark.parametrize("name", ON_THE_EDGE)
def test_where_values_begin_to_be_refused(name, monkeypatch):
    """Only the check itself: what comes after it is compiled in other tests."""
    refused, accepted = (np.array(value, np.float32) for value in ON_THE_EDGE[name])

    class Passed(Exception):
        pass

    def only_checked(y, is_inside, words):
        checked(y, is_inside, words)
        raise Passed

    for module in (transforms, transforms, transforms):
        monkeypatch.setattr(module, "checked", only_checked)
    transform = KINDS[name.partition(",")[0]][0]
    with pytest.raises(Passed):
        transform.inverse(accepted)
    with pytest.raises(ValueError, match=r"The value must be .*, but is "):
        transform.inverse(refused)
    with pytest.raises(ValueError, match="The value must be"):  # one of several
        transform.inverse(np.stack([accepted, refused]))


def test_intervals_need_two_ends():
    for low, high in ((1.0, 1.0), (2.0, 1.5)):
        with pytest.raises(ValueError, match=f"low < high, but they are {low} and {high}"):
            transforms.Interval(low, high)
    assert (transforms.Interval().low, transforms.Interval().high) == (0.0, 1.0)
    assert transforms.Positive().low == 0.0
