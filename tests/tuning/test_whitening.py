"""Coordinates: what a whitening makes of draws, matrices and potentials, exactly."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.host_potential import HostPotential
from sghmc.posterior.mode import ModeError
from sghmc.tuning import low_rank
from sghmc.tuning import whitening as whitening_module
from sghmc.tuning.whitening import (
    Whitening,
    WhiteningFit,
    draw_starts,
    find_whitening,
    gaussian_misfit,
)

LIKE = {"a": jax.ShapeDtypeStruct((), np.float32), "b": jax.ShapeDtypeStruct((2,), np.float32)}
FACTOR = np.array([[2.0, 0.0, 0.3], [0.5, 0.1, 0.0], [-1.0, 0.2, 3.0]])
"""Not symmetric, so that L V Lᵀ is not Lᵀ V L."""
DENSE = Whitening(LIKE, np.array([1.0, -2.0, 0.5]), FACTOR, 0.0, True)
DIAGONAL = Whitening(LIKE, DENSE.center, np.array([2.0, 0.1, 3.0]), 0.0, False)


def whitening_of(target, start):
    return find_whitening(HostPotential(target, start), start)


def test_parameters_of_vectors_keep_leading_axes():
    params = DENSE.params(np.arange(12.0).reshape(2, 2, 3))
    np.testing.assert_array_equal(params["a"], [[0, 3], [6, 9]])
    np.testing.assert_array_equal(params["b"][1, 0], [7, 8])
    assert params["b"].dtype == np.float32


@pytest.mark.parametrize("whitening", [DENSE, DIAGONAL], ids=["dense", "diagonal"])
def test_positions_and_z_are_inverse(whitening):
    z = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(whitening.to_z(whitening.to_position(z)), z, rtol=1e-10)
    full = FACTOR if whitening.is_dense else np.diag(whitening.factor)
    np.testing.assert_allclose(
        whitening.to_position(z)[2], whitening.center + full @ z[2], rtol=1e-12
    )


def test_the_noise_of_whitened_gradients():
    """Gradients in z are Lᵀg: their covariance is LᵀVL, entry by entry."""
    noise = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 4.0]])
    expected = np.einsum("ki,kl,lj->ij", FACTOR, noise, FACTOR)
    np.testing.assert_allclose(DENSE.whitened_noise(noise), expected, rtol=1e-12)
    np.testing.assert_allclose(DIAGONAL.whitened_noise(noise.diagonal()), [8.0, 0.01, 36.0])


def test_a_refined_region_has_the_covariance_of_the_draws():
    """θ = c + Lz with z ~ (m, S) has mean c + Lm and covariance LSLᵀ: L' L'ᵀ must be that."""
    covariance = np.array([[2.0, 0.4, 0.0], [0.4, 1.5, -0.2], [0.0, -0.2, 0.5]])
    mean = np.array([0.5, -1.0, 2.0])
    refined = DENSE.refined(WhiteningFit(mean, covariance, 0.1))
    factor: Any = refined.factor
    np.testing.assert_allclose(factor @ factor.T, FACTOR @ covariance @ FACTOR.T, rtol=1e-12)
    np.testing.assert_allclose(refined.center, DENSE.center + FACTOR @ mean, rtol=1e-12)
    factor = DIAGONAL.refined(WhiteningFit(mean, covariance.diagonal(), 0.1)).factor
    np.testing.assert_allclose(factor, [2 * 2**0.5, 0.1 * 1.5**0.5, 3 * 0.5**0.5])


def test_the_spread_of_draws_is_drawn_to_one_by_what_they_lack():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3)) * [1.0, 3.0, 0.2] + [0.0, 0.0, 5.0]
    seen = DENSE.fit(DENSE.to_position(z))
    expected = (300 * np.cov(z.T) + 3 * np.eye(3)) / 303
    np.testing.assert_allclose(seen.covariance, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(seen.mean, z.mean(0), rtol=1e-8, atol=1e-8)
    assert seen.slack == pytest.approx(2 * np.sqrt(2 * 3 / 300))
    assert seen.extremes[1] == pytest.approx(9, rel=0.2)
    variances = DIAGONAL.fit(DIAGONAL.to_position(z)).covariance
    np.testing.assert_allclose(variances, (300 * z.var(0) + 10) / 310, rtol=1e-8)


@pytest.mark.parametrize(
    ("mean", "variances", "fits", "is_far"),
    [
        ([0.0, 0.0], [1.0, 1.0], True, False),
        ([0.3, 0.0], [0.7, 1.5], True, False),
        ([0.5, 0.0], [1.0, 1.0], False, False),
        ([0.0, 0.0], [0.4, 1.0], False, False),
        ([0.0, 0.0], [1.0, 1.9], False, False),
        ([-2.0, 0.0], [1.0, 1.0], False, True),
        ([0.0, 0.0], [1.0, 5.0], False, True),
    ],
)
def test_what_fits_and_what_is_far(mean, variances, fits, is_far):
    for covariance in (np.diag(variances), np.array(variances)):
        seen = WhiteningFit(np.array(mean), covariance, 0.1)
        assert seen.is_good == fits
        assert seen.is_far == is_far


def test_draws_that_are_few_may_be_farther_off():
    assert not WhiteningFit(np.array([0.6]), np.eye(1), 0.1).is_good
    assert WhiteningFit(np.array([0.6]), np.eye(1), 0.5).is_good


def test_a_gaussian_is_found_with_its_covariance():
    precision = np.array([[3.0, 1.0], [1.0, 0.5]])
    target = sghmc.Potential(
        lambda t: 0.5 * (t - 2) @ (jnp.asarray(precision, t.dtype) @ (t - 2)) + 7
    )
    whitening = whitening_of(target, jnp.zeros(2))
    np.testing.assert_allclose(whitening.center, 2, atol=1e-3)
    factor: Any = whitening.factor
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(precision), rtol=1e-6)
    assert whitening.is_gaussian
    assert whitening.is_local
    assert not whitening.refined(WhiteningFit(np.zeros(2), np.eye(2), 0.1)).is_local
    # So near a Gaussian's that nothing is left; a factor of 2 leaves half of z²/2 three times.
    surface, draws = HostPotential(target, jnp.zeros(2)), whitening.to_position(np.eye(2))
    assert gaussian_misfit(surface, whitening, draws) == pytest.approx(0, abs=1e-6)
    wide = dataclasses.replace(whitening, factor=2 * factor)
    z = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    expected = np.std([3 / 2 * 1, 3 / 2 * 4, 3 / 2 * 9])
    assert gaussian_misfit(surface, wide, wide.to_position(z)) == pytest.approx(expected, rel=1e-6)


def test_starts_are_drawn_in_where_the_potential_is_steep():
    """Beyond |θ| = 0.5 there is a wall: starts of N(0, 1) must come back inside."""
    target = sghmc.Potential(lambda t: jnp.sum(0.5 * t**2 + (jnp.abs(t) / 0.5) ** 40))
    like = jnp.zeros(2)
    whitening = Whitening(like, np.zeros(2), np.eye(2), 0.0, True)
    starts = draw_starts(HostPotential(target, like), whitening, np.random.default_rng(0), 8)
    assert np.abs(starts).max() < 0.6
    free = draw_starts(
        HostPotential(sghmc.Potential(lambda t: 0.5 * jnp.sum(t**2)), like),
        whitening,
        np.random.default_rng(0),
        8,
    )
    np.testing.assert_array_equal(free, np.random.default_rng(0).normal(size=(8, 2)))


def logistic_separable(count=50):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 3))
    y = x @ np.linspace(-0.6, 0.8, 3) > 0
    data = {"x": x.astype(np.float32), "y": y}

    def log_likelihood(weights, row):
        return -jax.nn.softplus(jnp.where(row["y"], -1.0, 1.0) * (row["x"] @ weights))

    return sghmc.Posterior(log_likelihood, lambda weights: 0.0 * jnp.sum(weights), data)


def logistic_far():
    """Separable where the search ends at a place that looks like a peak, with small curvature."""
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)

    def log_likelihood(weights, row):
        score = row["x"] @ weights
        return row["y"] * score - jax.nn.softplus(score)

    data = {"x": x, "y": (x[:, 0] > 0).astype(np.float32)}
    return sghmc.Posterior(log_likelihood, lambda weights: 0.0 * jnp.sum(weights), data)


BAD_POSTERIORS = {
    "flat": sghmc.Potential(lambda theta: 0.5 * theta[0] ** 2),
    "improper": sghmc.Potential(lambda theta: jnp.sum(jnp.exp(-theta))),
    "separable": logistic_separable(),
    "separable, far": logistic_far(),
    "collinear": sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta) ** 2),
}


@pytest.mark.parametrize("name", BAD_POSTERIORS)
def test_a_posterior_that_does_not_fall_off_is_refused(name):
    size = 3 if "separable" in name else 2
    with pytest.raises(ModeError, match=r"does not fall off along .*params.*prior"):
        whitening_of(BAD_POSTERIORS[name], jnp.zeros(size))


@pytest.mark.slow
def test_some_rows_of_many_tell_whether_a_posterior_falls_off(monkeypatch):
    """The slope of 50 of 2,000 rows is six standard deviations off: that is no rise."""
    monkeypatch.setattr(whitening_module, "MAX_QUICK_ROWS", 50)
    rows = np.random.default_rng(0).normal(size=(2_000, 2)).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: 0.0 * theta[0], rows
    )
    assert whitening_of(target, jnp.ones(2)).is_gaussian
    with pytest.raises(ModeError, match="does not fall off along"):
        whitening_of(logistic_separable(2_000), jnp.zeros(3))


def test_a_search_that_runs_away_is_refused():
    with pytest.raises(ModeError, match=r"ran away|does not fall off"):
        whitening_of(sghmc.Potential(lambda theta: -jnp.sum(theta**4)), jnp.ones(2))


def test_a_search_that_ends_nowhere_looks_farther_along_its_way():
    """No peak, and no rise however far: an improper posterior, told within some passes."""
    falling = sghmc.Potential(lambda theta: -jnp.log1p(jnp.sum(jnp.abs(theta))))
    with pytest.raises(ModeError, match=r"does not fall off|ran away"):
        whitening_of(falling, jnp.ones(2))
    # A funnel has no peak either, but is proper: it is left to pilot runs.
    funnel = sghmc.Potential(
        lambda t: t[0] ** 2 / 18 + jnp.sum(t[1:] ** 2) * jnp.exp(-t[0]) / 2 + 4 * t[0]
    )
    assert not whitening_of(funnel, jnp.ones(9)).is_gaussian


@pytest.mark.slow
def test_many_parameters_without_a_peak_are_whitened_by_a_diagonal():
    bent = sghmc.Potential(lambda t: jnp.sum(jnp.cos(3 * t) + t**2 / 50) + jnp.prod(jnp.cos(t[:9])))
    start = jnp.linspace(-0.3, 0.3, whitening_module._MAX_DENSE_WITHOUT_PEAK + 1)
    assert not whitening_of(bent, start).is_dense


def test_parameters_without_curvature_get_the_scale_of_their_rise():
    """|θ| rises by 1 over a length of 1; beside it, others that have a curvature."""
    start = jnp.array([1e-3, 1.0])
    found = whitening_of(
        sghmc.Potential(lambda t: jnp.sum(jnp.abs(t) * jnp.array([1e3, 1.0]))), start
    )
    assert not found.is_gaussian
    np.testing.assert_allclose(np.abs(found.center), 0, atol=1e-3)
    factor: Any = found.factor
    scales = np.sqrt(np.sum(factor**2, axis=1))
    assert np.all((scales > [0.9e-3, 0.9]) & (scales < [1.1e-2, 11.0]))  # looked for by tens
    mixed: Any = whitening_of(sghmc.Potential(lambda t: jnp.abs(t[0]) + 50 * t[1] ** 2), start)
    assert not mixed.is_gaussian
    assert np.sum(mixed.factor[1] ** 2) == pytest.approx(0.01, rel=1e-6)


def test_starts_beside_a_wall_are_finite():
    wall = sghmc.Potential(lambda t: jnp.where(jnp.all(t > 0), jnp.sum(t), jnp.inf))
    surface, start = HostPotential(wall, jnp.ones(2)), jnp.ones(2)
    whitening = find_whitening(surface, start)
    places = draw_starts(surface, whitening, np.random.default_rng(0), 8)
    assert np.all(np.isfinite(surface.potentials(places)))


def test_a_diagonal_factor_is_that_of_the_curvature_and_its_largest_eigenvalue():
    """(λD)^{−½}, D the diagonal of the curvature, λ the largest eigenvalue of D^{−½}HD^{−½}."""
    curvature = np.array([4.0, 0.25, 9.0])
    target = sghmc.Potential(lambda p: jnp.sum(curvature * jnp.append(p["a"], p["b"]) ** 2) / 2)
    position = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    found = low_rank.diagonal_factor(HostPotential(target, position), np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found, curvature**-0.5, rtol=1e-5)


def test_a_diagonal_factor_leaves_no_direction_stiffer_than_one():
    """D is the sum of rows' squared slopes plus the prior's curvature; λ that of D^{−½}HD^{−½}."""
    rows, theta = np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 1.5]]), np.array([0.3, 0.2])
    target = sghmc.Posterior(
        lambda p, x: -0.5 * (x @ p) ** 2,
        lambda p: -0.5 * jnp.sum(jnp.array([3.0, 0.7]) * p**2),
        rows.astype(np.float32),
    )
    found = low_rank._inverse_root(target, jnp.asarray(theta), target.data)
    diagonal = np.array([3.0, 0.7]) + np.sum((rows @ theta)[:, None] ** 2 * rows**2, 0)
    scaled = (rows.T @ rows + np.diag([3.0, 0.7])) / np.sqrt(np.outer(diagonal, diagonal))
    largest = np.linalg.eigvalsh(scaled)[-1]
    assert largest > 1.5
    np.testing.assert_allclose(found, (largest * diagonal) ** -0.5, rtol=1e-4)
