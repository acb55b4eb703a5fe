import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import GRADIENTS, params, posterior
from sghmc.engine.layout import Layout

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
