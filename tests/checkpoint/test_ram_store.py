import numpy as np

from sghmc.checkpoint.store import RamStore


def test_memory_holds_draws_in_the_order_in_which_they_come():
    loop = np.arange(5 * 2 * 3.0).reshape(5, 2, 3)  # (draw, parameter, chain)
    rows = {"x": np.moveaxis(loop, -1, 0)}
    store = RamStore({"x": rows["x"][:, :0]}, num_draws=6)
    assert store.draws()["x"].shape == (3, 0, 2)
    store.append({"x": rows["x"][:, :1]})
    store.append({"x": rows["x"][:, 1:]})
    draws = store.draws()["x"]
    np.testing.assert_array_equal(draws, rows["x"])
    assert np.moveaxis(draws, 0, -1).flags.c_contiguous, "copying rows turns them round"
