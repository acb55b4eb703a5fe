"""Rows of tables of parameters, some of them or one after another, as `Lazy` moves them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32, UInt32

from sghmc.core import tree
from sghmc.samplers.skipped_steps import Prior
from sghmc.types import PyTree

COPIES = 3
"""Normals of a parameter in a step: one for the step, two for those it skipped before."""


class Table(NamedTuple):
    """An array of parameters, seen by rows, and how many entries come before it."""

    shape: tuple[int, ...]
    first: int

    @property
    def num_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        return math.prod(self.shape[1:])

    def by_row(self, entries: jax.Array) -> jax.Array:
        """Entries as rows and columns; a number for all stays a number."""
        return entries if jnp.ndim(entries) == 0 else entries.reshape(self.num_rows, self.width)

    def columns(self, rows: jax.Array) -> jax.Array:
        """What is said of rows, or of all alike, as rows and columns: (row or 1, column or 1)."""
        rows = rows.reshape(-1, *rows.shape[1:])
        if rows.size > len(rows):
            rows = jnp.broadcast_to(rows, (len(rows), *self.shape[1:]))
        return rows.reshape(len(rows), -1)

    def slots(self, numbers: Int32[Array, " row"]) -> UInt32[Array, "row column"]:
        """Where the first normals of rows are among those of a step."""
        starts = np.uint32(self.first) + numbers.astype(jnp.uint32) * np.uint32(self.width)
        entries = starts[:, None] + lax.iota(jnp.uint32, self.width)[None]
        return entries * np.uint32(COPIES)


def tables_of(like: PyTree) -> tuple[Table, ...]:
    leaves = jax.tree.leaves(like)
    firsts = np.cumsum([0, *tree.sizes(like)[:-1]])
    return tuple(Table(leaf.shape, int(first)) for leaf, first in zip(leaves, firsts, strict=True))


class Chosen(NamedTuple):
    """Rows of a table by their numbers, in any order, some more than once."""

    numbers: Int32[Array, " row"]

    def shape(self, table: Table) -> tuple[int, ...]:
        return (len(self.numbers), *table.shape[1:])

    def of(self, array: jax.Array) -> jax.Array:
        if jnp.ndim(array) == 0:
            return array
        # A number that no row has: what comes of it must not pass for a draw.
        missing = jnp.nan if jnp.issubdtype(array.dtype, jnp.floating) else 0
        return array.at[self.numbers].get(mode="fill", fill_value=missing)

    def put(self, array: jax.Array, rows: jax.Array) -> jax.Array:
        """With these rows; where one comes more than once, it does so with the same entries."""
        return array.at[self.numbers].set(rows.astype(array.dtype))

    def put_sum(self, array: jax.Array, rows: jax.Array, added: jax.Array):
        """With these rows plus, in each, all that is added to it; and these sums."""
        array = self.put(array, rows).at[self.numbers].add(added.astype(array.dtype))
        return array, self.of(array)


class Stretch(NamedTuple):
    """Rows of a table one after another."""

    start: Int32[Array, ""]
    length: int

    @property
    def numbers(self) -> Int32[Array, " row"]:
        return self.start + lax.iota(jnp.int32, self.length)

    def shape(self, table: Table) -> tuple[int, ...]:
        return (self.length, *table.shape[1:]) if table.shape else ()

    def of(self, array: jax.Array) -> jax.Array:
        if jnp.ndim(array) == 0:
            return array
        return lax.dynamic_slice_in_dim(array, self.start, self.length)

    def put(self, array: jax.Array, rows: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(array, rows.astype(array.dtype), self.start, 0)

    def put_sum(self, array: jax.Array, rows: jax.Array, added: jax.Array):
        return self.put(array, rows + added), rows + added


class Part(NamedTuple):
    """The state of one table, by rows."""

    position: Float[Array, "row column"]
    velocity: Float[Array, "row column"]
    made: Int32[Array, " row"]


class Rows(NamedTuple):
    """Some rows of a table: where they are, how many steps they have made, and what moves them."""

    chosen: Chosen | Stretch
    position: Float[Array, "row column"]
    velocity: Float[Array, "row column"]
    made: Int32[Array, " row"]
    learning_rate: Float[Array, "row column"] | Float[Array, ""]
    prior: Prior
