"""Batches from anything that yields them: checked one by one, and cut into rows as asked.

Batches that come by one after another, from anything that yields them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from sghmc.core.checks import check_count, held
from sghmc.posterior.sources import DataError, NotFinite, Source, check_finite, check_num_rows
from sghmc.types import PyTree


class Batches:
    """Rows in the order in which an iterator yields them, in batches of any length.

    At its end what can be iterated again is; an iterator that is used up is an error. Every batch
    must have the structure, shapes and dtypes of the first.
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
        """A row by shapes and dtypes alone."""

    @property
    def is_restartable(self) -> bool:
        return callable(self._batches) or iter(self._batches) is not self._batches

    def start(self) -> None:
        """From the first row again, where that is possible."""
        try:
            source = self._batches() if callable(self._batches) else self._batches
            self._iterator = iter(source)
        except Exception as error:
            raise DataError(f"The stream could not be started: {_shown(error)}.") from error
        self._rest, self._num_taken = [], 0

    def take(self, count: int) -> list[np.ndarray]:
        """The next rows, leaf by leaf."""
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
        """The leaves of the next batch."""
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
                    f"The stream raised after {num_taken} rows: {_shown(error)}."
                ) from error
        raise DataError(
            f"The stream ended early, after {num_taken} rows and what was read ahead: give an "
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
    """A list of numbers is a column; one of arrays, as a DataLoader yields it, has several."""
    return isinstance(node, list) and not any(hasattr(entry, "shape") for entry in node)


def _array(leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        raise DataError(f"A batch of the stream is ragged: {error}.") from error
    if array.dtype.kind not in "fiubc":
        raise DataError(f"A batch of the stream holds {array.dtype}, but must hold numbers.")
    return held(array, "Batches of the stream", DataError)


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# Batches that come by one after another, from anything that yields them.

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
