"""Data that stay on the host: the interface of sources, and how compiled programs refer to them.

A compiled program that stored the source itself would keep it, its threads and its open files
alive, and would be compiled again for every other source. So a program has the shapes of rows and
takes a number as an argument, by which the host looks the source up when rows are needed.
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

_MAX_CHUNK_ROWS = 65_536
_MAX_CHUNK_BYTES = 1 << 24
"""Largest chunk of a full pass, in rows and in bytes; two chunks are in memory at a time."""
_MAX_HASHED_BYTES = 1 << 32
"""Bytes up to which all rows are hashed to identify the data of a resumed run, in 3 seconds; of
larger data, evenly spaced chunks are."""
_ALIGNMENT_BYTES = 64
"""Alignment of a host array that jax takes without a copy."""
_MAX_ROWS = np.iinfo(np.int32).max
"""Largest number of rows: they are numbered by signed integers of 32 bits."""


class DataError(ValueError):
    """A source of data failed; in a run, `samples` has the draws made before."""

    samples: Any = None


class Source(abc.ABC):
    """Rows on the host, given to `Posterior` in place of arrays.

    `example` has the shapes and dtypes of one row. Row numbers come from the run, as for arrays: a
    source with random access returns those rows, a stream the next ones.
    """

    example: PyTree
    is_growing: bool = False
    """Whether `num_rows` may change during a run."""
    is_sequential: bool = False
    """Whether rows come in the source's own order, so that no pass over all of them is possible."""
    is_independent: bool = True
    """Whether rows are independent, if the source and not the run draws them."""
    fault: DataError | None = None
    """The error of a pass over all rows, since a compiled program raises it as one of its own."""
    read_ahead: int | None = None
    """Number of rows that a run may read ahead; None: as many as its memory allows."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """The number N of rows."""

    @abc.abstractmethod
    def read(self, numbers: np.ndarray, rows: PyTree) -> None:
        """Write the rows of these numbers, 1-D and in the order of `order`, into arrays of rows.

        A sequential source writes its next rows, whatever the numbers are, in any order.
        """

    def order(self, numbers: np.ndarray) -> np.ndarray:
        """Return the order of these numbers in which `read` takes them."""
        return increasing(numbers)

    def take(self, numbers: np.ndarray) -> PyTree:
        """Return the rows of these numbers, 1-D: a pytree of host arrays with a leading axis."""
        order, rows = self.order(numbers), self.empty(len(numbers))
        self.read(numbers[order], rows)
        back = inverse(order)
        return jax.tree.map(lambda leaf: leaf[back], rows)

    def empty(self, num_rows: int) -> PyTree:
        """Return uninitialised arrays for so many rows."""
        return jax.tree.map(lambda leaf: _aligned(leaf.shape, leaf.dtype), self.like(num_rows))

    @property
    def num_choices(self) -> int:
        """The exclusive upper bound of the numbers that a run draws; N, if they number rows."""
        return self.num_rows

    def start(self) -> None:  # noqa: B027 - most sources have nothing to start
        """Begin a run: restart from the first row, if that is possible."""

    @property
    def is_at_start(self) -> bool:
        """Whether no row has been taken yet; always True for random access."""
        return True

    def identity(self) -> dict[str, PyTree]:
        """Return what identifies the data of a resumed run: number of rows, and their hash."""
        num_chunks = -(-self.num_rows // self.chunk_rows)
        most = max(1, _MAX_HASHED_BYTES // max(1, self.row_bytes * self.chunk_rows))
        digest = hashlib.sha256()
        for k in np.linspace(0, num_chunks - 1, min(num_chunks, most)).astype(int):
            for leaf in jax.tree.leaves(self.chunk(k)):
                digest.update(np.ascontiguousarray(leaf).view(np.uint8).data)
        return {"number of rows": self.num_rows, "rows": digest.hexdigest()[:16]}

    @property
    def is_all_hashed(self) -> bool:
        """Whether `identity` hashes every row."""
        return self.row_bytes * self.num_rows <= _MAX_HASHED_BYTES

    @property
    def row_bytes(self) -> int:
        leaves = jax.tree.leaves(self.example)
        return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)

    @property
    def chunk_rows(self) -> int:
        """Number of rows of a chunk of a full pass."""
        most = max(1, _MAX_CHUNK_BYTES // max(1, self.row_bytes))
        return min(most, _MAX_CHUNK_ROWS, self.num_rows)

    def chunk(self, k) -> PyTree:
        """Return the k-th chunk of a full pass; the last one is padded with its last row."""
        first = int(k) * self.chunk_rows
        numbers = np.arange(first, first + self.chunk_rows)
        rows, self.fault = self.empty(self.chunk_rows), None
        try:
            self.read(np.minimum(numbers, self.num_rows - 1), rows)
            return rows
        except DataError as error:
            self.fault = error
            raise

    def like(self, *leading: int) -> PyTree:
        """Return the shapes and dtypes of rows with these leading axes."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype), self.example
        )


def increasing(numbers: np.ndarray) -> np.ndarray:
    """Return the stable order of row numbers.

    They are sorted by their halves: numpy sorts 16 bits by counting, several times faster than 32
    bits by comparing.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    return order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]


def inverse(order: np.ndarray) -> np.ndarray:
    """Return the inverse permutation: `inverse(order)[order[i]] == i`."""
    result = np.empty(len(order), np.int32)
    result[order] = np.arange(len(order), dtype=np.int32)
    return result


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array that jax takes without a copy, if it computes on the CPU."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


def check_num_rows(num_rows: int, name: str) -> None:
    if num_rows < 1:
        raise DataError(f"{name} has no rows: give at least one.")
    if num_rows > _MAX_ROWS:
        raise DataError(f"{name} has {num_rows:,} rows, but at most {_MAX_ROWS:,} can be numbered.")


def check_finite(rows: PyTree, name: str) -> None:
    """Check that rows hold no NaN or infinity; the error names field and row of the batch."""
    for path, leaf in jax.tree.leaves_with_path(rows):
        if leaf.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            total = leaf.sum()  # one pass without a temporary; overflow is checked below
        if np.isfinite(total) or np.isfinite(leaf).all():
            continue
        bad = np.argwhere(~np.isfinite(leaf))[0]
        where = f"{name}{jax.tree_util.keystr(path)}"
        raise NotFinite(where, int(bad[0]), leaf[tuple(bad)])


class NotFinite(Exception):
    """An entry that is not finite: its field, its row in the batch, and the number there."""

    def __init__(self, field: str, row: int, number):
        super().__init__(field, row, number)
        self.field, self.row, self.number = field, row, number


# References to a source inside compiled programs.

_SOURCE_IDS = itertools.count()
_LIVE_SOURCES: dict[int, Source] = {}
"""The sources of all posteriors that exist, by number."""


class SourceShapes(NamedTuple):
    """The properties of a source that a compiled program depends on; equal ones share programs."""

    kind: type
    example: tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]
    num_rows: int | None
    chunk_rows: int
    is_growing: bool
    is_sequential: bool
    is_independent: bool
    read_ahead: int | None

    @classmethod
    def of(cls, source: Source) -> "SourceShapes":
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
    """A data source as seen inside jit: static shapes, and a number that the host looks up."""

    def __init__(self, shapes: SourceShapes, number: jax.Array):
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

    def call(self, method: str, like: Any, argument: jax.Array) -> Any:
        """Call a method of the host's source, whose result has the shapes of `like`."""

        def on_host(number, argument):
            return getattr(_LIVE_SOURCES[int(number)], method)(argument)

        mesh = jax.sharding.get_abstract_mesh()
        if mesh.manual_axes and not mesh.are_all_axes_manual:  # jax has no callbacks there
            raise ValueError(
                f"Rows of a source cannot be read inside of a step on a mesh with the axis 'model' "
                f"beside {' and '.join(map(repr, mesh.manual_axes))}, as FullBatch, ControlVariate "
                f"and accept steps need: give arrays, a mesh of one of these axes, or Minibatch, "
                f"whose rows the host reads ahead."
            )
        return jax.pure_callback(on_host, like, self.number, argument, vmap_method="sequential")


class SourceRef(eqx.Module):
    """A posterior's reference to its source, which lives as long as the number does."""

    number: jax.Array
    shapes: SourceShapes = eqx.field(static=True)

    def __init__(self, source: Source):
        number = next(_SOURCE_IDS)
        with jax.ensure_compile_time_eval():
            self.number = jnp.asarray(number, jnp.int32)
        self.shapes = SourceShapes.of(source)
        _LIVE_SOURCES[number] = source
        weakref.finalize(self.number, _LIVE_SOURCES.pop, number, None)

    @property
    def source(self) -> Source:
        """The source itself; inside a compiled program, a `TracedSource`."""
        if isinstance(self.number, jax.Array) and not isinstance(self.number, Tracer):
            return _LIVE_SOURCES[int(self.number)]
        return TracedSource(self.shapes, self.number)
