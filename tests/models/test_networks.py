"""The ready network, and any other library's network in its place."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.models import MLP, networks
from sghmc.posterior.gibbs import GaussianPrior

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
LABELS = (X[:, 0] + X[:, 1] > 0).astype(np.int32)
TARGETS = (X[:, :1] - 2 * X[:, 1:2]).astype(np.float32)


def with_biases(params):
    return [layer | {"bias": 0.5 - jnp.arange(layer["bias"].size)} for layer in params]


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_classes_have_the_softmax_of_two_layers():
    """Of three classes, sigmoid inside, biases that are not 0; a weight multiplies it."""
    model = MLP((2, 3, 4))
    rng = np.random.default_rng(1)
    params = [
        {"weight": rng.normal(size=(2, 3)), "bias": rng.normal(size=3)},
        {"weight": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)},
    ]
    x = np.array([0.7, -1.9])
    hidden = 1 / (1 + np.exp(-(x @ params[0]["weight"] + params[0]["bias"])))
    logits = hidden @ params[1]["weight"] + params[1]["bias"]
    expected = logits[2] - np.log(np.exp(logits).sum())
    example = {"x": x, "y": 2, "weight": 3.0}
    value, rows = jax.jit(
        lambda params, example: (
            model.log_likelihood(params, example, {}),
            model.apply(params, jnp.stack([example["x"], 2 * example["x"]])),
        )
    )(jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params), example)
    assert float(value) == pytest.approx(3 * expected, rel=1e-4)
    np.testing.assert_allclose(rows[0], logits, rtol=1e-4)


def test_weights_start_small_and_biases_at_0():
    first, last = MLP((2, 300, 4)).init(jax.random.key(0))
    assert np.std(first["weight"]) == pytest.approx(0.01, rel=0.15)
    assert (first["weight"].shape, last["weight"].shape) == ((2, 300), (300, 4))
    assert (first["bias"].shape, last["bias"].shape) == ((300,), (4,))
    assert not np.any(first["bias"])
    assert not np.array_equal(first["weight"][:, :4], last["weight"][:2])


def test_noise_is_drawn_from_weighted_squares_of_all_outputs(monkeypatch):
    """What the gamma law is told: shape, rate, Σ w · outputs, Σ w e², and the temperature."""
    asked = []

    def draw_precision(key, shape, rate, count, total, **named):
        asked.append((shape, rate, named))
        return jnp.stack([count, total])

    monkeypatch.setattr(networks, "draw_precision", draw_precision)
    prior = GaussianPrior(2.0, 3.0, 0.7)
    model = MLP((4, 2), likelihood="gaussian", prior=prior)
    params = [{"weight": jnp.asarray(RNG.normal(size=(4, 2)), jnp.float32), "bias": jnp.ones(2)}]
    weight = np.array([0.5, 2.0, 3.0], np.float32)
    targets = RNG.normal(size=(3, 2)).astype(np.float32)
    errors = X[:3] @ np.asarray(params[0]["weight"]) + 1 - targets
    for given in (None, weight):
        w = np.ones(3) if given is None else given
        posterior = model.posterior(X[:3], targets, given)
        assert float(posterior.hyper["noise"]) == 1
        update = eqx.filter_jit(model.gibbs(every=2).update, **runtime.jit_options("once"))
        hyper = update(jax.random.key(1), params, posterior)
        assert asked.pop() == (2.0, 3.0, {"temperature": 0.7})
        count, total = hyper["noise"]
        assert float(count) == pytest.approx(2 * w.sum())
        assert float(total) == pytest.approx((w[:, None] * errors**2).sum(), rel=1e-4)
        assert set(hyper["prior"]) == {"0.weight", "0.bias"}
    assert "noise" not in MLP((4, 2)).posterior(X, LABELS).hyper


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
    with pytest.raises(ValueError, match=r"but is \(4, 0\)"):
        MLP((4, 0))
    with pytest.raises(ValueError, match=r"y must have shape \(rows, 2\) .* \(60, 1\)"):
        MLP((4, 2), likelihood="gaussian").posterior(X, TARGETS)
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


@pytest.mark.slow
def test_an_equinox_network():
    network = eqx.nn.MLP(4, 2, width_size=8, depth=1, key=jax.random.key(0))
    params, static = eqx.partition(network, eqx.is_inexact_array)
    assert accuracy_of(lambda p, x: eqx.combine(p, static)(x), params) > 0.9


@pytest.mark.slow
def test_a_flax_network():
    linen = pytest.importorskip("flax.linen")
    network = linen.Sequential([linen.Dense(8), linen.tanh, linen.Dense(2)])
    params = network.init(jax.random.key(0), jnp.zeros(4))
    assert accuracy_of(network.apply, params) > 0.9
