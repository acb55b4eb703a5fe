"""The words are those of SplitMix64, whichever are asked for; seeds make streams of their own."""

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import normals
from sghmc.torch.normals import Words

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def read(words: Words, first: int, count: int) -> np.ndarray:
    found = np.empty(count, np.uint64)
    words.read(first, found)
    return found


def test_words_are_those_that_were_published():
    """The first five of java.util.SplittableRandom's generator, seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert read(Words(1234567, GOLDEN), 1, 5).tolist() == published


def test_a_word_is_a_function_of_its_number():
    """Over the ends of passes, and far on, where numbers have more digits than 64."""
    words = Words(3, GOLDEN)
    all_of_them = read(words, 0, 3 * normals._PASS_WORDS + 7)
    assert len(np.unique(all_of_them)) == len(all_of_them)
    for first, count in ((0, 1), (5, 100), (normals._PASS_WORDS - 1, normals._PASS_WORDS + 2)):
        np.testing.assert_array_equal(
            read(Words(3, GOLDEN), first, count), all_of_them[first : first + count]
        )
    moved = Words(3 + (10**18 * GOLDEN) & MASK, GOLDEN)
    np.testing.assert_array_equal(read(words, 10**18, 9), read(moved, 0, 9))


def test_seeds_make_streams_of_their_own():
    streams = [Words.seeded(seeds) for seeds in np.random.SeedSequence(0).spawn(2_000)]
    assert len({stream.key for stream in streams}) == len({each.gamma for each in streams}) == 2_000
    for stream in streams:
        assert stream.gamma % 2 == 1
        assert (stream.gamma ^ stream.gamma >> 1).bit_count() >= 24
    first = np.concatenate([read(stream, 0, 100) for stream in streams])
    assert len(np.unique(first)) == len(first)


@pytest.mark.parametrize("shift", [1, 2, 64, 1 << 15])
def test_bits_do_not_know_each_other(shift):
    """Of neighbors and of lanes, 64 bits against 64; a false alarm for one seed in 10,000."""
    words = read(Words.seeded(np.random.SeedSequence(1)), 0, 1 << 17)
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).astype(np.float32) * 2 - 1
    num_pairs = len(bits) - shift
    sums = bits[:num_pairs].T @ bits[shift:]
    statistic = float(np.sum(sums.astype(np.float64) ** 2)) / num_pairs
    assert scipy.stats.chi2(64 * 64).sf(statistic) > 1e-4
    assert scipy.stats.chi2(64 * 64).cdf(statistic) > 1e-4


def test_streams_do_not_know_each_other():
    one, other = (Words.seeded(s) for s in np.random.SeedSequence(2).spawn(2))
    bits = [
        np.unpackbits(read(each, 0, 1 << 17).view(np.uint8)).reshape(-1, 64).astype(np.float32)
        for each in (one, other)
    ]
    sums = (bits[0] * 2 - 1).T @ (bits[1] * 2 - 1)
    statistic = float(np.sum(sums.astype(np.float64) ** 2)) / (1 << 17)
    assert 1e-4 < scipy.stats.chi2(64 * 64).sf(statistic) < 1 - 1e-4
