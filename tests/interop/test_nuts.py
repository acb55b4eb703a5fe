"""NUTS of other libraries on our targets."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.interop import nuts

MEAN = {"layers": (np.array([[3.0, -2.0]], np.float32),), "bias": np.float32(0.5)}
SPREAD = {"layers": (np.array([[0.1, 2.0]], np.float32),), "bias": np.float32(0.2)}
"""Of the posterior: 24 rows with the mean 0.5 and unit variance, of which the bias is the mean."""


def log_prior(params):
    """The layers' law; the bias has one of precision 1."""
    layers = jnp.sum(((params["layers"][0] - MEAN["layers"][0]) / SPREAD["layers"][0]) ** 2)
    return -0.5 * (layers + (params["bias"] - 0.5) ** 2)


POSTERIOR = sghmc.Posterior(
    lambda params, row: -0.5 * (row - params["bias"]) ** 2,
    log_prior,
    jnp.linspace(-1.0, 2.0, 24),
)


@pytest.mark.slow_cases("numpyro")
@pytest.mark.parametrize("backend", ["numpyro", pytest.param("blackjax", marks=pytest.mark.slow)])
def test_draws_have_the_moments_of_the_posterior(backend):
    """By chains, |t| > 6 with 15 degrees of freedom has probability 2.4e-5: six comparisons."""
    pytest.importorskip(backend)
    samples = nuts(
        jax.random.key(0),
        POSTERIOR,
        MEAN,
        num_samples=200,
        num_burnin=200,
        num_chains=16,
        backend=backend,
    )
    assert (samples.num_chains, samples.num_draws) == (16, 200)
    z = jax.tree.map(lambda x, m, s: (x - m) / s, samples.positions, MEAN, SPREAD)
    assert jax.tree.map(lambda x: x.shape[2:], z) == {"layers": ((1, 2),), "bias": ()}
    for leaf in jax.tree.leaves(z):
        for power, exact in ((1, 0.0), (2, 1.0)):
            means = np.mean(leaf**power, axis=1)
            t = (means.mean(0) - exact) / (means.std(0, ddof=1) / 4)
            assert np.all(np.abs(t) < 6), (power, t)
    expected = jax.jit(jax.vmap(jax.vmap(POSTERIOR.potential)))(samples.positions)
    np.testing.assert_allclose(samples.info.potential, expected, rtol=1e-3, atol=1e-3)
    assert 0.6 < np.mean(samples.info.acceptance) <= 1  # pyright: ignore
    assert len(samples.summary()) == 3


@pytest.mark.slow
def test_adaptive_hmc_agrees_with_nuts():
    """Logistic regression with rows of unequal scales; means and standard deviations, by chains.

    |t| > 6 with 15 degrees of freedom, the fewest there are, has probability 2.4e-5: eight times.
    """
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(200, 4)) * [0.1, 1.0, 3.0, 30.0]).astype(np.float32)
    labels = rng.uniform(size=200) < 1 / (1 + np.exp(-rows @ [5.0, -1.0, 0.3, 0.02]))
    signs = np.where(labels, 1.0, -1.0).astype(np.float32)
    posterior = sghmc.Posterior(
        lambda theta, row: -jnp.logaddexp(0.0, -row[1] * jnp.dot(row[0], theta)),
        lambda theta: -jnp.sum(theta**2) / 200,
        (jnp.asarray(rows), jnp.asarray(signs)),
    )
    theirs = nuts(
        jax.random.key(0), posterior, jnp.zeros(4), num_samples=500, num_burnin=500, num_chains=16
    )
    ours = sghmc.sample(
        jax.random.key(1),
        posterior,
        sghmc.HMC(0.01, 8, jitter=0.3),
        jnp.zeros(4),
        num_samples=500,
        num_burnin=500,
        num_chains=16,
        adapt=sghmc.AdaptHMC(until=500),
        progress=False,
    )
    for of_chain in (np.mean, np.std):
        one, other = (of_chain(samples.positions, axis=1) for samples in (ours, theirs))
        error = np.sqrt((one.var(0, ddof=1) + other.var(0, ddof=1)) / 16)
        assert np.all(np.abs(one.mean(0) - other.mean(0)) < 6 * error)
    assert np.all(np.abs(ours.positions.std((0, 1)) / theirs.positions.std((0, 1)) - 1) < 0.1)


def test_what_cannot_be_is_refused():
    target = sghmc.Potential(lambda x: jnp.sum(x**2))
    start = jnp.zeros(1)
    with pytest.raises(ValueError, match='"numpyro" or "blackjax", but is \'stan\''):
        nuts(jax.random.key(0), target, start, backend="stan")  # pyright: ignore
    with pytest.raises(ValueError, match="below 1, but is 1"):
        nuts(jax.random.key(0), target, start, target_acceptance=1.0)
    with pytest.raises(TypeError, match="a Posterior or a Potential"):
        nuts(jax.random.key(0), lambda x: x, start)  # pyright: ignore
    hyper = sghmc.Posterior(lambda m, x, h: -m, lambda m, h: -m, jnp.zeros(3), hyper=1.0)
    with pytest.raises(ValueError, match="keep the hyperparameters fixed"):
        nuts(jax.random.key(0), hyper, start)
    for name in ("numpyro", "blackjax"):
        missing = mock.patch.dict(sys.modules, {name: None, f"{name}.infer": None})
        with missing, pytest.raises(ImportError, match=rf"sghmc-jax\[{name}\]"):
            nuts(jax.random.key(0), target, start, backend=name)
