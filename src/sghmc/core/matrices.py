"""Positive matrices over the parameters: mass, friction, preconditioner, gradient noise.

A user gives a number, a pytree like the parameters (a diagonal), or a dense (d, d) array over the
raveled parameters. `parse` turns any of them into a `Diagonal` or a `Dense`; what a sampler needs
of them is computed once, in double precision, before the loop: products, inverses, and `pencils`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sghmc.core import tree
from sghmc.types import PyTree

_MAX_DENSE_PARAMETERS = 2_000
"""Largest number of parameters of a dense matrix, whose eigenvalues then take seconds."""
_ASYMMETRY_TOLERANCE, _NEGATIVE_TOLERANCE = 1e-5, 1e-6
"""Relative asymmetry and negative eigenvalue that a user's matrix may have: those of rounding to
single precision."""


class Diagonal(eqx.Module):
    """A diagonal matrix: a raveled array for each leaf of the parameters; numbers stay scalars.

    A number that many leaves share is stored once: a network of a hundred arrays would otherwise
    bring as many arguments to the compiled loop, and to its compiler.
    """

    given: tuple[Float[Any, " n"] | Float[Any, ""], ...]
    num_leaves: int = eqx.field(static=True)

    def __init__(self, values: Sequence[Any], num_leaves: int | None = None):
        """Store one value for each leaf, or one number for all `num_leaves`."""
        self.given = tuple(values)
        self.num_leaves = len(values) if num_leaves is None else num_leaves

    @property
    def values(self) -> tuple[Float[Any, " n"] | Float[Any, ""], ...]:
        """The entries of each leaf."""
        return self.given * self.num_leaves if len(self.given) == 1 else self.given

    def __matmul__(self, vector: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(vector)
        products = [
            (fit(value, leaf) * leaf).astype(leaf.dtype)
            for value, leaf in zip(self.values, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, products)

    def inverse(self) -> "Diagonal":
        return by_entries(lambda value: 1 / value, self)

    def vector(self, sizes: list[int]) -> Float[np.ndarray, " d"]:
        """Return the entries of all parameters, raveled."""
        pairs = zip(self.values, sizes, strict=True)
        return np.concatenate([np.broadcast_to(value, (size,)) for value, size in pairs])

    def dense(self, sizes: list[int]) -> "Dense":
        return Dense(np.diag(self.vector(sizes)))

    @property
    def is_zero(self) -> bool:
        return all(not np.any(value) for value in self.given)


class Dense(eqx.Module):
    """A (d, d) array over the raveled parameters."""

    array: Float[Any, "d d"]

    def __matmul__(self, vector: PyTree) -> PyTree:
        return tree.unravel(self.array @ tree.ravel(vector), vector)

    def inverse(self) -> "Dense":
        inverse = np.linalg.inv(self.array)
        is_symmetric = np.array_equal(self.array, self.array.T)
        return Dense((inverse + inverse.T) / 2 if is_symmetric else inverse)

    def dense(self, sizes: list[int]) -> "Dense":
        return self

    @property
    def is_zero(self) -> bool:
        return not np.any(self.array)


Matrix = Diagonal | Dense


def fit(value: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshape a diagonal's entries to those of a leaf; a number for all stays a number."""
    return value if jnp.ndim(value) == 0 else value.reshape(leaf.shape)


def check(value: PyTree, name: str) -> PyTree:
    """Check, on construction, that `value` may be a positive matrix."""
    if value is None or callable(value):
        raise TypeError(
            f"{name} must be a number, a pytree like the parameters or a dense (d, d) matrix, "
            f"not {value!r}."
        )
    for leaf in jax.tree.leaves(value):
        numbers = np.asarray(leaf)
        if not any(jnp.issubdtype(numbers.dtype, kind) for kind in (jnp.floating, jnp.integer)):
            raise TypeError(f"{name} must hold real numbers, but holds {numbers.dtype}.")
        if not np.all(np.isfinite(numbers)):
            raise ValueError(f"{name} must be finite, but holds {numbers[~np.isfinite(numbers)]}.")
        if numbers.ndim == 0 and numbers < 0:
            raise ValueError(f"{name} must not be negative, but is {numbers}.")
    return value


def parse(value: PyTree, like: PyTree, name: str, *, definite: bool) -> Matrix:
    """Convert a user's `value` to a checked matrix over the parameters, in double precision."""
    leaves, treedef = jax.tree.flatten(like)
    total = tree.size(like)
    given = jax.tree.leaves(value)
    if len(given) == 1 and jax.tree.structure(value) == jax.tree.structure(0.0):
        array = np.asarray(given[0], np.float64)
        if array.ndim == 0:
            return _checked(number_for_all(array, leaves), name, definite)
        fits_leaf = len(leaves) == 1 and array.shape == leaves[0].shape
        if array.shape == (total, total) and not fits_leaf:
            _check_size(total, name)
            return _checked_dense(array, name, definite)
        if len(leaves) != 1 or not fits_leaf:
            raise ValueError(
                f"{name} has shape {array.shape}, but the parameters have {total} entries: give a "
                f"number, a pytree like the parameters, or a dense ({total}, {total}) matrix over "
                f"the raveled parameters."
            )
    if jax.tree.structure(value) != treedef:
        raise ValueError(
            f"{name} is a pytree {jax.tree.structure(value)}, but the parameters are {treedef}: "
            f"a diagonal needs one entry, a number or an array, for each leaf of the parameters."
        )
    values = []
    for entry, leaf in zip(given, leaves, strict=True):
        array = np.asarray(entry, np.float64)
        if array.ndim and array.shape != leaf.shape:
            raise ValueError(
                f"{name} has a leaf of shape {array.shape} where the parameters have {leaf.shape}: "
                f"give a number or an array of the same shape."
            )
        values.append(array.reshape(-1) if array.ndim else array)
    return _checked(Diagonal(values), name, definite)


def parse_factor(value: PyTree, like: PyTree, name: str) -> Matrix:
    """Convert a user's `value` to an invertible matrix, which need not be symmetric."""
    total = tree.size(like)
    is_array = jax.tree.structure(value) == jax.tree.structure(0.0)
    if not is_array or np.shape(value) != (total, total) or total == 1:
        return parse(value, like, name, definite=True)
    _check_size(total, name)
    array = np.asarray(value, np.float64)
    singular = np.linalg.svd(array, compute_uv=False)
    if singular[-1] < singular[0] * np.finfo(float).eps:
        raise ValueError(
            f"{name} must be invertible, but its singular values reach from {singular[-1]:g} to "
            f"{singular[0]:g}."
        )
    return Dense(array)


def are_diagonal(*given: Matrix) -> bool:
    return all(isinstance(matrix, Diagonal) for matrix in given)


def transpose(matrix: Matrix) -> Matrix:
    return Dense(matrix.array.T) if isinstance(matrix, Dense) else matrix


def _check_size(total: int, name: str) -> None:
    if total > _MAX_DENSE_PARAMETERS:
        raise ValueError(
            f"{name} is a dense matrix over {total:,} parameters: to factor one of more than "
            f"{_MAX_DENSE_PARAMETERS:,} takes minutes, and every step as many products as it has "
            f"entries. Give a number, or a diagonal as a pytree like the parameters."
        )


def number_for_all(number: np.ndarray, leaves: Sequence) -> Diagonal:
    """Return a diagonal with the same number for each leaf."""
    return Diagonal([number] if tree.are_many(leaves) else [number] * len(leaves), len(leaves))


def _checked(diagonal: Diagonal, name: str, definite: bool) -> Diagonal:
    lowest = min((float(np.min(value)) for value in diagonal.given if value.size), default=1.0)
    if lowest < 0 or (definite and lowest == 0):
        wanted = "positive" if definite else "not negative"
        raise ValueError(f"Every entry of {name} must be {wanted}, but the smallest is {lowest:g}.")
    return diagonal


def _checked_dense(array: Float[np.ndarray, "d d"], name: str, definite: bool) -> Dense:
    scale = float(np.max(np.abs(array))) or 1.0
    asymmetry = float(np.max(np.abs(array - array.T)))
    if asymmetry > _ASYMMETRY_TOLERANCE * scale:
        raise ValueError(
            f"{name} must be symmetric, but its entries differ from their mirror images by up to "
            f"{asymmetry:g}: use (A + A.T) / 2 if that is what you mean."
        )
    array = (array + array.T) / 2
    lowest = float(np.linalg.eigvalsh(array)[0])
    if lowest < -_NEGATIVE_TOLERANCE * scale or (definite and lowest <= 0):
        wanted = "positive definite" if definite else "positive semi-definite"
        raise ValueError(f"{name} must be {wanted}, but its smallest eigenvalue is {lowest:g}.")
    return Dense(array)


def as_array(matrix: Matrix) -> Float[Array, "d d"]:
    """Return a (d, d) array inside a compiled program; a diagonal's entries must be vectors."""
    if isinstance(matrix, Dense):
        return matrix.array
    return jnp.diag(jnp.concatenate(matrix.values))


def from_entries(entries: Float[Array, " d"] | Float[Array, "d d"], sizes: list[int]) -> Matrix:
    """Return the matrix of a vector (a diagonal over the raveled parameters) or a (d, d) array."""
    if entries.ndim == 2:
        return Dense(entries)
    return Diagonal(jnp.split(entries, np.cumsum(sizes)[:-1]))


def entries(diagonal: Diagonal, like: PyTree) -> PyTree:
    """Return the entry of every parameter, in the parameters' shapes."""
    leaves, treedef = jax.tree.flatten(like)
    pairs = zip(diagonal.values, leaves, strict=True)
    return jax.tree.unflatten(
        treedef, [jnp.broadcast_to(fit(value, leaf), leaf.shape) for value, leaf in pairs]
    )


def raveled(entries: PyTree) -> Diagonal:
    """Invert `entries`: return a diagonal with the entries of a pytree."""
    return Diagonal([jnp.ravel(leaf) for leaf in jax.tree.leaves(entries)])


def times(left: Diagonal, right: Diagonal) -> Diagonal:
    return by_entries(lambda a, b: a * b, left, right)


def by_entries(function: Callable, *diagonals: Diagonal) -> Diagonal:
    """Apply a function to the entries of diagonals; numbers for all leaves give such a number."""
    if all(len(each.given) == 1 for each in diagonals):
        given = function(*(each.given[0] for each in diagonals))
        return Diagonal([given], diagonals[0].num_leaves)
    values = zip(*(each.values for each in diagonals), strict=True)
    return Diagonal([function(*of_leaf) for of_leaf in values])


def between(outer: Matrix, inner: Matrix) -> Matrix:
    """Return outer · inner · outer in a compiled program; a dense `inner` needs a dense `outer`."""
    if isinstance(outer, Diagonal) and isinstance(inner, Diagonal):
        return times(times(outer, inner), outer)
    return Dense(as_array(outer) @ as_array(inner) @ as_array(outer))


def product(left: Matrix, right: Matrix, sizes: list[int]) -> Matrix:
    if isinstance(left, Diagonal) and isinstance(right, Diagonal):
        return times(left, right)
    return Dense(left.dense(sizes).array @ right.dense(sizes).array)


def congruent(factor: Matrix, matrix: Matrix, sizes: list[int]) -> Matrix:
    """Return LᵀAL: a Hessian or a gradient's covariance A over θ in the coordinates z of θ = Lz."""
    return product(product(transpose(factor), matrix, sizes), factor, sizes)


def scaled(matrix: Matrix, factor: float) -> Matrix:
    return jax.tree.map(lambda leaf: factor * leaf, matrix)


def finish(matrix, dtype):
    """Convert a matrix or pencil to jax arrays of the parameters' dtype, ready for the loop."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), matrix)


def combine(arrays: PyTree, module: PyTree) -> PyTree:
    """Combine arrays with the other parts of `module`, like `equinox.combine`.

    Unlike there, a number that all leaves shared may have become an entry of each.
    """
    return jax.tree.map(
        lambda own, fixed: fixed if own is None else own,
        arrays,
        module,
        is_leaf=lambda node: node is None or isinstance(node, Diagonal),
    )
