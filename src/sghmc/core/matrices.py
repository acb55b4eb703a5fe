"""Positive matrices over the parameters, and pencils, which are two of them in one basis.

They are mass, friction, preconditioner and gradient noise. `checks.parse_matrix` turns what a user
gives into a `Diagonal` or a `Dense`; what a sampler needs of them is computed once, in double
precision, before the loop. Injected noise has covariance aA − bB, where a and b follow schedules:
the pencil of A and B has a square root of it at every step, without factoring anything anew.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sghmc.core import tree
from sghmc.types import PyTree


class Diagonal(eqx.Module):
    """A diagonal matrix: a raveled array for each leaf of the parameters; numbers stay scalars.

    A number that many leaves share is stored once: a network of a hundred arrays would otherwise
    bring as many arguments to the compiled loop, and to its compiler.
    """

    given: tuple[Float[Any, " n"] | Float[Any, ""], ...]
    num_leaves: int = eqx.field(static=True)

    def __init__(self, values: Sequence[Any], num_leaves: int | None = None):
        """Store one value for each leaf, or one number for all `num_leaves`."""
        self.num_leaves = len(values) if num_leaves is None else num_leaves
        is_few = num_leaves is not None and num_leaves <= tree.MAX_UNROLLED_LEAVES
        self.given = tuple(values) * (self.num_leaves if is_few else 1)

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


class LowRankFactor(eqx.Module):
    """Matrix diag(left) (I + P Qᵀ) diag(right), whose products take O(dk) for k columns of P, Q."""

    left: Float[Any, " d"]
    first: Float[Any, "d k"]
    second: Float[Any, "d k"]
    right: Float[Any, " d"]

    def rows(self, x: Any) -> Any:
        """Return the product with a vector, or with each row of an array."""
        x = x * self.right
        return (x + (x @ self.second) @ self.first.T) * self.left

    def __matmul__(self, vector: PyTree) -> PyTree:
        return tree.unravel(self.rows(tree.ravel(vector)), vector)

    def inverse(self) -> "LowRankFactor":
        small = np.linalg.inv(np.eye(self.first.shape[1]) + self.second.T @ self.first)
        return LowRankFactor(1 / self.right, -self.first @ small, self.second, 1 / self.left)

    def transpose(self) -> "LowRankFactor":
        return LowRankFactor(self.right, self.second, self.first, self.left)

    def stretched(self, scales: Any, basis: Any, gains: Any) -> "LowRankFactor":
        """Return A diag(scales) (I + B (G − 1) Bᵀ), with orthonormal columns B and their gains."""
        scales = self.right * scales
        before, after = self.first / scales[:, None], self.second * scales[:, None]
        more = basis * (gains - 1)
        first = np.hstack([before, more + before @ (after.T @ more)])
        second = np.hstack([after, basis])
        return LowRankFactor(self.left * scales, first, second, np.ones_like(scales))

    def dense(self, sizes: list[int]) -> "Dense":
        return Dense(self.rows(np.eye(len(self.left), dtype=self.left.dtype)).T)

    @property
    def row_squares(self) -> np.ndarray:
        """Return the squared length of each row: the diagonal of A Aᵀ."""
        inner = (self.second * self.right[:, None] ** 2).T @ self.second
        along = (1 + 2 * np.sum(self.first * self.second, 1)) * self.right**2
        return self.left**2 * (along + np.sum((self.first @ inner) * self.first, 1))

    @property
    def is_zero(self) -> bool:
        return False


Matrix = Diagonal | Dense | LowRankFactor


def fit(value: jax.Array, leaf: jax.Array) -> jax.Array:
    """Reshape a diagonal's entries to those of a leaf; a number for all stays a number."""
    return value if jnp.ndim(value) == 0 else value.reshape(leaf.shape)


def transpose(matrix: Matrix) -> Matrix:
    if isinstance(matrix, Dense):
        return Dense(matrix.array.T)
    return matrix.transpose() if isinstance(matrix, LowRankFactor) else matrix


def as_array(matrix: Matrix) -> Float[Any, "d d"]:
    """Return a (d, d) array inside a compiled program; a diagonal's entries must be vectors."""
    if not isinstance(matrix, Diagonal):
        return matrix.dense([]).array
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
        return by_entries(operator.mul, by_entries(operator.mul, outer, inner), outer)
    return Dense(as_array(outer) @ as_array(inner) @ as_array(outer))


def product(left: Matrix, right: Matrix, sizes: list[int]) -> Matrix:
    if isinstance(left, Diagonal) and isinstance(right, Diagonal):
        return by_entries(operator.mul, left, right)
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


# Pencils


def _root(value: jax.Array | np.ndarray) -> jax.Array:
    # Samplers check before the loop that aA − bB is positive semi-definite. Negative values here
    # are rounding errors, in the limit where all noise comes from the gradient.
    return jnp.sqrt(jnp.maximum(value, 0))


class DiagonalPencil(eqx.Module):
    """Two diagonal matrices A and B, with the members of `DensePencil`."""

    first: Diagonal
    second: Diagonal
    outer: Diagonal

    def _combined(self, a, b) -> Diagonal:
        """Return aA − bB."""
        return by_entries(lambda x, y: a * x - b * y, self.first, self.second)

    def sqrt(self, a, b, normals: PyTree) -> PyTree:
        roots = by_entries(_root, self._combined(a, b))
        return by_entries(operator.mul, self.outer, roots) @ normals

    def inverse_sqrt(self, a, b, normals: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(normals)
        roots = by_entries(jnp.sqrt, self._combined(a, b)).values
        divided = [
            (leaf / fit(root, leaf)).astype(leaf.dtype)
            for root, leaf in zip(roots, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, divided)

    def apply(self, function: Callable, vector: PyTree) -> PyTree:
        return by_entries(function, self._rates()) @ vector

    def spread(self, function: Callable, normals: PyTree) -> PyTree:
        scales = by_entries(
            lambda rate, first: function(rate) / jnp.sqrt(first), self._rates(), self.first
        )
        return scales @ normals

    def _rates(self) -> Diagonal:
        """Return A⁻¹B, the rates."""
        return by_entries(lambda x, y: y / x, self.first, self.second)

    def quadratic(self, a, b, vector: PyTree) -> Float[Array, ""]:
        leaves = jax.tree.leaves(vector)
        pairs = zip(self._combined(a, b).values, leaves, strict=True)
        return tree.total([fit(c, leaf) * leaf**2 for c, leaf in pairs])

    def with_second(self, second: Matrix) -> "DiagonalPencil":
        """Return the pencil of A and another B."""
        assert isinstance(second, Diagonal)
        return dataclasses.replace(self, second=second)

    def raised(self, limit: jax.Array) -> "DiagonalPencil":
        """The pencil of A′ and B: A raised, along directions that need it, until B ⪯ limit·A′."""
        first = by_entries(lambda a, b: jnp.maximum(a, b / limit), self.first, self.second)
        return dataclasses.replace(self, first=first)

    def outer_first(self) -> Diagonal:
        """Return `outer` times A."""
        return by_entries(operator.mul, self.outer, self.first)

    def largest_now(self) -> Float[Array, ""]:
        """`largest`, inside a compiled program."""
        pairs = zip(self.first.values, self.second.values, strict=True)
        return jnp.max(jnp.stack([jnp.max(b / a, initial=0) for a, b in pairs]))

    @property
    def largest(self) -> float:
        """The largest eigenvalue λ of Bx = λAx."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [
                np.where(b == 0, 0.0, b / a)
                for a, b in zip(self.first.values, self.second.values, strict=True)
            ]
        return max(float(np.max(ratio, initial=0)) for ratio in ratios)  # a leaf may be empty


class DensePencil(eqx.Module):
    """Two matrices brought to one basis: A = EEᵀ, B = E diag(λ) Eᵀ.

    So a square root of aA − bB for any numbers a and b is E diag(√(a − bλ)): factored once, used
    at every step of a schedule. `outer` is a matrix applied to the left of that root.
    """

    root: Float[Any, "d d"]
    inverse_root: Float[Any, "d d"]
    eigenvalues: Float[Any, " d"]

    def sqrt(self, a, b, normals: PyTree) -> PyTree:
        scaled = _root(a - b * self.eigenvalues) * tree.ravel(normals)
        return tree.unravel(self.root @ scaled, normals)

    def inverse_sqrt(self, a, b, normals: PyTree) -> PyTree:
        scaled = tree.ravel(normals) / jnp.sqrt(a - b * self.eigenvalues)
        return tree.unravel(self.inverse_root.T @ scaled, normals)

    def apply(self, function: Callable, vector: PyTree) -> PyTree:
        """Return f(A⁻¹B) times a vector, A positive definite."""
        scaled = function(self.eigenvalues) * (self.root.T @ tree.ravel(vector))
        return tree.unravel(self.inverse_root.T @ scaled, vector)

    def spread(self, function: Callable, normals: PyTree) -> PyTree:
        """Draw from N(0, f(A⁻¹B)² A⁻¹), A positive definite."""
        scaled = function(self.eigenvalues) * tree.ravel(normals)
        return tree.unravel(self.inverse_root.T @ scaled, normals)

    def quadratic(self, a, b, vector: PyTree) -> Float[Array, ""]:
        return jnp.sum((a - b * self.eigenvalues) * (self.root.T @ tree.ravel(vector)) ** 2)

    @property
    def first(self) -> Dense:
        """The matrix A, which must be positive definite."""
        root = jnp.linalg.inv(self.inverse_root)
        return Dense(root @ root.T)

    def outer_first(self) -> Dense:
        """Return `outer` times A, which must be positive definite."""
        return Dense(self.root @ jnp.linalg.inv(self.inverse_root).T)

    def with_second(self, second: Matrix) -> "DensePencil":
        """Return the pencil of A, which must be positive definite, and another B."""
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

    def largest_now(self) -> Float[Array, ""]:
        """`largest`, inside a compiled program."""
        return jnp.max(self.eigenvalues)

    @property
    def largest(self) -> float:
        return float(np.max(self.eigenvalues))


Pencil = DiagonalPencil | DensePencil


def pencil(
    first: Matrix, second: Matrix, sizes: list[int], name: str, outer: Matrix | None = None
) -> Pencil:
    """Return the pencil of A (`first`) and B (`second`); its `sqrt` has `outer` to the left."""
    outer = Diagonal([np.ones(())], len(sizes)) if outer is None else outer
    if isinstance(first, Diagonal) and isinstance(second, Diagonal) and isinstance(outer, Diagonal):
        return DiagonalPencil(first, second, outer)
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
