"""Training: gradients of the right size, and a mean that is learned."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators.regression_network import Kind, RegressionNetwork, Table, train

NETWORK = RegressionNetwork(1, (), "silu")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 256)).astype(np.float32)
Y = (0.7 * X[0] + 0.2 * RNG.normal(size=256)).astype(np.float32)
TABLE = Table(X, Y, np.ones(256, np.float32))


def slope(z) -> np.ndarray:
    return NETWORK.layers(np.asarray(z))[0][:, 0, 0]


@pytest.mark.slow
def test_both_ways_learn_the_line():
    start = NETWORK.start(jax.random.key(0), 3)
    kind = Kind.of("constant")
    few = train(NETWORK, jax.random.key(1), start, TABLE, kind, 300, None)
    best = np.polyfit(X[0], Y, 1)[0]
    far, near = (np.abs(slope(z) - best).max() for z in (start, few))
    assert near < 0.7 * far
    many = train(NETWORK, jax.random.key(1), start, TABLE, kind, 1500, 32)
    # 256 rows of noise 0.2: the posterior's own sd is 0.013.
    np.testing.assert_allclose(slope(many), best, atol=0.02)
    level = NETWORK.named(np.asarray(many))["log_scale"]
    np.testing.assert_allclose(level, np.log(0.2), atol=0.15)


@pytest.mark.slow
def test_batches_stand_for_all_rows():
    """One step from rows that are all the same is a step from one of them."""
    same = Table(jnp.ones((1, 64)), jnp.ones(64), jnp.ones(64))
    start = NETWORK.start(jax.random.key(0), 2)
    kind = Kind.of("constant")
    one = train(NETWORK, jax.random.key(1), start, same, kind, 3, 64)
    few = train(NETWORK, jax.random.key(2), start, same, kind, 3, 16)
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
STARTS = np.array([[0.2, -0.4], [1.1, 0.9]])


def slope_by_hand(z, rows) -> np.ndarray:
    """The potential's gradient a row, estimated from some rows: (chain, parameter)."""
    x, y, weight = (np.asarray(part, np.float64) for part in SMALL)
    return (z - 3 / len(rows) * 0.7 * x[:, rows] @ (weight[rows] * y[rows])) / 4.5


@pytest.mark.parametrize("batch_size", [None, 2])
def test_adam_takes_the_steps_that_are_said(batch_size):
    """Memories 0.9 and 0.999, corrected for their start; the rate falls as a cosine.

    Every step draws a batch of its own, whose gradient counts N/n times.
    """
    key: jax.Array = jax.random.key(3)
    line: Any = Line()
    found = train(line, key, STARTS, SMALL, jnp.asarray(0.7), 4, batch_size)  # pyright: ignore
    position, mean, square = STARTS.copy(), 0.0, 0.0
    for t in range(4):
        rows = np.arange(3)
        if batch_size is not None:
            rows = np.asarray(jax.random.randint(jax.random.fold_in(key, t), (2,), 0, 3))
        grad = slope_by_hand(position, rows)
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
        rate = 0.005 * (1 + np.cos(np.pi * t / 4)) / 2
        ratio = (mean / (1 - 0.9 ** (t + 1))) / np.sqrt(square / (1 - 0.999 ** (t + 1)))
        position = position - rate * ratio
    np.testing.assert_allclose(np.asarray(found) - STARTS, position - STARTS, rtol=2e-3, atol=1e-6)


class Slope:
    """log p = Σ weight · z of each row: its gradient counts the rows."""

    def log_likelihood(self, z, table, kind):
        return jnp.sum(table.weight) * z[0]


def test_a_batch_stands_for_all_rows_beside_the_prior():
    """−½z² + 4z at z = 2.5 rises, as the first step of Adam does, where −½z² + z falls."""
    table = Table(np.zeros((1, 4), np.float32), np.zeros(4, np.float32), np.ones(4, np.float32))
    start = jnp.full((2, 1), 2.5)
    found = train(cast(Any, Slope()), jax.random.key(0), start, table, cast(Any, 0), 1, 1)
    np.testing.assert_allclose(found, 2.505, rtol=1e-5)
