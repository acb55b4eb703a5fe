"""Mode searches against solutions in closed form and searches by scipy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import sghmc
from sghmc.posterior import mode
from sghmc.posterior.host_potential import HostPotential
from sghmc.posterior.mode import ModeError, find_mode, hessian

RNG = np.random.default_rng(0)
SCALES = np.geomspace(1e-3, 1e3, 5)


def regression(num_rows=300, dtype=np.float32):
    """Columns of scales 1e-3 to 1e3, two of them almost the same; the mean of y is far from 0."""
    rng = np.random.default_rng(1)
    columns = rng.normal(size=(num_rows, 5))
    columns[:, 3] = columns[:, 2] + 0.01 * columns[:, 3]
    x = (columns * SCALES).astype(dtype)
    y = (columns.sum(1) + 100 + rng.normal(size=num_rows)).astype(dtype)

    def log_likelihood(params, row):
        return -0.5 * (row["y"] - row["x"] @ params["slope"] - params["offset"]) ** 2

    def log_prior(params):
        return -0.5 * (1e-8 * jnp.sum(params["slope"] ** 2) + 1e-4 * params["offset"] ** 2)

    posterior = sghmc.Posterior(log_likelihood, log_prior, {"x": x, "y": y})
    design = np.concatenate([np.ones((num_rows, 1)), x.astype(float)], axis=1)
    curvature = design.T @ design + np.diag([1e-4] + [1e-8] * 5)
    solution = np.linalg.solve(curvature, design.T @ y.astype(float))
    return posterior, solution, curvature


START = {"offset": jnp.zeros(()), "slope": jnp.zeros(5)}


def distance(position, solution, curvature):
    """From the solution, in standard deviations."""
    x = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(position)])
    return np.sqrt((x - solution) @ curvature @ (x - solution))


@pytest.mark.slow
def test_newton_on_a_badly_scaled_regression():
    posterior, solution, curvature = regression()
    found = find_mode(posterior, START)
    with jax.enable_x64(True):
        exact = float(posterior.potential({"offset": solution[0], "slope": solution[1:]}))
    assert found.hessian is not None
    np.testing.assert_allclose(found.hessian, curvature, rtol=1e-10)
    assert found.potential == pytest.approx(exact, rel=1e-10)
    assert found.distance < 1e-3
    assert found.is_found
    np.testing.assert_allclose(hessian(posterior, START), curvature, rtol=1e-10)


def test_single_precision_parameters_are_found_in_double():
    """The position is the mode rounded to single precision, and has its dtype and shapes."""
    posterior, solution, _ = regression()
    found = find_mode(posterior, START)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found.position) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), START
    )
    np.testing.assert_allclose(found.position["offset"], solution[0], rtol=2e-7)
    np.testing.assert_allclose(found.position["slope"], solution[1:], rtol=2e-7)
    assert jnp.zeros(1).dtype == jnp.float32, "double precision leaked out"


def test_most_of_a_search_sees_some_rows_only(monkeypatch):
    looks, bends = [], []
    look, bend = HostPotential.evaluate, HostPotential.hessian

    def recorded(self, points):
        looks.append(self.rows is None)
        return look(self, points)

    def recorded_bend(self, x):
        bends.append(self.rows is None)
        return bend(self, x)

    def logistic(theta, row):
        return -jnp.logaddexp(0.0, -row["y"] * jnp.dot(row["x"], theta))

    x = RNG.normal(size=(400, 3)).astype(np.float32)
    y = np.where(RNG.uniform(size=400) < 1 / (1 + np.exp(-x @ [3.0, -2.0, 1.0])), 1.0, -1.0)
    posterior = sghmc.Posterior(
        logistic, lambda theta: -0.5 * jnp.sum(theta**2), {"x": x, "y": y.astype(np.float32)}
    )
    expected = find_mode(posterior, jnp.zeros(3))
    monkeypatch.setattr(HostPotential, "evaluate", recorded)
    monkeypatch.setattr(HostPotential, "hessian", recorded_bend)
    monkeypatch.setattr(mode, "_SUBSAMPLE_ROWS", 150)
    found = find_mode(posterior, jnp.zeros(3))
    np.testing.assert_allclose(found.position, expected.position, rtol=2e-4)
    assert looks.count(False) > looks.count(True) > 0
    assert not any(bends), "near the mode the curvature of some rows will do"
    assert found.is_found


def rosenbrock(theta):
    return 100 * (theta[1] - theta[0] ** 2) ** 2 + (1 - theta[0]) ** 2


WELLS = sghmc.Potential(lambda theta: jnp.sum((theta**2 - 1) ** 2))


@pytest.mark.parametrize(
    ("target", "start", "expected"),
    [
        (WELLS, [0.1, -0.2, 3.0], [1.0, -1.0, 1.0]),  # bends down at two of the starts
        (sghmc.Potential(rosenbrock), [-1.2, 1.0], [1.0, 1.0]),
        (sghmc.Potential(lambda t: jnp.sum(jnp.log1p(t**2))), [30.0], [0.0]),  # bends down outside
        (sghmc.Potential(lambda t: jnp.sum(jnp.logaddexp(t, -t))), [40.0], [0.0]),  # flat outside
        (sghmc.Potential(lambda t: jnp.sum(jnp.exp(t) - t)), [-50.0, 20.0], [0.0, 0.0]),
    ],
    ids=["wells", "rosenbrock", "cauchy", "cosh", "exponential"],
)
def test_starts_from_which_plain_newton_fails(target, start, expected):
    found = find_mode(target, jnp.array(start))
    np.testing.assert_allclose(found.position, expected, atol=2e-3)
    assert found.is_found


def test_a_saddle_is_no_peak():
    assert not find_mode(WELLS, jnp.zeros(2)).is_found


def test_no_mode_at_all_is_no_peak():
    """U = −θ² falls for ever: a search ends, and says how."""
    assert not find_mode(sghmc.Potential(lambda t: -jnp.sum(t**2)), jnp.ones(2)).is_found


@pytest.mark.slow_cases("l-bfgs")
@pytest.mark.parametrize("size", [2, mode.DENSE_LIMIT + 1], ids=["newton", "l-bfgs"])
def test_a_search_that_leaves_the_finite_numbers_is_an_error(size):
    nowhere = sghmc.Potential(lambda theta: jnp.log(jnp.sum(theta)))
    with pytest.raises(ModeError, match=r"became non-finite: .*Start elsewhere"):
        find_mode(nowhere, -jnp.ones(size))


@pytest.mark.slow
def test_many_parameters():
    """L-BFGS ends when a step lowers the potential by less than 0.01: near, not at the mode."""
    size = mode.DENSE_LIMIT + 1
    stiffness = np.geomspace(1.0, 100.0, size)
    shift = np.linspace(-1, 1, size)

    def potential(theta):
        return jnp.sum(stiffness * (jnp.cosh(theta["a"] - shift) - 1)) + 7.0

    found = find_mode(sghmc.Potential(potential), {"a": jnp.zeros(size)})
    assert found.hessian is None
    assert 7 <= found.potential < 7.05
    np.testing.assert_allclose(found.position["a"], shift, atol=0.2)


def test_same_mode_as_scipy():
    x = RNG.normal(size=(60, 3))
    y = RNG.poisson(np.exp(x @ [0.5, -1.0, 0.2]))
    data = {"x": x.astype(np.float32), "y": y.astype(np.float32)}

    def poisson(theta, row):
        rate = row["x"] @ theta
        return row["y"] * rate - jnp.exp(rate)

    posterior = sghmc.Posterior(poisson, lambda theta: -0.5 * theta @ theta, data)

    def objective(theta):
        rate = data["x"].astype(float) @ theta
        return np.sum(np.exp(rate) - data["y"] * rate) + theta @ theta / 2

    expected = scipy.optimize.minimize(objective, np.zeros(3), tol=1e-10)
    found = find_mode(posterior, jnp.full(3, 3.0))
    np.testing.assert_allclose(found.position, expected.x, atol=1e-4)
    assert found.potential == pytest.approx(expected.fun, abs=1e-5)
    points = np.stack([expected.x, np.ones(3)])
    surface = HostPotential(posterior, jnp.zeros(3))
    expected = [objective(point) for point in points]
    np.testing.assert_allclose(surface.potentials(points), expected, rtol=1e-10)
    # More points than are looked at at once, and not a multiple of them.
    many = RNG.normal(size=(19, 3))
    values, slopes = surface.evaluate(many)
    np.testing.assert_allclose(values, [objective(point) for point in many], rtol=1e-10)
    for point, slope in zip(many, slopes, strict=True):
        numeric: Any = scipy.optimize.approx_fprime(point, objective, 1e-7)
        np.testing.assert_allclose(slope, numeric, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_searches_may_be_stopped_between_passes():
    calls = []

    def check(count):
        assert count > 0
        calls.append(None)
        if len(calls) > 3:
            raise TimeoutError

    for size in (2, mode.DENSE_LIMIT + 1):
        calls.clear()
        surface = HostPotential(sghmc.Potential(rosenbrock), jnp.zeros(size), check=check)
        start = jnp.full(size, -1.2)
        with pytest.raises(TimeoutError):
            [mode.mode_of(surface, start) for _ in range(10)]


def test_a_few_rows_of_the_curvature():
    posterior, _, curvature = regression(5_000)
    estimate = hessian(posterior, START, num_rows=2_500)
    ratio = np.diag(estimate) / np.diag(curvature)
    assert 0.8 < ratio.min() < ratio.max() < 1.2
