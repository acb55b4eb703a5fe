"""What all sources share: the order of row numbers, and memory that jax takes as it is."""

import jax
import numpy as np
import pytest

from sghmc.data import Stream
from sghmc.posterior.sources import increasing, inverse


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_row_numbers_in_a_stable_order(dtype):
    """Numbers that differ in one half alone, in both, and not at all."""
    rng = np.random.default_rng(0)
    few = np.array([0, 1, 65_535, 65_536, 65_537, 131_072, 2**31 - 1])
    numbers = np.concatenate([rng.choice(few, 100), rng.integers(0, 2**31, 1_000)]).astype(dtype)
    order = increasing(numbers)
    np.testing.assert_array_equal(order, np.argsort(numbers, kind="stable"))
    np.testing.assert_array_equal(numbers[order][inverse(order)], numbers)


def test_room_is_taken_without_a_copy_where_a_processor_computes():
    room = Stream([{"x": np.ones((3, 5)), "y": np.ones(3, bool)}], size=3).empty(7)
    assert (room["x"].shape, room["y"].dtype) == ((7, 5), bool)
    for leaf in jax.tree.leaves(room):
        assert leaf.ctypes.data % 64 == 0
    if jax.default_backend() == "cpu":
        array = jax.device_put(room["x"])
        assert array.unsafe_buffer_pointer() == room["x"].ctypes.data
