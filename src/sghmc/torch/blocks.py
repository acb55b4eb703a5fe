"""Normals for the next steps of a small network on a CPU, drawn many at once.

What one step of a small network needs is drawn sooner than a second thread begins, and passes of
NumPy over so few numbers are mostly calls. Both pay in a block for many steps.
"""

# pyright: reportPrivateImportUsage=false

import functools

import numpy as np
import torch

from sghmc.torch import box_muller, threads

_MOST_STEPS, _MOST = 64, 1 << 21
"""A block is for so many steps, or for as many as need so many numbers."""
_SHARE = 1 << 15
"""Numbers of a block for each generator, at least."""
_NUM_GENERATORS = 8
_EVEN = 2 * _NUM_GENERATORS
"""What sizes are multiples of: every generator makes pairs."""


class Block:
    """Generators, the numbers that they made last, and how many of these were taken.

    Numbers depend on the seed and on the sizes that were asked for, not on the number of threads.
    """

    def __init__(self, dtype: torch.dtype, seeds: np.random.SeedSequence):
        self._bits = [np.random.SFC64(seed) for seed in seeds.spawn(_NUM_GENERATORS)]
        self._numbers = torch.empty(0, dtype=dtype)
        self._begun = self._states()
        self._taken = 0

    def take(self, size: int) -> torch.Tensor:
        """A vector of standard normals, which no later call gives again."""
        if self._taken + size > self._numbers.numel():
            many = max(size, min(_MOST_STEPS * size, _MOST), self._numbers.numel())
            self._fill(many + -many % _EVEN)
            self._taken = 0
        self._taken += size
        return self._numbers[self._taken - size : self._taken]

    def _fill(self, size: int) -> None:
        self._begun = self._states()
        if size != self._numbers.numel():
            self._numbers = self._numbers.new_empty(size)
        most = min(_NUM_GENERATORS, max(1, size // _SHARE))
        parts = np.split(self._numbers.numpy(), 1 << (most.bit_length() - 1))
        generators = map(np.random.Generator, self._bits)
        pairs = zip(generators, parts, strict=False)
        threads.run(functools.partial(box_muller.fill, *pair) for pair in pairs)

    def _states(self) -> np.ndarray:
        return np.stack([bits.state["state"]["state"] for bits in self._bits])

    def state(self) -> torch.Tensor:
        """The generators' words before this block, its size, and how much of it was taken."""
        counts = [self._numbers.numel(), self._taken]
        return torch.tensor([*self._begun.view(np.int64).flatten().tolist(), *counts])

    def load_state(self, state: torch.Tensor) -> None:
        *words, size, self._taken = state.tolist()
        rows = np.array(words, np.int64).view(np.uint64).reshape(_NUM_GENERATORS, -1)
        for bits, row in zip(self._bits, rows, strict=True):
            bits.state = {**bits.state, "state": {"state": row}}
        self._begun = self._states()
        if size:
            self._fill(size)
