"""U in double precision on the host: it takes every program that jax takes in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sghmc
from sghmc.posterior.host_potential import HostPotential

ROWS, COLUMNS = np.tril_indices(3)
ORDER = np.array([2, 0, 1, 5, 4, 3])
GROUPS = np.array([0, 1, 0, 2, 2, 1])
MATRIX = np.eye(3) + 0.1
X = np.linspace(-1.0, 1.2, 6)


def scattered(theta):
    return jnp.zeros((3, 3)).at[ROWS, COLUMNS].set(theta)


def positive(theta):
    lower = scattered(theta)
    return lower @ lower.T + jnp.eye(3)


PROGRAMS = {
    "scatter": scattered,
    "scatter, added": lambda x: jnp.zeros(4).at[GROUPS].add(x) ** 2,
    "scatter, largest": lambda x: jnp.zeros(3).at[GROUPS].max(x) ** 2,
    "gather": lambda x: x[ORDER] * x,
    "gather, taken": lambda x: jnp.take(x, ORDER[:3]) ** 2,
    "gather, along an axis": lambda x: jnp.take_along_axis(x, ORDER, 0) * x,
    "segment sum": lambda x: jax.ops.segment_sum(x, GROUPS, num_segments=3) ** 2,
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(x, jnp.argmax(ORDER) - 1, 3) ** 2,
    "cumulative sum": lambda x: jnp.cumsum(x) ** 2,
    "cumulative product": jnp.cumprod,
    "cumulative log-sum": lax.cumlogsumexp,
    "sort": lambda x: jnp.sort(x) * np.arange(6),
    "searchsorted": lambda x: x[jnp.searchsorted(X, 0.3)] ** 2,
    "Cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "determinant": lambda x: jnp.linalg.slogdet(positive(x))[1],
    "solve": lambda x: jnp.linalg.solve(positive(x), x[:3]),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(positive(x) + jnp.diag(np.arange(3.0))),
    "constant matrix": lambda x: MATRIX @ x[:3],
    "scan": lambda x: lax.scan(lambda c, i: (0.5 * c + x[i], c * x[i]), x[0], ORDER)[1],
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i] ** 2 * X[1], jnp.zeros_like(x[0])),
    "branch": lambda x: lax.cond(ORDER[0] > jnp.sum(GROUPS), jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(ORDER[1], [jnp.sin, jnp.exp], x),
    "where": lambda x: jnp.where(GROUPS == 1, x, 2 * x) ** 2,
    "one hot": lambda x: jax.nn.one_hot(GROUPS, 3).T @ x,
    "map": lambda x: lax.map(lambda i: x[i] ** 2, ORDER),
    "einsum": lambda x: jnp.einsum("i,j,ij->", x[:3], x[3:], MATRIX),
}


def summed(program):
    weights = np.array([1.0, 0.7, 1.3, -0.4, 0.9, 0.2, 0.5, 0.8, -0.6])

    def potential(theta):
        out = jnp.ravel(program(theta))
        return jnp.sum(out * weights[: out.size].astype(out.dtype)) + jnp.sum(theta**2)

    return potential


QUICK = ("scatter", "scatter, added", "gather", "segment sum", "cumulative sum", "scan", "branch")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)
def test_any_program_gives_the_same_in_double_precision(name):
    """Single precision first and last: neither program changes what the other sees."""
    potential = summed(PROGRAMS[name])
    theta = jnp.asarray(X, jnp.float32)
    gradient = jax.jit(jax.value_and_grad(potential))
    with jax.numpy_dtype_promotion("standard"):
        value, slope = gradient(theta)
        host = HostPotential(sghmc.Potential(potential), theta)
        values, slopes = host.evaluate(X[None])
        np.testing.assert_allclose(values[0], value, rtol=2e-4)
        np.testing.assert_allclose(slopes[0], slope, rtol=5e-3, atol=2e-4)
        again = jax.jit(jax.value_and_grad(potential))(theta)
    np.testing.assert_array_equal(again[1], slope)
    assert values.dtype == np.float64


def test_factor_analysis_with_numpy_indices_in_a_posterior():
    """The model of the issue: indices by np.tril_indices, first in single, then in double."""
    data = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)

    def log_likelihood(loadings, row):
        return -0.5 * jnp.sum((row - scattered(loadings)[0]) ** 2)

    posterior = sghmc.Posterior(log_likelihood, lambda x: -0.5 * jnp.sum(x**2), data)
    jax.grad(posterior.potential)(jnp.ones(6))
    host = HostPotential(posterior, jnp.ones(6))
    assert np.all(np.isfinite(host.hessian(np.ones(6))))
    jax.eval_shape(lambda p: posterior.potential(p), jnp.ones(6))  # noqa: PLW0108
