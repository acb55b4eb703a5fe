"""Split a model's arguments into those with a row for each example and those passed whole."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True)
class Rows:
    """Marks an argument whose examples lie along `axis`; for axis 0 no mark is needed."""

    array: Any
    axis: int = 0


@dataclasses.dataclass(frozen=True)
class Whole:
    """Marks an argument that is not made of examples, though its first axis is as long."""

    array: Any


class Arguments(eqx.Module):
    """The leaves of (args, kwargs), without the arrays that have a row for each example.

    For those, `axes` has the axis that counts examples; for the others None.
    """

    leaves: list[Any]
    axes: tuple[int | None, ...] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)

    def filled(self, rows: list[jax.Array]) -> tuple[tuple, dict]:
        """Return (args, kwargs) with these rows, whose first axis counts the examples."""
        remaining = iter(rows)
        leaves = [
            leaf if axis is None else jnp.moveaxis(next(remaining), 0, axis)
            for leaf, axis in zip(self.leaves, self.axes, strict=True)
        ]
        leaves = [leaf.content if isinstance(leaf, _Opaque) else leaf for leaf in leaves]
        return jax.tree.unflatten(self.treedef, leaves)


class GivenArguments:
    """The arguments (args, kwargs) that a user gave, checked."""

    def __init__(self, args: tuple, kwargs: dict):
        named, treedef = jax.tree.flatten_with_path((args, kwargs), is_leaf=_is_marked)
        self.names = [_name(path) for path, _ in named]
        self.marks = [leaf for _, leaf in named]
        self.treedef = treedef
        self.leaves = [_checked(*pair) for pair in zip(self.names, self.marks, strict=True)]

    def whole(self) -> Arguments:
        return Arguments(self.leaves, (None,) * len(self.leaves), self.treedef)

    def split(self, num_examples: int) -> tuple[Arguments, list[jax.Array]]:
        """Return the arguments without their rows, and the rows, examples first."""
        self._check_marks(num_examples)
        axes = tuple(self._axis(i, num_examples) for i in range(len(self.leaves)))
        pairs = list(zip(self.leaves, axes, strict=True))
        kept = [leaf if axis is None else None for leaf, axis in pairs]
        rows = [jnp.moveaxis(leaf, axis, 0) for leaf, axis in pairs if axis is not None]
        return Arguments(kept, axes, self.treedef), rows

    def row_names(self, num_examples: int) -> list[str]:
        """Return the names of the arguments that have a row for each example."""
        return [
            name for i, name in enumerate(self.names) if self._axis(i, num_examples) is not None
        ]

    def number_lists(self) -> list[str]:
        """Return the names of lists of numbers, which may have been meant as arrays."""
        args, kwargs = jax.tree.unflatten(self.treedef, self.leaves)
        named = {f"args[{i}]": value for i, value in enumerate(args)}
        named |= {f"kwargs[{key!r}]": value for key, value in kwargs.items()}
        return [
            name
            for name, value in named.items()
            if isinstance(value, list | tuple)
            and len(value) > 1
            and all(isinstance(entry, int | float) for entry in value)
        ]

    def _axis(self, i: int, num_examples: int) -> int | None:
        mark, leaf = self.marks[i], self.leaves[i]
        axis = mark.axis if isinstance(mark, Rows) else 0
        if not eqx.is_array(leaf) or isinstance(mark, Whole) or not -leaf.ndim <= axis < leaf.ndim:
            return None
        return axis if leaf.shape[axis] == num_examples else None

    def _check_marks(self, num_examples: int) -> None:
        for i, mark in enumerate(self.marks):
            if isinstance(mark, Rows) and self._axis(i, num_examples) is None:
                raise ValueError(
                    f"{self.names[i]} is marked as Rows(…, axis={mark.axis}) and has shape "
                    f"{np.shape(mark.array)}, but there are {num_examples} examples: name the axis "
                    f"that has a row for each."
                )


def _is_marked(leaf: PyTree) -> bool:
    return isinstance(leaf, Rows | Whole)


def _name(path: tuple) -> str:
    """Return the name of a leaf, such as `args[0]` or `kwargs['y']['part']`."""
    return ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])


def _checked(name: str, leaf: Any) -> Any:
    """Convert arrays to jax, and leave other objects as they are, made hashable."""
    is_marked = _is_marked(leaf)
    leaf = leaf.array if is_marked else leaf
    if isinstance(leaf, jax.Array | np.ndarray):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if not is_key and not jnp.issubdtype(leaf.dtype, jnp.number) and leaf.dtype != bool:
            raise TypeError(
                f"{name} is an array of dtype {leaf.dtype}, but models compute with numbers: "
                f"encode it first."
            )
        # A count, such as a plate's size, must be a number when the model is compiled.
        is_count = leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)
        return int(leaf) if is_count else jnp.asarray(leaf)
    if is_marked:
        raise TypeError(f"{name} is marked as Rows or Whole, but is no array: {leaf!r}.")
    if hasattr(leaf, "__array__") and not isinstance(leaf, np.generic):
        raise TypeError(
            f"{name} is a {type(leaf).__name__}, not an array: give a numpy or jax array, such as "
            f"numpy.asarray makes of it."
        )
    try:
        hash(leaf)
    except TypeError:
        return _Opaque(leaf)
    return leaf


class _Opaque:
    """An object without a hash, such as some networks, which is hashed by its identity."""

    def __init__(self, content: Any):
        self.content = content

    def __hash__(self) -> int:
        return id(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opaque) and self.content is other.content
