"""Normals for the next steps of a small network on a CPU, drawn many at once.

Passes of NumPy over what one step of a small network needs are mostly calls: they pay in a block
for many steps. One thread draws it. The others of torch wait for work without sleeping, for
milliseconds after a backward pass, and a thread of our own would have to share a core with them.
"""

# pyright: reportPrivateImportUsage=false

import numpy as np
import torch

from sghmc.torch import box_muller
from sghmc.torch.splitmix import Words

_MOST_STEPS, _MOST = 64, 1 << 21
"""A block is for so many steps, or for as many as need so many numbers."""
_CHUNK = 1 << 17
"""Numbers that are made together, and stay in the cache meanwhile."""


class Block:
    """Numbers that a stream of words made last, and how many of them were taken.

    They depend on the seed and on the sizes that were asked for.
    """

    def __init__(self, dtype: torch.dtype, seeds: np.random.SeedSequence):
        self.numbers = torch.empty(0, dtype=dtype)
        self._words = Words.seeded(seeds)
        self._room = self.numbers
        self._first = 0
        """The number of the block's first word."""
        self._taken = 0

    def take(self, size: int) -> int:
        """Where in `numbers` so many standard normals are, which no later call gives again."""
        if self._taken + size > self.numbers.numel():
            num_steps = max(1, min(_MOST_STEPS, _MOST // size))
            many = max(num_steps * size, self.numbers.numel())
            self._fill(self._first + self._num_words(self.numbers.numel()), many + many % 2)
            self._taken = 0
        self._taken += size
        return self._taken - size

    @torch._disable_dynamo  # which would trace NumPy's passes as torch's, without unsigned words
    def _fill(self, first: int, size: int) -> None:
        self._first = first
        if size != self.numbers.numel():
            self.numbers = self.numbers.new_empty(size)
            self._room = self.numbers.new_empty(min(size, _CHUNK) // 2)
        numbers, room = self.numbers.numpy(), self._room.numpy()
        for start in range(0, size, _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            self._words.read(first + self._num_words(start), chunk.view(np.uint64))
            box_muller.transform(chunk, room)

    def _num_words(self, size: int) -> int:
        """What so many numbers, an even count, are made of."""
        return size * self.numbers.dtype.itemsize // 8

    def state(self) -> torch.Tensor:
        """The stream, where in it this block begins, its size, and how much of it was taken."""
        words = self._words
        stream = np.array([words.key, words.gamma], np.uint64).view(np.int64).tolist()
        return torch.tensor([*stream, self._first, self.numbers.numel(), self._taken])

    def load_state(self, state: torch.Tensor) -> None:
        *stream, first, size, self._taken = state.tolist()
        self._words = Words(*np.array(stream, np.int64).view(np.uint64).tolist())
        self._fill(first, size)
