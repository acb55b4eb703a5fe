"""Factors of low rank, from the curvature of a known Gaussian and from its draws."""

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core.matrices import LowRankFactor
from sghmc.posterior.host_potential import HostPotential
from sghmc.tuning import low_rank
from sghmc.tuning.whitening import Whitening

SIZE = 120


def gaussian(stiff, seed=0):
    """A precision with scales over two orders and directions of its own stiffness."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(SIZE, len(stiff))))[0]
    root = np.eye(SIZE) + (basis * (np.sqrt(stiff) - 1)) @ basis.T
    scales = np.exp(rng.uniform(-2, 2, SIZE))
    return scales[:, None] * (root @ root) * scales


def spread(factor, precision):
    """Smallest and largest eigenvalue of LᵀHL."""
    written_out = factor.dense([]).array
    return np.linalg.eigvalsh(written_out.T @ precision @ written_out)[[0, -1]]


def potential_of(precision, center):
    precision, center = jnp.asarray(precision), jnp.asarray(center)
    target = sghmc.Potential(lambda t: 0.5 * (t - center) @ (precision @ (t - center)))
    return HostPotential(target, jnp.zeros(SIZE))


@pytest.fixture(scope="module")
def stiff():
    precision = gaussian(np.geomspace(1e2, 1e5, 8))
    potential = potential_of(precision, np.full(SIZE, 3.0))
    return precision, potential, low_rank.fit_curvature(potential, np.zeros(SIZE), np.ones(SIZE))


def test_a_diagonal_and_stiff_directions_are_found(stiff):
    precision, _, found = stiff
    assert np.linalg.cond(precision) > 1e5
    smallest, largest = spread(found.factor, precision)
    assert largest / smallest < 5
    assert found.is_convex
    assert found.unevenness < 1.5


def test_a_search_in_whitened_coordinates_ends_at_the_mode(stiff):
    _, potential, found = stiff
    x, value, distance = low_rank.descend(potential, found.factor, np.zeros(SIZE))
    np.testing.assert_allclose(x, 3.0, atol=0.01)
    assert distance < 1e-3
    assert value == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("kind", ["no low rank", "a saddle"])
def test_what_has_no_such_factor_is_told(kind):
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]
    values = np.geomspace(1, 2e4, SIZE) * (
        np.where(np.arange(SIZE) > 100, -1, 1) ** (kind != "no low rank")
    )
    potential = potential_of((basis * values) @ basis.T, np.zeros(SIZE))
    found = low_rank.fit_curvature(potential, np.zeros(SIZE), np.ones(SIZE))
    assert found.unevenness > 2 if kind == "no low rank" else not found.is_convex


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_draws_and_gradients_tell_directions_even_before_draws_have_crossed_them(share):
    """Draws that are a tenth as wide everywhere have gradients that are so, too."""
    stiffness = np.array([1e4, 30.0, 1 / 40.0, 1e-3])
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(SIZE, 4)))[0]
    precision = np.eye(SIZE) + (basis * (stiffness - 1)) @ basis.T
    none, ones = np.zeros((SIZE, 0)), np.ones(SIZE)
    like = jnp.zeros(SIZE)
    whitening = Whitening(like, np.zeros(SIZE), LowRankFactor(ones, none, none, ones), 0.0, False)
    root = share * np.linalg.cholesky(np.linalg.inv(precision))
    draws = np.zeros((0, SIZE))
    for _ in range(4):
        draws = rng.normal(size=(400, SIZE)) @ root.T
        fit = whitening.fit(draws, lambda x: x @ precision)
        whitening = whitening.refined(fit)
    assert isinstance(whitening.factor, LowRankFactor)
    smallest, largest = spread(whitening.factor, precision)
    assert largest / smallest < 20  # of 10⁷
    np.testing.assert_allclose(
        whitening.to_z(whitening.to_position(draws)), draws, rtol=1e-6, atol=1e-9
    )


def test_noise_is_no_direction():
    z = np.random.default_rng(0).normal(size=(100, 400))
    assert low_rank.fit_spikes(z, z)[1].size == 0
