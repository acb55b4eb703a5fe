"""The numbers are standard normals: in the middle, in the tails, in pairs and in sequence."""

import math

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import box_muller

SIZE = 1 << 20


class Bits:
    """A generator of given words."""

    def __init__(self, *words):
        self.words = np.array(words, np.int64)

    def integers(self, low, high, size, dtype, endpoint):
        assert (low, high, dtype, endpoint) == (-(2**63), 2**63 - 1, np.int64, True)
        return np.resize(self.words, size)


def numbers(dtype, size=SIZE):
    found = np.empty(size, dtype)
    box_muller.fill(np.random.Generator(np.random.SFC64(0)), found)
    return found


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
    half = drawn[: 1 << 17].reshape(2, -1)  # the numbers of a pass, in their pairs
    radius, angle = np.hypot(*half), np.arctan2(*half)
    assert scipy.stats.kstest(radius**2 / 2, "expon").pvalue > 1e-4
    assert scipy.stats.kstest(angle, "uniform", args=(-math.pi, 2 * math.pi)).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_do_not_know_each_other(dtype):
    """Correlations of 2²⁰ numbers have errors of 0.001, and here there are 20: 5 errors."""
    drawn = numbers(dtype).astype(np.float64)
    for shift in (1, 2, 1 << 16, (1 << 16) + 1, 1 << 17):
        other = np.roll(drawn, shift)
        for f, g in ((1, 1), (2, 2), (1, 2), (2, 1)):
            x, y = drawn**f, other**g
            assert abs(np.corrcoef(x, y)[0, 1]) < 5e-3


@pytest.mark.parametrize(("dtype", "num_bits"), [(np.float32, 31), (np.float64, 63)])
def test_bits_that_have_no_logarithm_or_the_largest(dtype, num_bits):
    found = np.empty(4, dtype)
    box_muller.fill(Bits(0), found)  # pyright: ignore[reportArgumentType]
    largest = math.sqrt(2 * (num_bits + 2) * math.log(2))
    np.testing.assert_allclose(found, [largest, largest, 0, 0], rtol=1e-6)
    box_muller.fill(Bits(-(1 << 63)), found)  # pyright: ignore[reportArgumentType]
    assert np.all(np.isfinite(found))


def test_passes_have_their_own_numbers():
    drawn = numbers(np.float64, 3 * box_muller._CHUNK + 2)
    assert len(np.unique(drawn)) == len(drawn)
