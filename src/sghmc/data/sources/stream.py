"""Batches that come by one after another, from anything that yields them."""

from collections.abc import Callable, Iterable

import jax
import numpy as np

from sghmc.core.checking import check_count
from sghmc.data.sources.batches import Batches
from sghmc.posterior.source import Source, check_num_rows
from sghmc.types import PyTree

_READ_AHEAD_BYTES = 1 << 25
"""Less than of a file: rows that were read know nothing of an N that has grown since."""


class Stream(Source):
    """Rows from an iterator of batches: a torch DataLoader, a Hugging Face dataset, a socket.

    | argument | meaning |
    | --- | --- |
    | `batches` | yields dicts, tuples or arrays of rows, in batches of any length: an iterator, |
    | | what can be iterated again, or a function that returns an iterator |
    | `size` | N, the number of rows that the posterior is over: a number, or a function that |
    | | gives it; `stream.size = …` sets it while a run is on |
    | `buffer` | rows of the shuffle buffer; 0: rows are taken in the order in which they come |
    | `read_ahead` | rows that are read ahead at most; None: 32 MB of them |
    | `independent` | that rows are drawn independently, with replacement: only then may a sampler |
    | | subtract `gradient_noise`, which cancels over shuffled passes |
    | `allow_nan` | accept rows with NaN or infinity |

    A run cuts its own minibatches from the rows: every chain its own, so that C chains take C times
    as many rows, or with `Minibatch(…, shared=True)` all the same. At its end a stream that can be
    iterated again is; an iterator that is used up is an error.

    **What the buffer does.** Each row that a step takes is drawn at random from the buffer, and the
    next of the stream takes its place; a row stays for `buffer` rows on average. So a minibatch is
    a uniform one of about the last `buffer` rows: with rows in random order that is all that is
    needed, and no buffer at all does as well. With rows in an order that means something (by
    class, by time), gradients are those of a stretch of the stream, the chain follows them, and no
    report can see it: make the buffer several times longer than the stretches, or shuffle before.

    **Growing data.** When `size` grows, the posterior follows with the next rows that are read:
    U counts N rows, and the sampler's settings, which hold for the N at which the `Posterior` was
    made, move with N (`Sampler.for_growth`). What the stream yields must then be rows of all data
    so far.

    **A run that resumes** from a checkpoint reads the stream from its start again up to where it
    was, with the N of then, so that the same rows must come: a function, or what can be iterated
    again, with its randomness seeded. An iterator of which rows were taken cannot be gone back.

    There is no pass over all rows: potential and gradient over all data, accept steps,
    `ControlVariate` and `tune` need another source.

    >>> import numpy as np, sghmc
    >>> stream = sghmc.data.Stream(lambda: iter([np.arange(3.0), np.arange(3.0, 5.0)]), size=5)
    >>> stream.take(np.zeros(7, int)).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 1.0]
    """

    is_growing = True
    is_sequential = True

    def __init__(
        self,
        batches: Iterable[PyTree] | Callable[[], Iterable[PyTree]],
        size: int | Callable[[], int],
        *,
        buffer: int = 0,
        read_ahead: int | None = None,
        independent: bool = False,
        allow_nan: bool = False,
    ):
        check_count(buffer, "buffer", 0)
        check_count(read_ahead, "read_ahead", or_none="")
        self.size = size
        self.buffer_rows = buffer
        self.is_independent = independent
        self.num_taken = 0
        """Rows that left the stream since it was last started."""
        check_num_rows(self.num_rows, "The stream")
        self._batches = Batches(batches, allow_nan=allow_nan)
        self._buffer: list[np.ndarray] | None = None
        self.example = self._batches.example
        self.read_ahead = read_ahead or max(1, _READ_AHEAD_BYTES // max(1, self.row_bytes))

    @property
    def num_rows(self):
        return int(self.size()) if callable(self.size) else int(self.size)

    @property
    def num_choices(self):
        return max(1, self.buffer_rows)

    @property
    def is_at_start(self):
        return self.num_taken == 0

    def start(self):
        """Begin anew for a run, where that is possible and anything was taken."""
        if self._batches.is_restartable and self.num_taken:
            self._batches.start()
            self._buffer, self.num_taken = None, 0

    def identity(self):
        shapes = {
            f"example{jax.tree_util.keystr(path)}": str(leaf)
            for path, leaf in jax.tree.leaves_with_path(self.example)
        }
        # How far a run reads ahead decides which rows its chains get, and when they see N grow.
        return {"buffer": self.buffer_rows, "read_ahead": self.read_ahead, **shapes}

    def order(self, numbers):
        """As they are: rows come in an order of their own."""
        return np.arange(len(numbers))

    def read(self, numbers, rows):
        jax.tree.map(np.copyto, rows, self.take(numbers))

    def take(self, numbers):
        """The next rows, as many as there are numbers: these are places in the buffer."""
        count = len(numbers)
        if self.buffer_rows == 0:
            leaves = self._batches.take(count)
        else:
            if self._buffer is None:
                self._buffer = self._batches.take(self.buffer_rows)
            slots = np.asarray(numbers, np.int64)
            leaves, self._buffer = _exchange(self._buffer, self._batches.take(count), slots)
        self.num_taken += count
        return jax.tree.unflatten(self._batches.treedef, leaves)


def _exchange(
    buffer: list[np.ndarray], new: list[np.ndarray], slots: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Take the row in each of `slots` in turn, and put the next new row there, leaf by leaf."""
    size = len(buffer[0])
    order = np.argsort(slots, kind="stable")
    is_again = np.append(False, slots[order][1:] == slots[order][:-1])
    # What is in a slot: what the last to look there put in, or what was there before.
    origin = slots.copy()
    origin[order[is_again]] = size + order[np.flatnonzero(is_again) - 1]
    final = np.arange(size)
    final[slots] = size + np.arange(len(slots))  # of equal slots the last counts
    both = [np.concatenate(pair) for pair in zip(buffer, new, strict=True)]
    return [leaf[origin] for leaf in both], [leaf[final] for leaf in both]
