"""Two positive matrices brought to one basis, for functions of their combinations.

Injected noise has covariance aA − bB, where a and b follow schedules: with A and B in one basis a
square root of it is found at every step without factoring anything anew.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sghmc.core import tree
from sghmc.core.matrices import (
    Dense,
    Diagonal,
    Matrix,
    are_diagonal,
    as_array,
    by_entries,
    fit,
    number_for_all,
    times,
)
from sghmc.types import PyTree


def _root(value: jax.Array) -> jax.Array:
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
        return times(self.outer, roots) @ normals

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
        return times(self.outer, self.first)

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
    outer = number_for_all(np.ones(()), sizes) if outer is None else outer
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
