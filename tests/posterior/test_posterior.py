import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior import passes, posterior

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(13, 2)).astype(np.float32), RNG.normal(size=13).astype(np.float32)
THETA = jnp.array([0.3, -0.7])


def log_likelihood(theta, row):
    x, y = row
    return -0.5 * (y - jnp.dot(x, theta)) ** 2


def log_prior(theta):
    return -0.5 * 1.7 * jnp.sum(theta**2)


def regression():
    return sghmc.Posterior(log_likelihood, log_prior, (X, Y))


def by_hand(theta, x, y, noise=1.0, prior=1.7):
    residual = y - x @ theta
    potential = 0.5 * noise * residual @ residual + 0.5 * prior * theta @ theta
    return potential, -noise * x.T @ residual + prior * theta


@pytest.mark.slow
def test_potential_and_gradient_are_those_written_by_hand():
    potential, gradient = by_hand(np.asarray(THETA, float), X.astype(float), Y.astype(float))
    target = regression()
    np.testing.assert_allclose(target.potential(THETA), potential, rtol=1e-5)
    np.testing.assert_allclose(target.gradient(THETA), gradient, rtol=1e-5)
    evaluation = target.evaluate(THETA)
    np.testing.assert_allclose(evaluation.potential, potential, rtol=1e-5)
    np.testing.assert_allclose(evaluation.grad, gradient, rtol=1e-5)


def test_an_estimate_from_n_rows_scales_the_data_by_N_over_n_and_not_the_prior():
    rows = np.array([3, 5, 5, 12])
    target = regression()
    data_part, _ = by_hand(np.asarray(THETA), X[rows], Y[rows], prior=0.0)
    prior_part = 0.5 * 1.7 * np.sum(np.asarray(THETA) ** 2)
    estimate = target.estimate(THETA, target.rows(jnp.asarray(rows)))
    np.testing.assert_allclose(estimate, 13 / 4 * data_part + prior_part, rtol=1e-5)


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("chunk", [1, 4, 12, 13, 14])
def test_a_pass_in_chunks_is_a_pass_over_all(chunk, monkeypatch):
    target = regression()
    whole = target.evaluate(THETA)
    monkeypatch.setattr(passes, "_MIN_CHUNK_ROWS", chunk)
    anew = functools.partial(target.log_likelihood)  # another function: nothing compiled fits it
    target = sghmc.Posterior(anew, target.log_prior, target.data)
    parts = target.evaluate(THETA)
    np.testing.assert_allclose(parts.potential, whole.potential, rtol=1e-5)
    np.testing.assert_allclose(parts.grad, whole.grad, rtol=1e-5)
    np.testing.assert_allclose(target.potential(THETA), whole.potential, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 4, 6])
def test_an_estimate_in_chunks_is_that_of_the_whole_batch(chunk, monkeypatch):
    """Also second derivatives, forwards over backwards, and by chains."""
    target = regression()
    batch, direction = target.data, jnp.array([0.3, -0.7])

    def seen(theta):
        slope = jax.grad(target.estimate)
        return target.estimate(theta, batch), *jax.jvp(
            lambda t: slope(t, batch), [theta], [direction]
        )

    thetas = jnp.stack([THETA, 2 * THETA])
    whole = jax.vmap(seen)(thetas)
    monkeypatch.setattr(passes, "CPU_BATCH_CHUNK_ROWS", chunk)
    for one, other in zip(jax.vmap(seen)(thetas), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_an_impossible_row_makes_the_potential_infinite_wherever_it_lies(monkeypatch):
    """Also where the last chunk sees it again, and does not count it."""
    monkeypatch.setattr(passes, "_MIN_CHUNK_ROWS", 4)
    for bad in (0, 10, 12):
        data = np.zeros(13, np.float32)
        data[bad] = 2.0
        target = sghmc.Posterior(
            lambda theta, x: jnp.where(x > 1, -jnp.inf, theta * x), lambda theta: 0.0 * theta, data
        )
        assert target.potential(jnp.asarray(1.0)) == np.inf
        assert target.evaluate(jnp.asarray(1.0)).potential == np.inf


def test_hyperparameters_reach_both_functions():
    target = sghmc.Posterior(
        lambda theta, row, hyper: hyper["noise"] * log_likelihood(theta, row),
        lambda theta, hyper: -0.5 * hyper["prior"] * jnp.sum(theta**2),
        (X, Y),
        hyper={"noise": 3.0, "prior": 0.4},
    )
    for noise, prior in ((3.0, 0.4), (0.5, 2.0)):
        target = target.with_hyper({"noise": jnp.asarray(noise), "prior": jnp.asarray(prior)})
        potential, gradient = by_hand(np.asarray(THETA), X, Y, noise, prior)
        np.testing.assert_allclose(target.potential(THETA), potential, rtol=1e-5)
        np.testing.assert_allclose(target.gradient(THETA), gradient, rtol=1e-5)


def test_a_potential_is_its_function():
    target = sghmc.Potential(lambda p: jnp.sum(p["a"] ** 3) + 2 * p["b"])
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.asarray(5.0)}
    assert target.potential(params) == 19
    gradient = target.gradient(params)
    np.testing.assert_array_equal(gradient["a"], [3, 12])
    assert gradient["b"] == 2
    assert target.evaluate(params).potential == 19


def test_data_and_hyper_are_arguments_of_a_compiled_function():
    traces = []

    @jax.jit
    def gradient(data):
        traces.append(1)
        return sghmc.Posterior(log_likelihood, log_prior, data).gradient(THETA)

    first, second = gradient((X, Y)), gradient((2 * X, Y))
    assert len(traces) == 1
    assert not np.allclose(first, second)


def test_methods_can_be_compiled():
    data = {"x": jnp.arange(4.0)}
    target = sghmc.Posterior(
        lambda theta, row: -0.5 * (row["x"] - theta) ** 2, lambda theta: -0.5 * theta**2, data
    )
    theta = jnp.asarray(1.0)
    np.testing.assert_allclose(jax.jit(target.potential)(theta), target.potential(theta))
    np.testing.assert_allclose(jax.jit(target.gradient)(theta), -1.0)


def test_a_pass_over_data_is_not_traced_again():
    calls = []

    def counted(theta, row):
        calls.append(1)
        return log_likelihood(theta, row)

    target = sghmc.Posterior(counted, lambda theta: -jnp.sum(theta**2), (X, Y))
    for look in (target.potential, target.gradient):
        look(THETA)
    once = len(calls)
    moved = target.potential(THETA + 1), target.gradient(THETA + 1)
    assert len(calls) == once > 0
    assert moved[0] != target.potential(THETA)


def test_a_pass_over_data_does_not_copy_them():
    data = jnp.zeros((200_000, 16))
    target = sghmc.Posterior(
        lambda theta, x: -jax.nn.softplus(x @ theta), lambda theta: -jnp.sum(theta**2), data
    )
    gradient: Any = posterior._gradient
    compiled = gradient.lower(target, jnp.zeros(16)).compile().compiled
    assert compiled.memory_analysis().temp_size_in_bytes < 0.7 * data.nbytes
