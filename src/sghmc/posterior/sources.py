"""Data that stay on the host: what a posterior and a run ask of rows larger than memory.

A source of data as a posterior carries it through compiled programs.

A compiled program that held the source itself would keep it, its threads and its open files alive,
and would be compiled anew for every other one. So a program knows the shapes of rows and takes a
number as an argument, by which the host finds the source when rows are asked for.
"""

import abc
import hashlib
import itertools
import math
import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from sghmc.types import PyTree

_CHUNK_ROWS = 65_536
_CHUNK_BYTES = 1 << 24
"""A chunk of a full pass has at most so many rows and bytes: two of them are in memory."""
_MOST_HASHED = 1 << 32
"""Bytes of rows by which a run that resumes knows its data, all of them up to so many: 3 seconds.
Of more, chunks that are evenly spaced."""
_ALIGNMENT = 64
"""Bytes to which jax asks a host array to be aligned, to take it without a copy."""
_MOST_ROWS = np.iinfo(np.int32).max
"""Rows are numbered by 32 bits, with a sign."""


class DataError(ValueError):
    """A source of data failed; after a run, `samples` has the draws made until then."""

    samples: Any = None


class Source(abc.ABC):
    """Rows outside the compiled program, given to `Posterior` in place of arrays.

    `example` is one row by shapes and dtypes alone. Row numbers come from the run, as for arrays: a
    source with random access answers with those rows, a stream with the next ones.
    """

    example: PyTree
    is_growing: bool = False
    """Whether `num_rows` may change while a run is on."""
    is_sequential: bool = False
    """Whether rows come in an order of their own: there is no pass over all of them."""
    is_independent: bool = True
    """Whether rows are drawn independently, where the source and not the run draws them."""
    fault: DataError | None = None
    """What went wrong in a pass over all rows: a compiled program says it in its own words."""
    read_ahead: int | None = None
    """How many rows a run may read ahead; None: as many as its memory allows."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """N."""

    @abc.abstractmethod
    def read(self, numbers: np.ndarray, rows: PyTree) -> None:
        """Put the rows of these numbers, 1-D and in the order of `order`, into arrays of rows.

        A sequential source puts its next rows there, whatever the numbers, in any order.
        """

    def order(self, numbers: np.ndarray) -> np.ndarray:
        """In which order `read` must be asked for the rows of these numbers."""
        return increasing(numbers)

    def take(self, numbers: np.ndarray) -> PyTree:
        """The rows of these numbers, 1-D: a pytree of host arrays with a leading axis."""
        order, rows = self.order(numbers), self.room(len(numbers))
        self.read(numbers[order], rows)
        places = inverse(order)
        return jax.tree.map(lambda leaf: leaf[places], rows)

    def room(self, num_rows: int) -> PyTree:
        """Arrays for so many rows, with any content."""
        return jax.tree.map(lambda leaf: _aligned(leaf.shape, leaf.dtype), self.like(num_rows))

    @property
    def num_choices(self) -> int:
        """How many numbers there are to choose from: N, where they are those of rows."""
        return self.num_rows

    def start(self) -> None:  # noqa: B027 - most sources have nothing to start
        """A run begins: from the first row again, where that is possible."""

    @property
    def is_at_start(self) -> bool:
        """Whether no row was taken, of a source that is sequential."""
        return True

    def identity(self) -> dict[str, PyTree]:
        """By what a run that resumes knows its data: their number, and what the rows hold."""
        num_chunks = -(-self.num_rows // self.chunk_rows)
        most = max(1, _MOST_HASHED // max(1, self.row_bytes * self.chunk_rows))
        found = hashlib.sha256()
        for k in np.linspace(0, num_chunks - 1, min(num_chunks, most)).astype(int):
            for leaf in jax.tree.leaves(self.chunk(k)):
                found.update(np.ascontiguousarray(leaf).view(np.uint8).data)
        return {"number of rows": self.num_rows, "rows": found.hexdigest()[:16]}

    @property
    def is_all_hashed(self) -> bool:
        """Whether `identity` looks at every row."""
        return self.row_bytes * self.num_rows <= _MOST_HASHED

    @property
    def row_bytes(self) -> int:
        leaves = jax.tree.leaves(self.example)
        return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk of a full pass."""
        most = max(1, _CHUNK_BYTES // max(1, self.row_bytes))
        return min(most, _CHUNK_ROWS, self.num_rows)

    def chunk(self, k) -> PyTree:
        """The k-th chunk of a full pass; the last is filled up with its last row."""
        first = int(k) * self.chunk_rows
        numbers = np.arange(first, first + self.chunk_rows)
        rows, self.fault = self.room(self.chunk_rows), None
        try:
            self.read(np.minimum(numbers, self.num_rows - 1), rows)
            return rows
        except DataError as error:
            self.fault = error
            raise

    def like(self, *leading: int) -> PyTree:
        """Rows by shapes and dtypes alone, under these leading axes."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype), self.example
        )


def increasing(numbers: np.ndarray) -> np.ndarray:
    """The stable order of row numbers.

    By their halves: numpy sorts 16 bits by counting, several times faster than 32 by comparing.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    return order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]


def inverse(order: np.ndarray) -> np.ndarray:
    """Where each entry went."""
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    return places


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array where a processor's own jax takes it as it is, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def check_num_rows(num_rows: int, name: str) -> None:
    if num_rows < 1:
        raise DataError(f"{name} has no rows: give at least one.")
    if num_rows > _MOST_ROWS:
        raise DataError(
            f"{name} has {num_rows:,} rows, but at most {_MOST_ROWS:,} can be numbered."
        )


def check_finite(rows: PyTree, name: str) -> None:
    """Refuse rows that hold NaN or infinity, naming field and row of the batch."""
    for path, leaf in jax.tree.leaves_with_path(rows):
        if leaf.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            total = leaf.sum()  # one pass without a temporary; wrong only by overflow
        if np.isfinite(total) or np.isfinite(leaf).all():
            continue
        bad = np.argwhere(~np.isfinite(leaf))[0]
        where = f"{name}{jax.tree_util.keystr(path)}"
        raise NotFinite(where, int(bad[0]), leaf[tuple(bad)])


class NotFinite(Exception):
    """Found by `check_finite`: the field, which of the rows, and the number there."""

    def __init__(self, field: str, row: int, number):
        super().__init__(field, row, number)
        self.field, self.row, self.number = field, row, number


# A source of data as a posterior carries it through compiled programs.

_NUMBERS = itertools.count()
_LIVE: dict[int, Source] = {}
"""The sources of all posteriors that there are."""


class Shapes(NamedTuple):
    """What a compiled program depends on: sources that agree in it share their programs."""

    kind: type
    example: tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]
    num_rows: int | None
    chunk_rows: int
    is_growing: bool
    is_sequential: bool
    is_independent: bool
    read_ahead: int | None

    @classmethod
    def of(cls, source: Source) -> "Shapes":
        leaves, treedef = jax.tree.flatten(source.example)
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        num_rows = None if source.is_growing else source.num_rows
        chunk_rows = 0 if source.is_growing else source.chunk_rows
        return cls(
            type(source),
            (treedef, shapes),
            num_rows,
            chunk_rows,
            source.is_growing,
            source.is_sequential,
            source.is_independent,
            source.read_ahead,
        )


class TracedSource(Source):
    """A source inside a compiled program: shapes, and a number that only the host can follow."""

    def __init__(self, shapes: Shapes, number: jax.Array):
        treedef, leaves = shapes.example
        self.shapes, self.number = shapes, number
        self.example = jax.tree.unflatten(treedef, leaves)
        self.is_growing, self.is_sequential = shapes.is_growing, shapes.is_sequential
        self.is_independent, self.read_ahead = shapes.is_independent, shapes.read_ahead

    @property
    def num_rows(self):
        assert self.shapes.num_rows is not None, "the number of rows is an argument of the program"
        return self.shapes.num_rows

    @property
    def chunk_rows(self):
        return self.shapes.chunk_rows

    def read(self, numbers, rows):
        raise AssertionError("only the host reads rows")

    def ask(self, question: str, like: Any, argument: jax.Array) -> Any:
        """What the host's source answers to `question`, one of its methods."""

        def answer(number, argument):
            return getattr(_LIVE[int(number)], question)(argument)

        return jax.pure_callback(answer, like, self.number, argument, vmap_method="sequential")


class SourceRef(eqx.Module):
    """In a posterior, in place of its source, which lives as long as the number does."""

    number: jax.Array
    shapes: Shapes = eqx.field(static=True)

    def __init__(self, source: Source):
        number = next(_NUMBERS)
        with jax.ensure_compile_time_eval():
            self.number = jnp.asarray(number, jnp.int32)
        self.shapes = Shapes.of(source)
        _LIVE[number] = source
        weakref.finalize(self.number, _LIVE.pop, number, None)

    @property
    def source(self) -> Source:
        """The source itself; inside a compiled program, what there is of it."""
        if isinstance(self.number, jax.Array) and not isinstance(self.number, Tracer):
            return _LIVE[int(self.number)]
        return TracedSource(self.shapes, self.number)
