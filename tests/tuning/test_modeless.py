"""Tuning without a mode: ends within its gradients, keeps what it promises, and says when not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.tuning import pilot

KEY = jax.random.key(5)


def mixture():
    """Two overlapping Gaussians: no Gaussian around any mode fits; mean 0, known variance."""

    def potential(theta):
        away = jnp.stack([jnp.sum((theta / 0.05 - 1.3) ** 2), jnp.sum((theta / 0.05 + 1.3) ** 2)])
        return -jax.nn.logsumexp(-away / 2)

    return sghmc.Potential(potential), 0.05 * np.sqrt(1 + 1.3**2)


@pytest.fixture
def gradients(monkeypatch):
    """Gradients that pilot runs have taken, counted where they are run."""
    counted = []
    run = pilot.run

    def counting(key, target, sampler, init, options):
        counted.append(options.num_chains * options.num_samples * (options.thinning + 1))
        return run(key, target, sampler, init, options)

    monkeypatch.setattr(pilot, "run", counting)
    return counted


def test_a_mixture_is_tuned_without_a_mode(gradients):
    target, spread = mixture()
    tuned = sghmc.tune(
        KEY, target, jnp.zeros(2), mode=False, num_gradients=400_000, num_chains=16, tolerance=0.1
    )
    assert tuned.report.is_met, tuned.report
    assert sum(gradients) <= 400_000
    assert f"{sum(gradients):,} gradients" in str(tuned.report)
    samples = sghmc.sample(
        jax.random.key(6), target, tuned.sampler, tuned.init, init_axis=0, num_chains=16,
        num_samples=400, thinning=tuned.thinning, progress=False,
    )  # fmt: skip
    draws = np.asarray(samples.positions, np.float64)
    # A quarter of the tolerance is chance's, with some thousands of effective draws.
    np.testing.assert_allclose(draws.std((0, 1)), spread, rtol=0.125)


def test_a_network_ends_within_its_gradients_and_says_what_is_known(gradients):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)).astype(np.float32)
    data = {"x": x, "y": np.sin(x[:, 0]) + 0.1 * rng.normal(size=120).astype(np.float32)}

    def log_likelihood(params, row):
        hidden = jnp.tanh(row["x"] @ params["first"])
        return -50 * (row["y"] - hidden @ params["second"]) ** 2

    def log_prior(params):
        return -0.5 * (jnp.sum(params["first"] ** 2) + jnp.sum(params["second"] ** 2))

    posterior = sghmc.Posterior(log_likelihood, log_prior, data)
    keys = jax.random.split(KEY)
    init = {"first": jax.random.normal(keys[0], (2, 5)), "second": jax.random.normal(keys[1], (5,))}
    tuned = sghmc.tune(KEY, posterior, init, mode=False, num_gradients=40_000, num_chains=4)
    assert sum(gradients) <= 40_000
    assert isinstance(tuned.gradient, sghmc.FullBatch)
    assert 0.8 < tuned.report.kinetic_temperature < 1.2
    assert tuned.report.is_met or "num_gradients=160,000" in str(tuned.report)


def test_a_step_that_is_too_large_is_not_kept():
    """From a step 40 times too large for the stiffest direction down to one that is stable."""
    scales = jnp.array([1.0, 0.02])
    target = sghmc.Potential(lambda theta: jnp.sum((theta / scales) ** 4) / 4)
    tuned = sghmc.tune(KEY, target, jnp.full(2, 0.01), mode=False, num_chains=16, tolerance=0.1)
    assert tuned.report.is_met, tuned.report
    exact = np.asarray(scales) * 0.8222  # √(2Γ(3/4)/Γ(1/4))
    samples = sghmc.sample(
        KEY, target, tuned.sampler, tuned.init, init_axis=0, num_chains=16, num_samples=300,
        thinning=tuned.thinning, progress=False,
    )  # fmt: skip
    spread = np.asarray(samples.positions, np.float64).std((0, 1))
    np.testing.assert_allclose(spread, exact, rtol=0.125)


def test_few_gradients_are_told():
    target, _ = mixture()
    tuned = sghmc.tune(KEY, target, jnp.zeros(2), mode=False, num_gradients=4_000, tolerance=0.01)
    assert not tuned.report.is_met
    assert "num_gradients=16,000" in str(tuned.report)


def test_modes_that_chains_do_not_leave_are_told():
    target = sghmc.Potential(lambda theta: 20 * jnp.sum((theta**2 - 4) ** 2))
    tuned = sghmc.tune(KEY, target, jnp.zeros(1), mode=False, num_chains=8, num_gradients=80_000)
    assert not tuned.report.is_met
    assert "different modes" in str(tuned.report)


def test_errors_name_what_came():
    target, _ = mixture()
    with pytest.raises(TypeError, match="mode must be True or False, but is 'no'"):
        sghmc.tune(KEY, target, jnp.zeros(2), mode="no")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="4 chains need at least 4,000"):
        sghmc.tune(KEY, target, jnp.zeros(2), mode=False, num_gradients=100)
    with pytest.raises(ValueError, match="HMC is tuned at a mode"):
        sghmc.tune(KEY, target, jnp.zeros(2), mode=False, engine="exact")
