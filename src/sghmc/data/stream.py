"""Rows from an iterator of batches, which are checked and cut into batches of the run's size."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from sghmc.core.checks import check_count, check_numbers, held
from sghmc.posterior.sources import DataError, NotFinite, Source, check_finite, check_num_rows
from sghmc.types import PyTree


class BatchReader:
    """The rows of an iterator of batches, in any numbers.

    At its end it starts again if it can; an exhausted iterator is an error. Every batch must have
    the structure, shapes and dtypes of the first.
    """

    def __init__(
        self, batches: Iterable[PyTree] | Callable[[], Iterable[PyTree]], *, allow_nan: bool
    ):
        if not callable(batches) and not isinstance(batches, Iterable):
            raise TypeError(f"Stream needs an iterator of batches, or a function, not {batches!r}.")
        self._batches, self._allow_nan = batches, allow_nan
        self._iterator: Iterator = iter(())
        self._rest: list[np.ndarray] = []
        self._num_taken = 0
        self.treedef: Any = None
        self.start()
        self._rest = self._next()
        like = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in self._rest]
        self.example: PyTree = jax.tree.unflatten(self.treedef, like)
        """The shapes and dtypes of a row."""

    @property
    def is_restartable(self) -> bool:
        return callable(self._batches) or iter(self._batches) is not self._batches

    def start(self) -> None:
        """Start from the first row, if that is possible."""
        try:
            source = self._batches() if callable(self._batches) else self._batches
            self._iterator = iter(source)
        except Exception as error:
            raise DataError(f"The stream could not be started: {_format_error(error)}.") from error
        self._rest, self._num_taken = [], 0

    def take(self, count: int) -> list[np.ndarray]:
        """Return the next rows, leaf by leaf."""
        parts, missing = [], count
        while missing:
            leaves = self._rest or self._next()
            self._rest = []
            if len(leaves[0]) > missing:
                self._rest = [leaf[missing:] for leaf in leaves]
                leaves = [leaf[:missing] for leaf in leaves]
            parts.append(leaves)
            missing -= len(leaves[0])
        self._num_taken += count
        return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    def _next(self) -> list[np.ndarray]:
        """Return the leaves of the next batch."""
        num_taken = self._num_taken
        for attempt in range(2):
            try:
                return self._checked(next(self._iterator))
            except StopIteration:
                if not self.is_restartable:
                    break
                if attempt == 1:
                    raise DataError("The stream was started anew and yielded nothing.") from None
                self.start()
                self._num_taken = num_taken
            except DataError:
                raise
            except Exception as error:
                raise DataError(
                    f"The stream raised after {num_taken} rows: {_format_error(error)}."
                ) from error
        raise DataError(
            f"The stream ended early, after {num_taken} rows and those read ahead: give an "
            f"iterator that goes on, a function that starts it anew, or make fewer steps."
        )

    def _checked(self, batch: PyTree) -> list[np.ndarray]:
        batch = jax.tree.map(_array, batch, is_leaf=_is_column)
        self._check_rows(batch)
        if self.treedef is None:
            self.treedef = jax.tree.structure(batch)
        else:
            self._check_like_first(batch)
        if not self._allow_nan:
            try:
                check_finite(batch, "")
            except NotFinite as bad:
                raise DataError(
                    f"A batch of the stream has {bad.number} in row {bad.row}, "
                    f"{bad.field or 'its array'}: leave such rows out, or take allow_nan=True."
                ) from None
        return jax.tree.leaves(batch)

    def _check_rows(self, batch: PyTree) -> None:
        lengths = {
            jax.tree_util.keystr(path) or "the array": leaf.shape[0] if leaf.ndim else None
            for path, leaf in jax.tree.leaves_with_path(batch)
        }
        if not lengths or None in lengths.values() or len(set(lengths.values())) > 1:
            raise DataError(
                f"A batch of the stream must be arrays with one shared leading axis, but its rows "
                f"are {lengths}."
            )
        if set(lengths.values()) == {0}:
            raise DataError(f"The stream yielded an empty batch after {self._num_taken} rows.")

    def _check_like_first(self, batch: PyTree) -> None:
        structure = jax.tree.structure(batch)
        if structure != self.treedef:
            raise DataError(f"A batch of the stream is {structure}, but the first {self.treedef}.")
        for (path, leaf), like in zip(
            jax.tree.leaves_with_path(batch), jax.tree.leaves(self.example), strict=True
        ):
            if (leaf.shape[1:], leaf.dtype) != (like.shape, like.dtype):
                raise DataError(
                    f"A batch of the stream has rows of {leaf.dtype}{list(leaf.shape[1:])} in "
                    f"{jax.tree_util.keystr(path) or 'its array'}, but the first had "
                    f"{like.dtype}{list(like.shape)}."
                )


def _is_column(node: Any) -> bool:
    """Return True for a list of numbers, and False for one of arrays, as DataLoaders yield."""
    return isinstance(node, list) and not any(hasattr(entry, "shape") for entry in node)


def _array(leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        raise DataError(f"A batch of the stream is ragged: {error}.") from error
    check_numbers(array.dtype, "Batches of the stream", DataError)
    return held(array, "Batches of the stream", DataError)


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


_READ_AHEAD_BYTES = 1 << 25
"""Bytes that are read ahead; fewer than of files, since rows read early miss a growth of N."""


class Stream(Source):
    """Rows from an iterator of batches: a torch DataLoader, a Hugging Face dataset, a socket.

    | argument | meaning |
    | --- | --- |
    | `batches` | yields dicts, tuples or arrays of rows, in batches of any length: an iterator, |
    | | an iterable, or a function that returns an iterator |
    | `size` | N, the number of rows that the posterior is over: a number, or a function that |
    | | gives it; `stream.size = …` sets it during a run |
    | `buffer` | rows of the shuffle buffer; 0: rows are taken in the order in which they come |
    | `read_ahead` | rows that are read ahead at most; None: 32 MB of them |
    | `independent` | whether rows are drawn independently, with replacement: only then a sampler |
    | | may subtract `gradient_noise`, which cancels over shuffled passes |
    | `allow_nan` | accept rows with NaN or infinity |

    A run cuts its own minibatches from the rows. Every chain has its own, so that C chains take C
    times as many rows; with `Minibatch(…, shared=True)` all use the same. At its end the stream
    starts again if it can; an exhausted iterator is an error.

    **The buffer.** Each row that a step takes is drawn at random from the buffer, and the next row
    of the stream replaces it; a row stays for `buffer` rows on average. So a minibatch is uniform
    over about the last `buffer` rows. If rows come in random order that is enough, and no buffer is
    needed. If their order is meaningful (by class, by time), gradients are those of a part of the
    stream, the chain follows them, and no diagnostic can detect it: make the buffer several times
    longer than such parts, or shuffle before.

    **Growing data.** When `size` grows, the posterior follows with the next rows that are read:
    U counts N rows, and the sampler's settings, which hold for the N at which the `Posterior` was
    made, are rescaled with N (`Sampler.for_growth`). The stream must then yield rows of all data so
    far.

    **A resumed run** reads the stream from its start up to the row of the checkpoint, with the N of
    that time, so the stream must yield the same rows again: give a function or an iterable, with
    its randomness seeded. A partly consumed iterator cannot be rewound.

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
        """Number of rows taken since the stream was last started."""
        check_num_rows(self.num_rows, "The stream")
        self._batches = BatchReader(batches, allow_nan=allow_nan)
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
        """Start again for a run, if rows were taken and that is possible."""
        if self._batches.is_restartable and self.num_taken:
            self._batches.start()
            self._buffer, self.num_taken = None, 0

    def identity(self):
        shapes = {
            f"example{jax.tree_util.keystr(path)}": str(leaf)
            for path, leaf in jax.tree.leaves_with_path(self.example)
        }
        # Reading ahead decides which rows the chains get, and when they use a larger N.
        return {"buffer": self.buffer_rows, "read_ahead": self.read_ahead, **shapes}

    def order(self, numbers):
        """Return the numbers' own order, since rows come in the stream's order anyway."""
        return np.arange(len(numbers))

    def read(self, numbers, rows):
        jax.tree.map(np.copyto, rows, self.take(numbers))

    def take(self, numbers):
        """Return the next rows, one for each number; numbers are positions in the buffer."""
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
    # A slot holds the row that its previous use put there, or its row from before.
    origin = slots.copy()
    origin[order[is_again]] = size + order[np.flatnonzero(is_again) - 1]
    final = np.arange(size)
    final[slots] = size + np.arange(len(slots))  # among equal slots the last one counts
    both = [np.concatenate(pair) for pair in zip(buffer, new, strict=True)]
    return [leaf[origin] for leaf in both], [leaf[final] for leaf in both]
