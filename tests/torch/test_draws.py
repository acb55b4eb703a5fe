"""Stores of draws: what goes in comes out, also after a run that was cut off."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch.draws import Folder, Memory


def draw(value: float) -> dict[str, np.ndarray]:
    return {"a/b": np.full((2, 3), value, np.float32), "n": np.array([value > 1, False])}


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_draws_come_back(kind, tmp_path):
    store = Memory() if kind == "memory" else Folder(tmp_path)
    assert store.arrays() == {}
    for value in (1.0, 2.0, 3.0):
        store.append(draw(value))
    store.keep(2)
    store.append(draw(4.0))
    arrays = store.arrays()
    assert arrays["a/b"].shape == (3, 2, 3)
    np.testing.assert_array_equal(arrays["a/b"][:, 0, 0], [1, 2, 4])
    np.testing.assert_array_equal(arrays["n"][:, 0], [False, True, True])
    with pytest.raises(ValueError, match="draws, not 5"):
        store.keep(5)


def test_a_draw_that_was_cut_off_does_not_count(tmp_path):
    store = Folder(tmp_path)
    for value in (1.0, 2.0):
        store.append(draw(value))
    with open(tmp_path / "0.bin", "ab") as file:
        file.write(b"abc")
    other = Folder(tmp_path)
    assert other.num_draws == 2
    other.keep(2)
    other.append(draw(3.0))
    np.testing.assert_array_equal(other.arrays()["a/b"][:, 1, 2], [1, 2, 3])


def test_another_model_is_refused(tmp_path):
    store = Folder(tmp_path)
    store.append(draw(1.0))
    with pytest.raises(ValueError, match="a folder is for one model"):
        Folder(tmp_path).append({"a/b": np.zeros((2, 4), np.float32), "n": np.zeros(2, bool)})
