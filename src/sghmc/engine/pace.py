"""How many draws the compiled loop makes before the host looks up."""

import contextlib
import ctypes
import time
from collections.abc import Iterator

_BLOCK_SECONDS = 0.5
"""Time between two looks at the run: Ctrl-C and the progress bar wait no longer than that."""
_LARGEST_GROWTH = 16.0
"""Of a block over the one before: the first, of one draw, is mostly compilation and says little."""
_LONG_COMPILATION = 1.0
"""Seconds from which a first block was mostly compilation of a large program."""


class Pace:
    """`least` draws, to compile, then as many as take half a second."""

    def __init__(self, least: int = 1):
        self.count, self.least, self.first_seconds = least, least, 0.0

    @contextlib.contextmanager
    def timing(self, most: int) -> Iterator[int]:
        """How many draws to make inside of this context, at most so many."""
        count = min(self.count, most)
        began = time.perf_counter()
        yield count
        elapsed = time.perf_counter() - began
        if not self.first_seconds and elapsed > _LONG_COMPILATION:
            _give_memory_back()
        self.first_seconds = self.first_seconds or elapsed
        self.count = max(self.least, int(count * min(_LARGEST_GROWTH, _BLOCK_SECONDS / elapsed)))


def _give_memory_back() -> None:
    """Let the system have what a compiler freed: glibc would keep it, and draws come on top."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)
