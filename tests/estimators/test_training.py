"""Training: gradients of the right size, and a mean that is learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators import network_training
from sghmc.estimators.regression_network import Kind, NumberNetwork, Table

NETWORK = NumberNetwork(1, (), "silu")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 256)).astype(np.float32)
Y = (0.7 * X[0] + 0.2 * RNG.normal(size=256)).astype(np.float32)
TABLE = Table(X, Y, np.ones(256, np.float32))


def slope(z) -> np.ndarray:
    return NETWORK.layers(np.asarray(z))[0][:, 0, 0]


@pytest.mark.slow
def test_both_ways_learn_the_line():
    start = NETWORK.start(jax.random.key(0), 3)
    few = network_training.of_all_rows(NETWORK, start, TABLE, Kind.of(["constant"] * 3))
    best = np.polyfit(X[0], Y, 1)[0]
    far, near = (np.abs(slope(z) - best).max() for z in (start, few))
    assert near < 0.7 * far
    many = network_training.of_batches(
        NETWORK, jax.random.key(1), start, TABLE, Kind.of(["constant"] * 3), 1500, 32
    )
    # 256 rows of noise 0.2: the posterior's own sd is 0.013.
    np.testing.assert_allclose(slope(many), best, atol=0.02)
    level = NETWORK.named(np.asarray(many))["log_scale"]
    np.testing.assert_allclose(level, np.log(0.2), atol=0.15)


@pytest.mark.slow
def test_batches_stand_for_all_rows():
    """One step from rows that are all the same is a step from one of them."""
    same = Table(jnp.ones((1, 64)), jnp.ones(64), jnp.ones(64))
    start = NETWORK.start(jax.random.key(0), 2)
    kind = Kind.of(["constant"] * 2)
    one = network_training.of_batches(NETWORK, jax.random.key(1), start, same, kind, 3, 64)
    few = network_training.of_batches(NETWORK, jax.random.key(2), start, same, kind, 3, 16)
    np.testing.assert_allclose(one, few, rtol=1e-4, atol=1e-6)


# Quick tests of the same facts: steps by hand, and gradients of a model that is a line.


class Line:
    """log p = Σ weight · y · (x·z) · level: its gradient is known, whatever z is."""

    def log_likelihood(self, z, table, kind):
        return jnp.sum(table.weight * table.y * (z @ table.x)) * kind

    def potential(self, z, table, kind):
        return 0.5 * jnp.sum(z**2) - self.log_likelihood(z, table, kind)


SMALL = Table(
    jnp.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]]),
    jnp.array([2.0, -3.0, 0.4]),
    jnp.array([0.6, 1.7, 2.2]),
)
LEVELS = jnp.array([0.7, 1.9])
STARTS = jnp.array([[0.2, -0.4], [1.1, 0.9]])


def grads_by_hand(rows) -> np.ndarray:
    """Of the log-likelihood of some rows: (chain, parameter)."""
    x, y, weight = (np.asarray(part) for part in SMALL)
    slope = x[:, rows] @ (weight[rows] * y[rows])
    return np.asarray(LEVELS)[:, None] * slope[None]


@pytest.fixture
def slopes(monkeypatch):
    """What training hands to Adam: start, number of steps, and the slope as a function."""
    seen = {}

    def adam(position, num_steps, slope):
        seen.update(position=position, num_steps=num_steps, slope=slope)
        return position

    monkeypatch.setattr(network_training, "_adam", adam)
    for name in ("_with_all", "_with_batches"):  # without the compiler
        monkeypatch.setattr(network_training, name, getattr(network_training, name).__wrapped__)
    return seen


def test_the_slope_of_all_rows_is_that_of_the_potential_per_row(slopes):
    network_training.of_all_rows(Line(), STARTS, SMALL, LEVELS)  # pyright: ignore[reportArgumentType]
    found = jax.jit(slopes["slope"])(0, STARTS)
    wanted = (np.asarray(STARTS) - grads_by_hand([0, 1, 2])) / 4.5
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert slopes["num_steps"] == 300
    np.testing.assert_array_equal(slopes["position"], STARTS)


def test_the_slope_of_a_batch_counts_its_rows_for_all(slopes):
    """N/n times the batch's gradient; every step draws a batch of its own."""
    key = jax.random.key(3)
    network_training.of_batches(Line(), key, STARTS, SMALL, LEVELS, 7, 2)  # pyright: ignore
    slope = jax.jit(slopes["slope"])
    for step in range(3):
        rows = jax.random.randint(jax.random.fold_in(key, step), (2,), 0, 3)
        wanted = (np.asarray(STARTS) - 3 / 2 * grads_by_hand(np.asarray(rows))) / 4.5
        np.testing.assert_allclose(slope(step, STARTS), wanted, rtol=1e-5)
    assert slopes["num_steps"] == 7


def test_adam_takes_the_steps_that_are_said():
    """Means with memories 0.9 and 0.999, corrected for their start; the rate falls as a cosine."""
    start, pull = np.array([[1.5, -0.5]]), np.array([[3.0, 0.2]])
    with jax.disable_jit():
        found = network_training._adam(jnp.asarray(start), 4, lambda t, z: (1 + t) * pull * z)
    position, mean, square = start.copy(), 0.0, 0.0
    for t in range(4):
        grad = (1 + t) * pull * position
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
        rate = 0.005 * (1 + np.cos(np.pi * t / 4)) / 2
        ratio = (mean / (1 - 0.9 ** (t + 1))) / np.sqrt(square / (1 - 0.999 ** (t + 1)))
        position = position - rate * ratio
    np.testing.assert_allclose(np.asarray(found) - start, position - start, rtol=2e-3)


def test_a_slope_of_nothing_moves_nothing():
    with jax.disable_jit():
        found = network_training._adam(jnp.ones((1, 2)), 2, lambda t, z: jnp.zeros_like(z))
    np.testing.assert_array_equal(found, 1)
