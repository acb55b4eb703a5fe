"""Images in three parts that share no row."""

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


def test_validation_rows_are_training_rows_that_nobody_learns_from(images):
    train, test, asked = images
    split = figure4.load("mnist", "a folder", 6)
    assert asked == ["a folder"]
    assert (len(split.train.y), len(split.validation.y), len(split.test.y)) == (14, 6, 3)
    assert sorted([*split.train.y, *split.validation.y]) == list(range(20))
    for part in (split.train, split.validation):
        np.testing.assert_allclose(part.x, train.x[part.y] / 256, rtol=1e-6)
    np.testing.assert_allclose(split.test.x, test.x / 256, rtol=1e-6)
    assert split.train.y.tolist() != sorted(split.train.y.tolist())


def test_digits_have_the_range_of_mnist():
    split = figure4.load("digits", None, 200)
    assert split.train.x.shape == (1097, 64)
    assert (len(split.validation.y), len(split.test.y)) == (200, 500)
    assert split.train.x.max() == 1.0  # 16 levels of 16
    assert set(split.test.y.tolist()) == set(range(10))


def test_other_names_are_refused():
    with pytest.raises(ValueError, match='dataset must be "mnist" or "digits", but is \'cifar\''):
        figure4.load("cifar", None, 5)
