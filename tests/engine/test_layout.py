import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import sghmc
from cases import GRADIENTS, params, posterior
from sghmc.engine.layout import Layout, num_bytes

SMALL = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(())}
LARGE = {"a": jnp.zeros((20, 20)), "b": jnp.zeros(())}


@pytest.mark.parametrize(("like", "axis"), [(SMALL, -1), (LARGE, 0)], ids=["small", "large"])
@pytest.mark.parametrize("num_chains", [1, 4])
def test_chains_come_out_as_they_went_in(like, axis, num_chains):
    layout = Layout.of(like, num_chains)
    assert layout.axis == axis
    rng = np.random.default_rng(0)
    chains = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=(num_chains, leaf.size))), like)

    def tripled(flat):
        assert all(leaf.ndim == 1 for leaf in jax.tree.leaves(flat))
        return jax.tree.map(lambda leaf: 3.0 * leaf, layout.shape(flat))

    every = jax.vmap(tripled, layout.axis, layout.axis) if num_chains > 1 else tripled
    inside = every(layout.to_loop(chains))
    for leaf, original, model in zip(*map(jax.tree.leaves, (inside, chains, like)), strict=True):
        outside = layout.chains_first(np.asarray(leaf))
        assert outside.shape == (num_chains, *model.shape)
        np.testing.assert_array_equal(outside, 3.0 * original.reshape(outside.shape))
        with_draws = layout.chains_first(np.stack([leaf, 2 * leaf]), leading=1)
        np.testing.assert_array_equal(with_draws[:, 1], 2 * outside)


@pytest.mark.slow
def test_an_oracle_of_flat_parameters_is_the_oracle():
    like = params()
    layout = Layout.of(like, 1)
    estimator = GRADIENTS["full"].prepare(posterior(), like)
    oracle = estimator.oracle(posterior(), ())
    flat = oracle.through(layout.shape, layout.flatten, keeps_rows=True)
    position = jax.tree.map(jnp.ravel, like)
    shown, expected = flat(0, position), oracle(0, like)
    assert shown.potential == expected.potential == flat.potential(position)
    assert flat.is_exact
    for leaf, model, grad in zip(
        *map(jax.tree.leaves, (shown.grad, layout.flat_like, expected.grad)), strict=True
    ):
        assert leaf.shape == model.shape
        assert leaf.dtype == model.dtype
        np.testing.assert_array_equal(leaf, jnp.ravel(grad))


def test_bytes_are_those_of_a_device_s_own_part():
    """2 · 6 and 3 numbers of four bytes, the first cut in two; momenta are as many again."""
    like = {"a": jnp.zeros((2, 6)), "b": jnp.zeros(3)}
    mesh = jax.sharding.AbstractMesh((2,), ("model",))
    where = [jax.sharding.NamedSharding(mesh, spec) for spec in (P(None, "model"), P())]  # pyright: ignore
    kernel = sghmc.SGHMC(0.1, 1.0).prepare(like)
    for shardings, count in ((None, 15), (tuple(where), 9)):
        layout = Layout.of(like, 3, shardings)
        assert layout.position_bytes() == 4 * count
        assert layout.state_bytes(kernel) == 2 * 4 * count


@pytest.mark.parametrize(("num_parameters", "axis"), [(255, -1), (256, 0)])
def test_chains_come_last_where_vectors_over_parameters_are_short(num_parameters, axis):
    assert Layout.of(jnp.zeros(num_parameters), 2).axis == axis


def test_an_array_that_is_there_twice_counts_once_in_bytes():
    leaf = jnp.zeros(5)
    assert num_bytes({"a": leaf, "b": leaf, "c": jnp.zeros((2, 3), jnp.bfloat16), "d": 7}) == 32
