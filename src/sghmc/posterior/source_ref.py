"""A source of data as a posterior carries it through compiled programs.

A compiled program that held the source itself would keep it, its threads and its open files alive,
and would be compiled anew for every other one. So a program knows the shapes of rows and takes a
number as an argument, by which the host finds the source when rows are asked for.
"""

import itertools
import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

from sghmc.posterior.source import Source

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
