"""The numbers are standard normals: in the middle, in the tails, in pairs and in sequence."""

import math

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch.normals import Words, transform

SIZE = 1 << 20


def normals(words, dtype):
    found = np.array(words, np.int64).view(dtype)
    transform(found, np.empty(found.size // 2, dtype))
    return found


def numbers(dtype, size=SIZE):
    """From the words that samplers have, too many for one pass."""
    words = np.empty(size * np.dtype(dtype).itemsize // 8, np.uint64)
    Words.seeded(np.random.SeedSequence(0)).read(0, words)
    return normals(words.view(np.int64), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_normal(dtype):
    """Six tests, each of which raises a false alarm for one seed in 10,000."""
    drawn = numbers(dtype)
    assert scipy.stats.kstest(drawn, "norm").pvalue > 1e-4
    assert scipy.stats.kstest(drawn**2, "chi2", args=(1,)).pvalue > 1e-4
    for bound in (3.0, 4.0):
        expected = float(2 * scipy.stats.norm.sf(bound))
        count = int(np.sum(np.abs(drawn) > bound))
        assert scipy.stats.binomtest(count, SIZE, expected).pvalue > 1e-4
    half = drawn.reshape(2, -1)  # in their pairs
    radius, angle = np.hypot(*half), np.arctan2(*half)
    assert scipy.stats.kstest(radius**2 / 2, "expon").pvalue > 1e-4
    assert scipy.stats.kstest(angle, "uniform", args=(-math.pi, 2 * math.pi)).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_do_not_know_each_other(dtype):
    """Correlations of 2²⁰ numbers have errors of 0.001, and here there are 24: 5 errors."""
    drawn = numbers(dtype).astype(np.float64)
    for shift in (1, 2, 1 << 15, 1 << 16, SIZE // 2, SIZE // 2 + 1):
        other = np.roll(drawn, shift)
        for f, g in ((1, 1), (2, 2), (1, 2), (2, 1)):
            x, y = drawn**f, other**g
            assert abs(np.corrcoef(x, y)[0, 1]) < 5e-3


@pytest.mark.parametrize(("dtype", "num_bits"), [(np.float32, 31), (np.float64, 63)])
def test_bits_that_have_no_logarithm_or_the_largest(dtype, num_bits):
    num_words = np.dtype(dtype).itemsize // 2  # of four numbers
    largest = math.sqrt(2 * (num_bits + 2) * math.log(2))
    found = normals([0] * num_words, dtype)
    np.testing.assert_allclose(found, [largest, largest, 0, 0], rtol=1e-6)
    assert np.all(np.isfinite(normals([-(1 << 63)] * num_words, dtype)))
