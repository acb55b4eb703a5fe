"""Training: gradients of the right size, and a mean that is learned."""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.mlp import training
from sghmc.estimators.mlp.number_network import Kind, NumberNetwork, Table

NETWORK = NumberNetwork(1, (), "silu")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 256)).astype(np.float32)
Y = (0.7 * X[0] + 0.2 * RNG.normal(size=256)).astype(np.float32)
TABLE = Table(X, Y, np.ones(256, np.float32))


def slope(z) -> np.ndarray:
    return NETWORK.layers(np.asarray(z))[0][:, 0, 0]


def test_both_ways_learn_the_line():
    start = NETWORK.start(jax.random.key(0), 3)
    few = training.of_all_rows(NETWORK, start, TABLE, Kind.of(["constant"] * 3))
    best = np.polyfit(X[0], Y, 1)[0]
    far, near = (np.abs(slope(z) - best).max() for z in (start, few))
    assert near < 0.7 * far
    many = training.of_batches(
        NETWORK, jax.random.key(1), start, TABLE, Kind.of(["constant"] * 3), 1500, 32
    )
    # 256 rows of noise 0.2: the posterior's own sd is 0.013.
    np.testing.assert_allclose(slope(many), best, atol=0.02)
    level = NETWORK.named(np.asarray(many))["log_scale"]
    np.testing.assert_allclose(level, np.log(0.2), atol=0.15)


def test_batches_stand_for_all_rows():
    """One step from rows that are all the same is a step from one of them."""
    same = Table(jnp.ones((1, 64)), jnp.ones(64), jnp.ones(64))
    start = NETWORK.start(jax.random.key(0), 2)
    kind = Kind.of(["constant"] * 2)
    one = training.of_batches(NETWORK, jax.random.key(1), start, same, kind, 3, 64)
    few = training.of_batches(NETWORK, jax.random.key(2), start, same, kind, 3, 16)
    np.testing.assert_allclose(one, few, rtol=1e-4, atol=1e-6)
