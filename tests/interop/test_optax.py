"""A sampler in somebody else's training loop gives the chain of `sample`."""

import dataclasses
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sghmc
from cases import NUM_EXAMPLES, SAMPLERS, halving, params, posterior
from sghmc.core import random, tree
from sghmc.engine.chain import GRADIENT, INIT, MOTION, chain_keys
from sghmc.interop.optax import TransformationState, transformation

NUM_STEPS = 12
DENSE = np.diag(np.linspace(0.5, 2.0, 9)) + 0.1
KERNELS_OF_OTHERS = ("sghmc learning rate", "sgrhmc", "cycles of sghmc")
"""Whose gradients are taken where those of another case are."""
CASES = {
    name: sampler
    for name, sampler in SAMPLERS.items()
    if not {"hmc", "mchmc", "resampling", "replicas", "ubu"} & set(name.split())
    and name not in KERNELS_OF_OTHERS
} | {
    "psgld": dataclasses.replace(SAMPLERS["psgld"], correction=False),
    "sgd": sghmc.SGD(halving(0.01)),
    "momentum": sghmc.Momentum(halving(0.01), halving(0.1)),
    "sgld schedules": sghmc.SGLD(halving(0.01), temperature=halving(1.0)),
    "sghmc dense": sghmc.SGHMC(0.1, 2 * DENSE, mass=DENSE, gradient_noise=0.1 * DENSE),
    "sghmc cold": sghmc.SGHMC(0.1, 2.0, temperature=0.0),
}


def mean_loss(target, theta, rows):
    """What a training loop minimizes: the potential's estimate over N."""
    return target.estimate(theta, rows) / NUM_EXAMPLES


def train(key, sampler, target, theta, batches, num_steps=NUM_STEPS):
    """An ordinary optax loop; the parameters after every step."""
    optimizer = transformation(sampler, key, size=NUM_EXAMPLES, num_steps=num_steps)
    state, path = optimizer.init(theta), []

    @jax.jit
    def step(theta, state, rows):
        grads = jax.grad(lambda theta: mean_loss(target, theta, rows))(theta)
        updates, state = optimizer.update(grads, state, theta)
        return optax.apply_updates(theta, updates), state

    for rows in batches:
        theta, state = step(theta, state, rows)
        path.append(theta)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *path)


def run(key, sampler, target, theta, gradient):
    samples = sghmc.sample(
        key, target, sampler, theta, gradient=gradient, num_samples=NUM_STEPS, progress=False
    )
    return jax.tree.map(lambda leaf: leaf[0], samples.positions)


def assert_close(tree, other):
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_loop_gives_the_chain_of_sample(name):
    key, target, theta = jax.random.key(5), posterior(), params(low=jnp.float32)
    path = train(key, CASES[name], target, theta, [target.data] * NUM_STEPS)
    assert_close(path, run(key, CASES[name], target, theta, sghmc.FullBatch()))


@pytest.mark.slow
def test_draws_in_the_middle_of_a_drift_are_in_the_state():
    key, target, theta = jax.random.key(9), posterior(), params(low=jnp.float32)
    sampler = dataclasses.replace(SAMPLERS["sghmc"], observe="middle")
    optimizer = transformation(sampler, key, size=1)
    state = optimizer.init(theta)
    for _ in range(NUM_STEPS):
        updates, state = jax.jit(optimizer.update)(target.gradient(theta), state, theta)
        theta = optax.apply_updates(theta, updates)
    assert isinstance(state, TransformationState)
    expected = run(key, sampler, target, params(low=jnp.float32), sghmc.FullBatch())
    assert_close(state.draw, jax.tree.map(lambda leaf: leaf[-1], expected))
    ends, draws = jax.tree.leaves(theta), jax.tree.leaves(state.draw)
    assert not np.allclose(ends[0], draws[0], atol=1e-4)


@pytest.mark.slow_cases("sghmc", "sgld")
@pytest.mark.parametrize("name", ["sghmc", "sgld", "momentum"])
def test_the_same_batches_give_the_chain_of_sample(name):
    key, target, theta = jax.random.key(6), posterior(), params(low=jnp.float32)
    gradient = sghmc.Minibatch(3)
    keys = chain_keys(key, 1)[0]
    estimator = gradient.prepare(target, theta)
    numbers = estimator.draw(keys[GRADIENT], 0, NUM_STEPS, 1, theta).reshape(NUM_STEPS, 3)
    path = train(key, CASES[name], target, theta, [target.rows(rows) for rows in numbers])
    assert_close(path, run(key, CASES[name], target, theta, gradient))


@pytest.mark.slow
def test_noise_is_equal_bit_for_bit():
    """From 0 with a zero gradient, one Langevin step is the noise: no rounding hides in it."""
    key, zero = jax.random.key(7), {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}
    flat = sghmc.Potential(lambda theta: 0.0 * jnp.sum(tree.ravel(theta)))
    sampler = sghmc.SGLD(0.5)
    optimizer = transformation(sampler, key, size=1)
    updates, _ = optimizer.update(zero, optimizer.init(zero), zero)
    samples = sghmc.sample(key, flat, sampler, zero, num_samples=1, progress=False)
    drawn = random.normals_like(chain_keys(key, 1)[0][0], 0, 1, zero)
    for move, kept, raw in zip(
        jax.tree.leaves(updates), jax.tree.leaves(samples.positions), drawn, strict=True
    ):
        np.testing.assert_array_equal(move, kept[0, 0])
        np.testing.assert_array_equal(np.ravel(move), raw)  # √(2ε) is 1


@pytest.mark.slow
def test_low_precision_leaves_stay_with_the_chain():
    key, target, theta = jax.random.key(8), posterior(), params()
    optimizer = transformation(SAMPLERS["sghmc"], key, size=NUM_EXAMPLES)
    grads = jax.tree.map(jnp.ones_like, theta)
    updates, state = optimizer.update(grads, optimizer.init(theta), theta)
    moved = optax.apply_updates(theta, updates)
    for move, now, before in zip(*map(jax.tree.leaves, (updates, moved, theta)), strict=True):
        assert move.dtype == now.dtype == before.dtype
    assert isinstance(state, TransformationState)
    assert target.potential(state.chain.position) == target.potential(moved)


def test_another_step_does_not_retrace():
    traces = []
    optimizer = transformation(SAMPLERS["sghmc"], jax.random.key(0), size=10)
    theta = {"a": jnp.ones(3)}
    state = jax.jit(optimizer.init)(theta)

    @jax.jit
    def step(theta, state):
        traces.append(None)
        updates, state = optimizer.update(theta, state, theta)
        return optax.apply_updates(theta, updates), state

    for _ in range(3):
        theta, state = step(theta, state)
    assert len(traces) == 1
    optimizer.update(theta, state, theta)  # what jit traced first serves without jit, too


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (SAMPLERS["hmc"], "HMC takes 4: run it with"),
        (SAMPLERS["whitened hmc"], "takes 4: run it with"),
        (SAMPLERS["replicas of sghmc"], "takes 2: run it with"),
        (SAMPLERS["ubu"], "UBU takes them half a step further"),
        (sghmc.PSGLD(0.1), "PSGLD takes a product with the Hessian"),
        (
            sghmc.Whitened(sghmc.PSGLD(0.1), jnp.zeros(2), 0.5),
            r"Whitened\(PSGLD\) takes a product with the Hessian",
        ),
        (sghmc.SGHMC(0.1, 2.0, gradient_noise=sghmc.EmpiricalFisher()), "of single examples"),
        (SAMPLERS["sghmc resampling"], "SGHMC with resample_every"),
        (SAMPLERS["sghmc literal resampling"], "SGHMC with resample_every"),
    ],
)
def test_samplers_that_need_other_gradients_are_refused(sampler, message):
    optimizer = transformation(sampler, jax.random.key(0), size=1)
    with pytest.raises(ValueError, match=message):
        optimizer.init(jnp.zeros(2))


def test_bad_input():
    key, sampler = jax.random.key(0), SAMPLERS["sghmc"]
    with pytest.raises(TypeError, match="typed jax key"):
        transformation(sampler, 0, size=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"needs a sampler such as sghmc\.SGHMC"):
        transformation(optax.sgd(0.1), key, size=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="size must be a whole number from 1, but is 0"):
        transformation(sampler, key, size=0)
    with pytest.raises(ValueError, match="step_size and friction and temperature of SGHMC follow"):
        transformation(SAMPLERS["sghmc schedules"], key, size=1)
    optimizer = transformation(sampler, key, size=1)
    with pytest.raises(ValueError, match="with the parameters"):
        optimizer.update(jnp.zeros(2), optimizer.init(jnp.zeros(2)))


RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(200, 4)), jnp.float32)
LABELS = jnp.asarray(X[:, 0] * X[:, 1] > 0, jnp.int32)


def accuracy_in_a_training_loop(apply, weights):
    """SGHMC as the optimizer of a mean loss with weight decay; the mean prediction is judged."""
    size, batch_size, num_steps = len(X), 20, 2000

    def loss(weights, rows):
        logits = jax.vmap(lambda x: apply(weights, x))(X[rows])
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS[rows])
        prior = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights)) / 2
        return jnp.mean(nll) + prior / size

    optimizer = transformation(
        sghmc.SGHMC.from_learning_rate(1e-3, 0.05), jax.random.key(1), size=size
    )

    def step(carry, key):
        weights, state = carry
        rows = jax.random.randint(key, (batch_size,), 0, size)
        updates, state = optimizer.update(jax.grad(loss)(weights, rows), state, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, state), jax.nn.softmax(jax.vmap(lambda x: apply(weights, x))(X))

    keys = jax.random.split(jax.random.key(2), num_steps)
    _, predicted = jax.lax.scan(step, (weights, optimizer.init(weights)), keys)
    return np.mean(predicted[num_steps // 2 :].mean(0).argmax(-1) == LABELS)


def accuracy_by_sample(apply, weights):
    target = sghmc.Posterior(
        lambda weights, row: jax.nn.log_softmax(apply(weights, row["x"]))[row["y"]],
        lambda weights: -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights)) / 2,
        {"x": X, "y": LABELS},
    )
    samples = sghmc.sample(
        jax.random.key(1),
        target,
        sghmc.SGHMC.from_learning_rate(1e-3, 0.05),
        weights,
        gradient=sghmc.Minibatch(20),
        num_burnin=100,
        num_samples=100,
        thinning=10,
        keep=lambda weights: (),
        averages={"p": lambda w: jax.nn.softmax(jax.vmap(lambda x: apply(w, x))(X))},
        progress=False,
    )
    return np.mean(samples.averages["p"][0].argmax(-1) == LABELS)


@pytest.mark.slow
def test_an_equinox_model_in_a_training_loop():
    network = eqx.nn.MLP(4, 2, width_size=16, depth=1, key=jax.random.key(0))
    weights, static = eqx.partition(network, eqx.is_inexact_array)
    assert accuracy_in_a_training_loop(lambda w, x: eqx.combine(w, static)(x), weights) > 0.9


@pytest.mark.slow
def test_a_flax_model_by_sample():
    from flax import nnx

    rngs = nnx.Rngs(0)
    network = nnx.Sequential(nnx.Linear(4, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, 2, rngs=rngs))
    graph, weights = nnx.split(network)
    assert accuracy_by_sample(lambda w, x: nnx.merge(graph, w)(x), weights) > 0.9


def test_one_langevin_step_by_hand():
    """θ ← θ − εPN·g + √(2εP) n, with the normals of the first chain of `sample`; steps count up."""
    key, theta = jax.random.key(7), jnp.asarray([2.0, -3.0, 0.5])
    grad = jnp.asarray([0.1, -0.2, 0.4])
    optimizer = cast(Any, transformation(sghmc.SGLD(0.3, 1.7), key, size=5))
    state = optimizer.init(theta)
    assert isinstance(state, TransformationState)
    assert (int(state.step), state.draw) == (0, None)
    for step in range(2):
        updates, state = optimizer.update(grad, state, theta)
        (normals,) = random.normals_like(chain_keys(key, 1)[0][MOTION], step, 1, theta)
        expected = -0.3 * 1.7 * 5 * grad + np.sqrt(2 * 0.3 * 1.7) * np.ravel(normals)
        np.testing.assert_allclose(updates, expected, rtol=1e-5, atol=1e-6)
        theta = theta + updates
        assert int(state.step) == step + 1


def test_momenta_begin_from_their_own_stream_and_the_middle_of_a_drift_is_in_the_state():
    """v ~ N(0, ε²/M) before the first step; then v ← v − αv − ε²g/M + …, θ ← θ + v."""
    key, theta = jax.random.key(7), jnp.asarray([2.0, -3.0])
    grad = jnp.asarray([0.1, -0.2])
    sampler = sghmc.SGHMC(lambda t: 0.3 / (1 + t), 1.2, 1.7, temperature=0.8, observe="middle")
    optimizer = cast(Any, transformation(sampler, key, size=5, num_steps=2))
    state, keys = optimizer.init(theta), chain_keys(key, 1)[0]
    np.testing.assert_array_equal(state.draw, theta)
    (first,) = random.normals_like(keys[INIT], 0, 1, theta)
    r = np.sqrt(0.8 * 1.7) * np.asarray(first)
    for t in range(2):
        epsilon = 0.3 / (1 + t)
        (normals,) = random.normals_like(keys[MOTION], t, 1, theta)
        r = r - epsilon * 5 * np.asarray(grad) - epsilon * 1.2 / 1.7 * r
        r = r + np.sqrt(2 * epsilon * 0.8 * 1.2) * np.asarray(normals)
        updates, state = optimizer.update(grad, state, theta)
        np.testing.assert_allclose(updates, epsilon * r / 1.7, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.draw, theta + epsilon * r / 3.4, rtol=1e-5, atol=1e-6)
        theta = theta + updates
