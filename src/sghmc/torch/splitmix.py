"""Random words: a counter, hashed.

Word i is h(k + iγ) modulo 2⁶⁴, with the h of SplitMix64 and a key k and an odd γ for each stream
(Steele, Lea & Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; Java's
SplittableRandom). No word needs the one before it, so that passes of NumPy make many at once, in
two thirds of the time of its own generators, which make one after the other.
"""

# pyright: reportPrivateImportUsage=false

import numpy as np
import torch

_LANES = 1 << 15
"""Words of a pass, at most: they stay in the cache for the next one."""
_MASK = (1 << 64) - 1
_FEWEST_CHANGES, _ALTERNATING = 24, 0xAAAAAAAAAAAAAAAA


class Words:
    """A stream of 64-bit words that are found by their number."""

    def __init__(self, key: int, gamma: int):
        self.key, self.gamma = key, gamma
        self._ramp = self._shifted = _vector(0)

    @classmethod
    def seeded(cls, seeds: np.random.SeedSequence) -> "Words":
        key, gamma = seeds.generate_state(2, np.uint64).tolist()
        gamma |= 1
        if (gamma ^ gamma >> 1).bit_count() < _FEWEST_CHANGES:  # bits too regular, by the paper
            gamma ^= _ALTERNATING
        return cls(key, gamma)

    def read(self, first: int, words: np.ndarray) -> None:
        """Write word number `first` and those after it into a vector."""
        self._reserve(min(words.size, _LANES))
        for start in range(0, words.size, _LANES):
            lanes = words[start : start + _LANES]
            begin = np.uint64(self.key + (first + start) * self.gamma & _MASK)
            np.add(self._ramp[: lanes.size], begin, out=lanes)
            _hash(lanes, self._shifted[: lanes.size])

    def _reserve(self, size: int) -> None:
        if self._ramp.size < size:
            self._ramp, self._shifted = _vector(size), _vector(size)
            np.multiply(np.arange(size, dtype=np.uint64), np.uint64(self.gamma), out=self._ramp)


def _vector(size: int) -> np.ndarray:
    """Room for words, in torch's memory: it begins where a line of the cache does.

    NumPy's own does not, and passes over it take a tenth longer.
    """
    return torch.empty(size, dtype=torch.int64).numpy().view(np.uint64)


def _hash(words: np.ndarray, shifted: np.ndarray) -> None:
    """Stafford's variant 13 of the finalizer of MurmurHash3, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        np.multiply(words, np.uint64(factor), out=words)
    np.right_shift(words, np.uint64(31), out=shifted)
    np.bitwise_xor(words, shifted, out=words)
