"""The ready network, and any other library's network in its place."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.models import MLP
from sghmc.posterior.priors import GaussianPrior

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
LABELS = (X[:, 0] + X[:, 1] > 0).astype(np.int32)
TARGETS = (X[:, :1] - 2 * X[:, 1:2]).astype(np.float32)


def with_biases(params):
    return [layer | {"bias": 0.5 - jnp.arange(layer["bias"].size)} for layer in params]


def test_log_likelihood_of_classes():
    model = MLP((4, 5, 3))
    params = with_biases(model.init(jax.random.key(0), scale=1.0))
    hidden = 1 / (1 + np.exp(-(X[0] @ params[0]["weight"] + params[0]["bias"])))
    logits = np.asarray(hidden @ params[1]["weight"] + params[1]["bias"])
    expected = logits[2] - np.log(np.exp(logits).sum())
    example = {"x": jnp.asarray(X[0]), "y": jnp.asarray(2)}
    value = model.log_likelihood(params, example, {})
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    weighted = model.log_likelihood(params, example | {"weight": jnp.asarray(3.0)}, {})
    np.testing.assert_allclose(weighted, 3 * expected, rtol=1e-5)


def test_log_likelihood_of_numbers():
    model = MLP((4, 5, 1), activation=jnp.tanh, likelihood="gaussian")
    params = model.init(jax.random.key(0), scale=1.0)
    example = {"x": jnp.asarray(X[0]), "y": jnp.asarray(TARGETS[0])}
    value = model.log_likelihood(params, example, {"noise": jnp.asarray(4.0)})
    error = float(model.apply(params, example["x"])[0] - TARGETS[0, 0])
    np.testing.assert_allclose(value, 0.5 * np.log(4.0) - 2.0 * error**2, rtol=1e-5)


def test_noise_precision_follows_its_conditional():
    model = MLP((4, 5, 1), likelihood="gaussian", prior=GaussianPrior(2.0, 3.0))
    params = model.init(jax.random.key(0), scale=1.0)
    weight = RNG.uniform(0.5, 2, len(X)).astype(np.float32)
    posterior = model.posterior(X, TARGETS, weight)
    update = model.gibbs(every=1).update
    keys = jax.random.split(jax.random.key(1), 20_000)
    drawn = jax.vmap(lambda key: update(key, params, posterior)["noise"])(keys)
    errors = np.asarray(model.apply(params, jnp.asarray(X))) - TARGETS
    shape, rate = 2 + weight.sum() / 2, 3 + (weight[:, None] * errors**2).sum() / 2
    # |z| < 5: one false alarm in a million.
    z = (np.mean(drawn) - shape / rate) / (np.sqrt(shape) / rate / np.sqrt(len(keys)))
    assert abs(z) < 5


@pytest.mark.slow
def test_learns_a_line():
    model = MLP((4, 8, 1), activation=jnp.tanh, likelihood="gaussian")
    x = jnp.asarray(X)
    samples = sghmc.sample(
        jax.random.key(0),
        model.posterior(X, TARGETS),
        sghmc.SGHMC.from_learning_rate(2e-4, 0.05),
        model.init(jax.random.key(1), scale=0.3),
        num_samples=50,
        num_burnin=50,
        thinning=20,
        gibbs=model.gibbs(every=20),
        keep=lambda params, hyper: (),
        averages={"mean": lambda params, hyper: model.apply(params, x)},
        progress=False,
    )
    error = samples.averages["mean"][0] - TARGETS
    assert np.mean(error**2) < 0.1 * np.var(TARGETS)
    assert samples.hyper["noise"][0, -1] > 5


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (X[:, :3], LABELS, r"x must have shape \(rows, 4\)"),
        (X, LABELS + 2, "y must be codes from 0 to 1, but they range from 2 to 3"),
        (X, LABELS.astype(float), "whole numbers"),
        (X[:10], LABELS, "different lengths"),
    ],
)
def test_wrong_data_is_refused(x, y, error):
    with pytest.raises((ValueError, TypeError), match=error):
        MLP((4, 5, 2)).posterior(x, y)


def test_impossible_networks_are_refused():
    with pytest.raises(ValueError, match="sizes must be"):
        MLP((4,))
    with pytest.raises(ValueError, match="likelihood must be"):
        MLP((4, 2), likelihood="poisson")  # pyright: ignore[reportArgumentType]


def accuracy_of(apply, params):
    """Sample the network `apply(params, x) → logits` with learned precisions; its accuracy."""
    prior = GaussianPrior()

    def log_likelihood(params, example, precisions):
        return jax.nn.log_softmax(apply(params, example["x"]))[example["y"]]

    posterior = sghmc.Posterior(
        log_likelihood, prior.log_density, {"x": X, "y": LABELS}, prior.start(params)
    )
    x = jnp.asarray(X)

    def predict(params, precisions):
        return jax.nn.softmax(jax.vmap(lambda row: apply(params, row))(x))

    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGHMC.from_learning_rate(1e-3, 0.05),
        params,
        gradient=sghmc.Minibatch(20),
        num_samples=40,
        num_burnin=20,
        thinning=10,
        gibbs=prior.gibbs(every=10),
        averages={"probability": predict},
        progress=False,
    )
    return np.mean(samples.averages["probability"][0].argmax(-1) == LABELS)


def test_an_equinox_network():
    network = eqx.nn.MLP(4, 2, width_size=8, depth=1, key=jax.random.key(0))
    params, static = eqx.partition(network, eqx.is_inexact_array)
    assert accuracy_of(lambda p, x: eqx.combine(p, static)(x), params) > 0.9


def test_a_flax_network():
    linen = pytest.importorskip("flax.linen")
    network = linen.Sequential([linen.Dense(8), linen.tanh, linen.Dense(2)])
    params = network.init(jax.random.key(0), jnp.zeros(4))
    assert accuracy_of(network.apply, params) > 0.9
