"""Batches from anything that yields them: checked one by one, and cut into rows as asked."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from sghmc.core.integers import held
from sghmc.posterior.source import DataError, NotFinite, check_finite
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
