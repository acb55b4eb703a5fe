"""Constraints: values inside, inverses, and Jacobians against autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sghmc
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


SPACE = transforms.Space(
    {"sd": transforms.Positive(), "shares": transforms.Simplex(), "nested": None}
)
VALUES = {
    "sd": jnp.asarray([1.5, 0.5]),
    "shares": jnp.asarray([0.2, 0.3, 0.5]),
    "nested": {"a": jnp.asarray(-1.0), "b": jnp.zeros(2)},
    "unnamed": jnp.asarray(3.0),
}


def test_a_space_maps_what_it_names_and_leaves_the_rest():
    params = SPACE.unconstrain(VALUES)
    assert params["shares"].shape == (2,)
    np.testing.assert_allclose(params["sd"], np.log([1.5, 0.5]), rtol=1e-6)
    back = SPACE.constrain(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), back, VALUES)
    expected = transforms.Simplex().log_jacobian(params["shares"]) + np.log(1.5 * 0.5)
    np.testing.assert_allclose(SPACE.log_jacobian(params), expected, rtol=1e-5)
    draws = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf])[None], params)
    assert SPACE.constrain(draws)["shares"].shape == (1, 2, 3)


def test_a_space_refuses_what_it_cannot_read():
    with pytest.raises(TypeError, match=r"Positive\(\).*not 'positive'"):
        transforms.Space({"sd": "positive"})
    with pytest.raises(ValueError, match=r"no parameter 'sd': there are \['scale'\]"):
        transforms.Space({"sd": transforms.Positive()}).constrain({"scale": jnp.ones(())})


def test_densities_are_those_of_the_values():
    """The density of log y, y ~ Gamma(3, rate 2), in closed form, up to rounding."""
    space = transforms.Space(transforms.Positive())
    x = jnp.asarray(0.3)
    y = float(np.exp(0.3))
    target = space.potential(lambda y: -2 * jnp.log(y) + 2 * y)
    np.testing.assert_allclose(target.potential(x), 2 * y - 2 * 0.3 - 0.3, rtol=1e-6)
    posterior = space.posterior(lambda y, row: -row * y, lambda y: 2 * jnp.log(y), jnp.ones(2))
    np.testing.assert_allclose(posterior.potential(x), 2 * y - 2 * 0.3 - 0.3, rtol=1e-6)
    given = space.posterior(
        lambda y, row, hyper: -row * y,
        lambda y, hyper: hyper * jnp.log(y),
        jnp.ones(2),
        hyper=jnp.asarray(2.0),
    )
    np.testing.assert_allclose(given.potential(x), 2 * y - 2 * 0.3 - 0.3, rtol=1e-6)


def test_draws_of_a_dirichlet():
    """Beta marginals of shares: means and spreads are known.

    4,000 draws, at least 2,500 of them independent: 4.5 errors, a false alarm in 10⁵.
    """
    alpha = np.array([2, 3, 5], np.float32)
    space = transforms.Space(transforms.Simplex())
    target = space.potential(lambda y: -jnp.sum((alpha - 1) * jnp.log(y)))
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        "auto",
        jnp.zeros(2),
        num_samples=1000,
        num_chains=4,
        progress=False,
    )
    draws = np.asarray(space.constrain(samples.positions)).reshape(-1, 3)
    for i, a in enumerate(alpha):
        law = stats.beta(a, alpha.sum() - a)
        assert abs(draws[:, i].mean() - law.mean()) < 4.5 * law.std() / np.sqrt(2_500)
        assert abs(draws[:, i].std() / law.std() - 1) < 4.5 / np.sqrt(2 * 2_500)
