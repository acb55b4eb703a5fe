"""Where a run's draws gather: here in memory; `store` has those that go to the disk."""

from typing import Protocol

import jax
import numpy as np

from sghmc.checkpoint.background import Background
from sghmc.types import PyTree


class Store(Protocol):
    """A place for draws; all arrays here have axes (chain, draw, …)."""

    @property
    def num_kept(self) -> int: ...

    def append(self, rows: PyTree) -> None: ...

    def draws(self) -> PyTree: ...


class Memory:
    """Draws in memory, which is taken with the first; `nothing` is what no draws look like.

    They lie there in the order in which the loop has them: rows are copied, and not turned round,
    by a thread, while the next draws are made.
    """

    def __init__(self, nothing: PyTree, num_draws: int):
        self.num_kept, self.num_draws = 0, num_draws
        self._whole = nothing
        self._background = Background()

    def append(self, rows: PyTree) -> None:
        if self.num_kept == 0:
            self._whole = jax.tree.map(self._room_for, rows)
        self._background.do(self._copy, rows, self.num_kept)
        self.num_kept += length(rows)

    def _copy(self, rows: PyTree, first: int) -> None:
        stop = first + length(rows)
        for whole, leaf in zip(*map(jax.tree.leaves, (self._whole, rows)), strict=True):
            whole[:, first:stop] = leaf

    def draws(self) -> PyTree:
        self._background.wait()
        return jax.tree.map(lambda whole: whole[:, : self.num_kept], self._whole)

    def _room_for(self, leaf: np.ndarray) -> np.ndarray:
        shape = (leaf.shape[0], self.num_draws, *leaf.shape[2:])
        outermost_first = sorted(range(leaf.ndim), key=lambda axis: -leaf.strides[axis])
        room = np.empty([shape[axis] for axis in outermost_first], leaf.dtype)
        return room.transpose(np.argsort(outermost_first))


def length(rows: PyTree) -> int:
    """How many draws are among these."""
    return jax.tree.leaves(rows)[0].shape[1]
