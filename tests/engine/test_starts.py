"""One start for all chains, or one for each."""

import jax.numpy as jnp
import numpy as np

from sghmc.engine.layout import InitialPositions, repeated

INIT = {"a": np.arange(6.0, dtype=np.float32).reshape(3, 2)}


def test_a_start_of_all_chains_is_that_of_each():
    start = InitialPositions(INIT, None)
    np.testing.assert_array_equal(start.of_chain(2)["a"], INIT["a"])
    found = start.of_chains(4)["a"]
    np.testing.assert_array_equal(found, np.stack([INIT["a"]] * 4))
    assert isinstance(start.arrays["a"], jnp.ndarray)


def test_a_start_for_each_chain_has_them_along_its_first_axis():
    start = InitialPositions(INIT, 0)
    np.testing.assert_array_equal(start.of_chain(2)["a"], [4, 5])
    np.testing.assert_array_equal(start.of_chains(3)["a"], INIT["a"])


def test_copies_come_first():
    assert repeated(jnp.zeros((2, 3)), 4).shape == (4, 2, 3)
