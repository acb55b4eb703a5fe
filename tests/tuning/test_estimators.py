"""Gradient noise in whitened coordinates, and which estimator follows from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.tuning.estimators import Estimators, Settings
from sghmc.tuning.region import Region


def test_settings_keep_the_error_of_gradient_noise_within_its_share():
    for noise in (0.0, 0.1, 1.0, 10.0, 70.0):
        settings = Settings.for_noise(noise, 0.05, 0.3)
        assert settings.law.standard_deviation_error <= 0.4 * 0.05 + 1e-9
        assert settings.step_size <= 0.3
        assert settings.step_size * settings.friction <= 0.5 + 1e-9
    assert Settings.for_noise(1e4, 0.05, 0.3).law.standard_deviation_error > 0.05


def test_rows_that_would_do():
    """Noise goes with 1/n: with so many rows it is what the tolerance has room for."""
    settings = Settings.for_noise(1e4, 0.05, 0.3)
    needed = settings.rows_needed(100, 0.05)
    enough = Settings.for_noise(1e4 * 100 / needed, 0.05, 0.3)
    assert enough.law.standard_deviation_error == pytest.approx(0.4 * 0.05, rel=0.02)


def test_draws_of_pilots_are_nearly_independent():
    for noise in (0.0, 1.0):
        settings = Settings.for_noise(noise, 0.05, 0.3)
        time = settings.law.autocorrelation_time
        assert 2**0.5 * time <= settings.thinning <= 2**1.5 * time
    assert settings.halved().step_size == settings.step_size / 2
    assert settings.halved().friction == settings.friction


FACTOR = np.array([[0.5, 0.0], [0.4, 0.1]])
"""Not symmetric: L V Lᵀ has other eigenvalues than Lᵀ V L."""


def regression(count):
    """y ~ N(x·θ, 1): one example's gradient is −x(y − x·θ), so V is known at every θ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)) * [1.0, 3.0]
    y = x @ [1.0, -1.0] + rng.normal(size=count)
    data = {"x": x.astype(np.float32), "y": y.astype(np.float32)}

    def log_likelihood(theta, row):
        return -0.5 * (row["y"] - row["x"] @ theta) ** 2

    return sghmc.Posterior(log_likelihood, lambda theta: -0.5 * jnp.sum(theta**2), data), x, y


def test_the_noise_is_that_of_whitened_gradients():
    """512 rows at 32 points: 16,384 examples, whose covariance is known to a percent or two."""
    posterior, x, y = regression(4_000)
    region = Region(jnp.zeros(2), np.array([1.0, -1.0]), FACTOR, 0.0, True)
    place = np.array([1.2, -0.9])
    gradients = -x * (y - x @ place)[:, None]
    covariance = 4_000**2 / 100 * np.cov(gradients.T)
    expected = np.linalg.eigvalsh(FACTOR.T @ covariance @ FACTOR)[-1]
    wrong = np.linalg.eigvalsh(FACTOR @ covariance @ FACTOR.T)[-1]
    assert abs(wrong / expected - 1) > 0.3
    estimators = Estimators(posterior, 100, 0.05, np.random.default_rng(0))
    noise = estimators.noise(sghmc.Minibatch(100), region, np.tile(place, (4, 1)))
    assert noise == pytest.approx(expected, rel=0.08)
    assert estimators.noise(sghmc.FullBatch(), region, place[None]) == 0
    # The difference of gradients at two points is linear in them here, and known as well.
    center = sghmc.ControlVariate(100, jnp.asarray([1.0, -1.0]))
    changes = x * (x @ (place - [1.0, -1.0]))[:, None]
    covariance = 4_000**2 / 100 * np.cov(changes.T)
    expected = np.linalg.eigvalsh(FACTOR.T @ covariance @ FACTOR)[-1]
    found = estimators.noise(center, region, np.tile(place, (4, 1)))
    assert found == pytest.approx(expected, rel=0.15)


def fitted(posterior, x):
    curvature = x.T @ x + np.eye(2)
    factor = np.linalg.inv(np.linalg.cholesky(curvature)).T
    center = np.linalg.solve(curvature, x.T @ np.asarray(posterior.data["y"]))
    region = Region(jnp.zeros(2), center, factor, 0.0, True)
    return region, region.outward(np.random.default_rng(1).normal(size=(4, 2)))


def test_much_data_gets_a_control_variate_and_little_data_all_of_them():
    posterior, x, _ = regression(30_000)
    found = Estimators(posterior, 100, 0.05, np.random.default_rng(0)).best(
        *fitted(posterior, x), 0.3
    )
    assert isinstance(found.gradient, sghmc.ControlVariate)
    assert found.gradient.batch_size == 100
    assert found.settings.step_size == 0.3
    assert list(found.noises) == ["control variate"]
    posterior, x, _ = regression(300)
    found = Estimators(posterior, 100, 0.05, np.random.default_rng(0)).best(
        *fitted(posterior, x), 0.3
    )
    assert isinstance(found.gradient, sghmc.FullBatch)
    assert found.noises == {}


def test_a_center_far_off_leaves_all_data_as_the_cheapest():
    """3,000 rows in batches of 100: noise of either kind costs more steps than a pass does."""
    posterior, x, _ = regression(3_000)
    region, places = fitted(posterior, x)
    far = Region(jnp.zeros(2), region.center + 3.0, region.factor, 0.0, True)
    found = Estimators(posterior, 100, 0.05, np.random.default_rng(0)).best(far, places, 0.3)
    assert isinstance(found.gradient, sghmc.FullBatch)
    assert set(found.noises) == {"control variate", "minibatch"}


def test_a_potential_has_no_batches():
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    region = Region(jnp.zeros(2), np.zeros(2), np.eye(2), 0.0, True)
    found = Estimators(target, 100, 0.05, np.random.default_rng(0)).best(
        region, np.zeros((4, 2)), 0.3
    )
    assert isinstance(found.gradient, sghmc.FullBatch)
    assert jax.tree.leaves(found.noises) == []
