"""A run on a source is the run on its arrays; what goes wrong keeps the draws made before."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.engine import prefetch
from sghmc.gradients import BatchEstimator
from sghmc.posterior import sources

N = 300
INIT = jnp.full(2, 0.1)


def log_likelihood(theta, row):
    return -jax.nn.softplus(-row["y"] * (row["x"] @ theta))


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2)).astype(np.float32)
    return {"x": x, "y": np.sign(rng.normal(size=N) + x[:, 0]).astype(np.float32)}


@pytest.fixture
def posteriors(tmp_path, arrays, monkeypatch):
    """The same posterior in memory and in files, read in windows of a few draws."""
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.setattr(prefetch, "_WINDOW_BYTES", 1_000)
    monkeypatch.setattr(sources, "_MAX_CHUNK_ROWS", 128)
    mapped = sghmc.data.MemoryMapped(tmp_path)
    return [sghmc.Posterior(log_likelihood, log_prior, data) for data in (arrays, mapped)]


def run(posterior, gradient, sampler=None, **options):
    sampler = sghmc.SGHMC(0.05, friction=3.0) if sampler is None else sampler
    options = {"num_samples": 12, "num_burnin": 3, "thinning": 2, "progress": False} | options
    return sghmc.sample(jax.random.key(5), posterior, sampler, INIT, gradient=gradient, **options)


@pytest.mark.slow
def test_passes_over_all_data(posteriors):
    in_memory, mapped = posteriors
    for method in ("potential", "gradient"):
        there, here = getattr(in_memory, method)(INIT), getattr(mapped, method)(INIT)
        np.testing.assert_allclose(here, there, rtol=2e-6)
        np.testing.assert_allclose(jax.jit(getattr(mapped, method))(INIT), there, rtol=2e-6)


@pytest.mark.slow
def test_a_run_takes_the_rows_that_arrays_would_give(posteriors, monkeypatch):
    """With an estimate of the noise, which looks at the next step's batch, over several windows.

    The next window has always been read before a window is used: it must lie elsewhere.
    """
    submit = prefetch.Reader._submit

    def submit_and_wait(self, number, before):
        future = submit(self, number, before)
        concurrent.futures.wait([future])
        return future

    monkeypatch.setattr(prefetch.Reader, "_submit", submit_and_wait)
    fisher = sghmc.EmpiricalFisher(every=2, raise_friction=True)
    sampler = sghmc.SGHMC(0.01, friction=3.0, gradient_noise=fisher)
    there, here = (run(each, sghmc.Minibatch(10), sampler, num_chains=2) for each in posteriors)
    np.testing.assert_allclose(here.positions, there.positions, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(here.info.potential, there.info.potential, rtol=1e-5)


@pytest.mark.slow
def test_a_control_variate_and_an_accept_step_stream_over_all_data(posteriors):
    sampler = sghmc.HMC(0.05, 3)
    gradient = sghmc.ControlVariate(10, INIT, shared=True)
    there, here = (run(each, gradient, sampler, num_chains=2) for each in posteriors)
    np.testing.assert_allclose(here.positions, there.positions, rtol=1e-4, atol=1e-6)
    assert there.info.acceptance is not None
    assert there.info.acceptance.min() < 1


def fail_after(num_reads, message, posterior, monkeypatch):
    """Reads of a posterior's rows raise after so many."""
    kind, reads = type(posterior.source), iter(range(num_reads))
    read = kind.read

    def failing(self, numbers, rows):
        if next(reads, None) is None:
            raise sghmc.DataError(message)
        read(self, numbers, rows)

    monkeypatch.setattr(kind, "read", failing)


@pytest.mark.slow
def test_a_file_that_fails_leaves_the_draws_before(posteriors, monkeypatch):
    """Rows spoiled after some draws: the error has these draws, and names the row."""
    mapped = posteriors[1]
    draw, num_traces = BatchEstimator.draw, 0

    def counted(self, *args):
        nonlocal num_traces
        num_traces += 1
        return draw(self, *args)

    monkeypatch.setattr(BatchEstimator, "draw", counted)
    whole = run(mapped, sghmc.Minibatch(10))
    assert num_traces <= 2  # of one step, and of a window: not of every window
    with monkeypatch.context() as patch:
        fail_after(2, "x.npy has changed", mapped, patch)
        with pytest.raises(sghmc.DataError, match="has changed") as caught:
            run(mapped, sghmc.Minibatch(10))
    kept = caught.value.samples.positions
    assert 0 < kept.shape[1] < 12
    np.testing.assert_array_equal(kept, whole.positions[:, : kept.shape[1]])
    fail_after(2, "x.npy has changed", mapped, monkeypatch)
    with pytest.warns(UserWarning, match=r"has changed The run ended after \d+ of 15 draws"):
        flagged = run(mapped, sghmc.Minibatch(10), throw=False)
    np.testing.assert_array_equal(flagged.positions, kept)


@pytest.mark.slow
def test_a_pass_that_fails_leaves_the_draws_before(posteriors, monkeypatch):
    """Inside the compiled loop: every step of an exact gradient reads all rows."""
    mapped = posteriors[1]
    fail_after(60, "x.npy is gone", mapped, monkeypatch)
    with pytest.raises(sghmc.DataError, match="is gone") as caught:
        run(mapped, sghmc.FullBatch(), num_samples=1_000, num_burnin=0)
    assert 0 < caught.value.samples.num_draws < 20


def test_a_stack_takes_no_source(posteriors):
    with pytest.raises(TypeError, match="takes arrays only"):
        sghmc.Posterior.stack(posteriors)
