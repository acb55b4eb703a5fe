"""Draws in ArviZ: the log-likelihood of every row, and what loo makes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results import views

ROWS = np.random.default_rng(0).normal(size=30).astype(np.float32)
SPREAD = np.linspace(0.5, 1.5, 30).astype(np.float32)


def log_likelihood(mean, row, scale):
    return -0.5 * ((row["y"] - mean) / row["s"]) ** 2 * scale


def draw(data, **options):
    target = sghmc.Posterior(
        log_likelihood, lambda mean, scale: -0.5 * mean**2, data, hyper=jnp.asarray(2.0)
    )
    return sghmc.sample(
        jax.random.key(0), target, sghmc.HMC(0.1, num_steps=2), jnp.zeros(()),
        num_samples=50, num_chains=4, progress=False, **options,
    )  # fmt: skip


def test_rows_have_a_log_likelihood_at_every_draw(monkeypatch):
    arviz = pytest.importorskip("arviz")
    monkeypatch.setattr(views, "_CHUNK_ROWS", 13)  # two whole chunks, and a part of one
    samples = draw({"y": ROWS, "s": SPREAD})
    data = samples.to_arviz(log_likelihood=True)
    found = data["log_likelihood"]["observation"].values
    expected = -(((ROWS - samples.positions[..., None]) / SPREAD) ** 2)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(arviz.loo(data).elpd_loo if hasattr(arviz.loo(data), "elpd_loo") else 0.0)
    assert "log_likelihood" not in samples.to_arviz().groups()


def test_draws_that_are_no_parameters_have_none():
    samples = draw({"y": ROWS, "s": SPREAD}, keep=lambda mean, scale: mean)
    with pytest.raises(ValueError, match="log_likelihood needs a run of a Posterior"):
        samples.to_arviz(log_likelihood=True)
