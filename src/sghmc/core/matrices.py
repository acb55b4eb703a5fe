"""Positive matrices over the parameters: mass, friction, preconditioner, gradient noise.

A user gives a number, a pytree like the parameters (a diagonal), or a dense (d, d) array over the
raveled parameters. `parse` turns any of them into a `Diagonal` or a `Dense`; what a sampler needs
of them is computed once, in double precision, before the loop: products, inverses, and pencils.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import tree
from sghmc.types import PyTree


class Diagonal(eqx.Module):
    """One array for each leaf of the parameters, raveled; a single number stays a scalar."""

    values: tuple[Any, ...]

    def __matmul__(self, vector: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(vector)
        products = [
            (_fit(value, leaf) * leaf).astype(leaf.dtype)
            for value, leaf in zip(self.values, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, products)

    def inverse(self) -> "Diagonal":
        return Diagonal(tuple(1 / value for value in self.values))

    def dense(self, sizes: list[int]) -> "Dense":
        pairs = zip(self.values, sizes, strict=True)
        return Dense(np.diag(np.concatenate([np.broadcast_to(v, (n,)) for v, n in pairs])))

    @property
    def is_zero(self) -> bool:
        return all(not np.any(value) for value in self.values)


class Dense(eqx.Module):
    """A (d, d) array over the raveled parameters."""

    array: Any

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


def _fit(value: jax.Array, leaf: jax.Array) -> jax.Array:
    return value if jnp.ndim(value) == 0 else value.reshape(leaf.shape)


def _root(value: jax.Array) -> jax.Array:
    # Samplers check before the loop that aA − bB is positive semi-definite: what is negative here
    # is rounding, at the edge where all the noise comes from the gradient.
    return jnp.sqrt(jnp.maximum(value, 0))


def check(value: PyTree, name: str) -> PyTree:
    """Refuse, on construction, what cannot be a positive matrix."""
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
    """The matrix that `value` means for parameters `like`, in double precision and checked."""
    leaves, treedef = jax.tree.flatten(like)
    total = tree.size(like)
    given = jax.tree.leaves(value)
    if len(given) == 1 and jax.tree.structure(value) == jax.tree.structure(0.0):
        array = np.asarray(given[0], np.float64)
        if array.ndim == 0:
            return _checked_diagonal([array] * len(leaves), name, definite)
        fits_leaf = len(leaves) == 1 and array.shape == leaves[0].shape
        if array.shape == (total, total) and not fits_leaf:
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
    return _checked_diagonal(values, name, definite)


def parse_factor(value: PyTree, like: PyTree, name: str) -> Matrix:
    """The same for an invertible matrix, which need not be symmetric."""
    total = tree.size(like)
    is_array = jax.tree.structure(value) == jax.tree.structure(0.0)
    if not is_array or np.shape(value) != (total, total) or total == 1:
        return parse(value, like, name, definite=True)
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


def _checked_diagonal(values: list[np.ndarray], name: str, definite: bool) -> Diagonal:
    lowest = min(float(np.min(value)) for value in values)
    if lowest < 0 or (definite and lowest == 0):
        wanted = "positive" if definite else "not negative"
        raise ValueError(f"Every entry of {name} must be {wanted}, but the smallest is {lowest:g}.")
    return Diagonal(tuple(values))


def _checked_dense(array: np.ndarray, name: str, definite: bool) -> Dense:
    scale = float(np.max(np.abs(array))) or 1.0
    asymmetry = float(np.max(np.abs(array - array.T)))
    if asymmetry > 1e-5 * scale:
        raise ValueError(
            f"{name} must be symmetric, but its entries differ from their mirror images by up to "
            f"{asymmetry:g}: use (A + A.T) / 2 if that is what you mean."
        )
    array = (array + array.T) / 2
    lowest = float(np.linalg.eigvalsh(array)[0])
    # A user's matrix comes in single precision: eigenvalues carry errors of that size.
    if lowest < -1e-6 * scale or (definite and lowest <= 0):
        wanted = "positive definite" if definite else "positive semi-definite"
        raise ValueError(f"{name} must be {wanted}, but its smallest eigenvalue is {lowest:g}.")
    return Dense(array)


def as_array(matrix: Matrix) -> jax.Array:
    """A (d, d) array inside a compiled program; a diagonal's entries must be vectors."""
    if isinstance(matrix, Dense):
        return matrix.array
    return jnp.diag(jnp.concatenate(matrix.values))


def from_entries(entries: jax.Array, sizes: list[int]) -> Matrix:
    """The matrix of a vector (a diagonal over the raveled parameters) or of a (d, d) array."""
    if entries.ndim == 2:
        return Dense(entries)
    return Diagonal(tuple(jnp.split(entries, np.cumsum(sizes)[:-1])))


def entries(diagonal: Diagonal, like: PyTree) -> PyTree:
    """The entry of every parameter, in the parameters' shapes."""
    leaves, treedef = jax.tree.flatten(like)
    pairs = zip(diagonal.values, leaves, strict=True)
    return jax.tree.unflatten(
        treedef, [jnp.broadcast_to(_fit(value, leaf), leaf.shape) for value, leaf in pairs]
    )


def raveled(entries: PyTree) -> Diagonal:
    """The inverse of `entries`."""
    return Diagonal(tuple(jnp.ravel(leaf) for leaf in jax.tree.leaves(entries)))


def times(left: Diagonal, right: Diagonal) -> Diagonal:
    return Diagonal(tuple(a * b for a, b in zip(left.values, right.values, strict=True)))


def between(outer: Matrix, inner: Matrix) -> Matrix:
    """outer · inner · outer inside a compiled program; a dense `inner` needs a dense `outer`."""
    if isinstance(outer, Diagonal) and isinstance(inner, Diagonal):
        return times(times(outer, inner), outer)
    return Dense(as_array(outer) @ as_array(inner) @ as_array(outer))


def product(left: Matrix, right: Matrix, sizes: list[int]) -> Matrix:
    if isinstance(left, Diagonal) and isinstance(right, Diagonal):
        return times(left, right)
    return Dense(left.dense(sizes).array @ right.dense(sizes).array)


def scaled(matrix: Matrix, factor: float) -> Matrix:
    return jax.tree.map(lambda leaf: factor * leaf, matrix)


class DiagonalPencil(eqx.Module):
    """Two diagonals A and B, for functions of aA − bB; see `DensePencil`."""

    first: Diagonal
    second: Diagonal
    outer: Diagonal

    def _combine(self, a, b, leaves):
        triples = zip(self.first.values, self.second.values, leaves, strict=True)
        return [a * _fit(x, leaf) - b * _fit(y, leaf) for x, y, leaf in triples]

    def sqrt(self, a, b, normals: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(normals)
        scaled = [
            (_fit(outer, leaf) * _root(c) * leaf).astype(leaf.dtype)
            for outer, c, leaf in zip(
                self.outer.values, self._combine(a, b, leaves), leaves, strict=True
            )
        ]
        return jax.tree.unflatten(treedef, scaled)

    def inverse_sqrt(self, a, b, normals: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(normals)
        pairs = zip(self._combine(a, b, leaves), leaves, strict=True)
        return jax.tree.unflatten(
            treedef, [(leaf / jnp.sqrt(c)).astype(leaf.dtype) for c, leaf in pairs]
        )

    def apply(self, function: Callable, vector: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(vector)
        products = [
            (function(rate) * leaf).astype(leaf.dtype)
            for (_, rate), leaf in zip(self._rates(leaves), leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, products)

    def spread(self, function: Callable, normals: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(normals)
        scaled = [
            (function(rate) / jnp.sqrt(first) * leaf).astype(leaf.dtype)
            for (first, rate), leaf in zip(self._rates(leaves), leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, scaled)

    def _rates(self, leaves):
        pairs = zip(self.first.values, self.second.values, leaves, strict=True)
        return [(_fit(x, leaf), _fit(y, leaf) / _fit(x, leaf)) for x, y, leaf in pairs]

    def quadratic(self, a, b, vector: PyTree) -> jax.Array:
        leaves = jax.tree.leaves(vector)
        pairs = zip(self._combine(a, b, leaves), leaves, strict=True)
        return sum((jnp.sum(c * leaf**2) for c, leaf in pairs), start=jnp.zeros(()))

    def with_second(self, second: Matrix) -> "DiagonalPencil":
        """The pencil of A and another B."""
        assert isinstance(second, Diagonal)
        return dataclasses.replace(self, second=second)

    def raised(self, limit: jax.Array) -> "DiagonalPencil":
        """The pencil of A′ and B: A raised, along directions that need it, until B ⪯ limit·A′."""
        pairs = zip(self.first.values, self.second.values, strict=True)
        return dataclasses.replace(
            self, first=Diagonal(tuple(jnp.maximum(a, b / limit) for a, b in pairs))
        )

    def outer_first(self) -> Diagonal:
        """`outer` times A."""
        return times(self.outer, self.first)

    def largest_now(self) -> jax.Array:
        """`largest`, inside a compiled program."""
        pairs = zip(self.first.values, self.second.values, strict=True)
        return jnp.max(jnp.stack([jnp.max(b / a) for a, b in pairs]))

    @property
    def largest(self) -> float:
        """The largest λ with Bx = λAx."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [
                np.where(b == 0, 0.0, b / a)
                for a, b in zip(self.first.values, self.second.values, strict=True)
            ]
        return max(float(np.max(ratio)) for ratio in ratios)


class DensePencil(eqx.Module):
    """Two matrices brought to one basis: A = EEᵀ, B = E diag(λ) Eᵀ.

    So a square root of aA − bB for any numbers a and b is E diag(√(a − bλ)): factored once, used
    at every step of a schedule. `outer` is a matrix applied to the left of that root.
    """

    root: Any
    inverse_root: Any
    eigenvalues: Any

    def sqrt(self, a, b, normals: PyTree) -> PyTree:
        scaled = _root(a - b * self.eigenvalues) * tree.ravel(normals)
        return tree.unravel(self.root @ scaled, normals)

    def inverse_sqrt(self, a, b, normals: PyTree) -> PyTree:
        scaled = tree.ravel(normals) / jnp.sqrt(a - b * self.eigenvalues)
        return tree.unravel(self.inverse_root.T @ scaled, normals)

    def apply(self, function: Callable, vector: PyTree) -> PyTree:
        """f(A⁻¹B) times a vector, A positive definite."""
        scaled = function(self.eigenvalues) * (self.root.T @ tree.ravel(vector))
        return tree.unravel(self.inverse_root.T @ scaled, vector)

    def spread(self, function: Callable, normals: PyTree) -> PyTree:
        """N(0, f(A⁻¹B)² A⁻¹), A positive definite."""
        scaled = function(self.eigenvalues) * tree.ravel(normals)
        return tree.unravel(self.inverse_root.T @ scaled, normals)

    def quadratic(self, a, b, vector: PyTree) -> jax.Array:
        return jnp.sum((a - b * self.eigenvalues) * (self.root.T @ tree.ravel(vector)) ** 2)

    @property
    def first(self) -> Dense:
        """A, where it is positive definite."""
        root = jnp.linalg.inv(self.inverse_root)
        return Dense(root @ root.T)

    def outer_first(self) -> Dense:
        """`outer` times A, where A is positive definite."""
        return Dense(self.root @ jnp.linalg.inv(self.inverse_root).T)

    def with_second(self, second: Matrix) -> "DensePencil":
        """The pencil of A, where it is positive definite, and another B."""
        scaled = self.inverse_root @ as_array(second) @ self.inverse_root.T
        eigenvalues, rotation = jnp.linalg.eigh((scaled + scaled.T) / 2)
        return DensePencil(self.root @ rotation, rotation.T @ self.inverse_root, eigenvalues)

    def raised(self, limit: jax.Array) -> "DensePencil":
        """The pencil of A′ and B: A raised, along directions that need it, until B ⪯ limit·A′."""
        factor = jnp.maximum(1, self.eigenvalues / limit)
        root, inverse = jnp.sqrt(factor), 1 / jnp.sqrt(factor)
        return DensePencil(
            self.root * root[None, :],
            inverse[:, None] * self.inverse_root,
            self.eigenvalues / factor,
        )

    def largest_now(self) -> jax.Array:
        """`largest`, inside a compiled program."""
        return jnp.max(self.eigenvalues)

    @property
    def largest(self) -> float:
        return float(np.max(self.eigenvalues))


Pencil = DiagonalPencil | DensePencil


def pencil(
    first: Matrix, second: Matrix, sizes: list[int], name: str, outer: Matrix | None = None
) -> Pencil:
    """The pencil of A (`first`) and B (`second`); its `sqrt` has `outer` to the left."""
    outer = Diagonal((np.ones(()),) * len(sizes)) if outer is None else outer
    if are_diagonal(first, second, outer):
        return DiagonalPencil(first, second, outer)  # pyright: ignore[reportArgumentType]
    a, b = first.dense(sizes).array, second.dense(sizes).array
    values, vectors = np.linalg.eigh(a)
    if second.is_zero:
        root, eigenvalues = vectors * np.sqrt(np.maximum(values, 0)), np.zeros(len(values))
    elif values[0] <= 0:
        raise ValueError(
            f"{name} must be positive definite here, but its smallest eigenvalue is {values[0]:g}."
        )
    else:
        half = vectors * np.sqrt(values)
        inverse_half = (vectors / np.sqrt(values)).T
        eigenvalues, rotation = np.linalg.eigh(inverse_half @ b @ inverse_half.T)
        root = half @ rotation
    inverse_root = np.linalg.inv(root) if values[0] > 0 else np.full_like(root, np.nan)
    return DensePencil(outer.dense(sizes).array @ root, inverse_root, eigenvalues)


def finish(matrix, dtype):
    """The same matrix or pencil as jax arrays of the parameters' dtype, ready for the loop."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), matrix)
