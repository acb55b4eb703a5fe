"""Images for training and test; those of the paper's validation set are left out."""

import numpy as np
import pytest

from sghmc.data.archives import Images
from sghmc.paper import figure4


@pytest.fixture
def images(monkeypatch):
    """Twenty images, each told by its first pixel, and three to judge by."""
    rng = np.random.default_rng(0)
    train = Images(rng.integers(0, 256, (20, 4)).astype(np.uint8), np.arange(20, dtype=np.int32))
    train.x[:, 0] = 10 * np.arange(20)
    test = Images(rng.integers(0, 256, (3, 4)).astype(np.uint8), np.arange(3, dtype=np.int32))
    asked = []
    monkeypatch.setattr(figure4, "load_mnist", lambda data: asked.append(data) or (train, test))
    return train, test, asked


def test_as_many_training_rows_as_the_validation_set_had_are_left_out(images):
    train, test, asked = images
    left, judged = figure4.load("mnist", "a folder", 6)
    assert asked == ["a folder"]
    assert (len(left.y), len(set(left.y.tolist())), len(judged.y)) == (14, 14, 3)
    np.testing.assert_allclose(left.x, train.x[left.y] / 256, rtol=1e-6)
    np.testing.assert_allclose(judged.x, test.x / 256, rtol=1e-6)
    assert left.y.tolist() != sorted(left.y.tolist())


def test_digits_have_the_range_of_mnist():
    train, test = figure4.load("digits", None, 200)
    assert train.x.shape == (1097, 64)
    assert len(test.y) == 500
    assert train.x.max() == 1.0  # 16 levels of 16
    assert set(test.y.tolist()) == set(range(10))


def test_other_names_are_refused():
    with pytest.raises(ValueError, match='dataset must be "mnist" or "digits", but is \'cifar\''):
        figure4.load("cifar", None, 5)
