"""The spectrum of a Hessian of any size, seen by a few products with vectors."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree
from sghmc.types import PyTree

LANCZOS = (4, 30)
"""Random vectors: the error of a trace is a share √(2/(number · directions that count)); and
products for each: so many eigenvalues at the most are told apart."""
_ROUNDING = 1e-5
"""Share of the largest eigenvalue below which a curvature is 0 in single precision."""


class Spectrum(NamedTuple):
    """A density of eigenvalues: `values`, and how many of the `size` directions each stands for."""

    values: np.ndarray
    counts: np.ndarray
    size: int

    @property
    def largest(self) -> float:
        return float(self.values.max())

    @property
    def least(self) -> float:
        return float(self.values.min())

    def effective(self, ridge: float) -> float:
        """Σ h/(h + ridge) over the eigenvalues h that are not 0: directions that data determine."""
        is_real = self.values > _ROUNDING * max(self.largest, 0.0)
        values = np.where(is_real, self.values, 0.0)
        return float(np.sum(self.counts * values / (values + ridge)))


def hessian_spectrum(
    key: jax.Array,
    gradient: Callable[[PyTree], PyTree],
    center: PyTree,
    num_probes: int = LANCZOS[0],
    num_iterations: int = LANCZOS[1],
) -> Spectrum:
    """The eigenvalues of the derivative of `gradient` at `center`.

    Stochastic Lanczos quadrature: for a random unit vector v, the eigenvalues of the tridiagonal
    matrix of its Krylov space, with weights that make Σ wⱼ f(hⱼ) = vᵀf(H)v for polynomials f of
    degree 2·(iterations) − 1; d times that has the mean tr f(H).

    Ubaru, Chen & Saad, SIAM Journal on Matrix Analysis 2017.

    >>> import jax, jax.numpy as jnp
    >>> scales = jnp.repeat(jnp.array([0.0, 2.0]), 500)
    >>> seen = hessian_spectrum(jax.random.key(0), lambda theta: scales * theta, jnp.zeros(1000))
    >>> round(seen.largest, 3), round(seen.effective(1e-6))
    (2.0, 500)
    """
    size = tree.size(center)
    keys = jax.random.split(key, num_probes)
    diagonals, beside = _tridiagonal(keys, gradient, center, min(num_iterations, size))
    values, counts = [], []
    for middle, next_to_it in zip(*map(np.asarray, (diagonals, beside)), strict=True):
        side = np.diag(next_to_it[:-1].astype(np.float64), 1)
        nodes, vectors = np.linalg.eigh(np.diag(middle.astype(np.float64)) + side + side.T)
        values.append(nodes)
        counts.append(size / num_probes * vectors[0] ** 2)
    return Spectrum(np.concatenate(values), np.concatenate(counts), size)


@eqx.filter_jit
def _tridiagonal(keys, gradient, center, num_iterations):
    """Diagonal and subdiagonal of each probe's matrix; 0 from where its space is exhausted."""

    def product(vector):
        direction = tree.unravel(vector, center)
        return tree.ravel(jax.jvp(gradient, (center,), (direction,))[1])

    def of_probe(key):
        start = jax.random.rademacher(key, (tree.size(center),), tree.float_type(center))
        basis = jnp.zeros((num_iterations + 1, start.size), start.dtype)
        basis = basis.at[0].set(start / jnp.linalg.norm(start))

        def extend(i, carry):
            basis, diagonal, beside = carry
            image = product(basis[i])
            diagonal = diagonal.at[i].set(basis[i] @ image)
            length = jnp.linalg.norm(image)
            for _ in range(2):  # once is not enough in single precision
                image = image - basis.T @ (basis @ image)
            rest = jnp.linalg.norm(image)
            is_new = rest > 1e-6 * length
            beside = beside.at[i].set(jnp.where(is_new, rest, 0))
            fresh = jnp.where(is_new, image / jnp.where(is_new, rest, 1), 0)
            return basis.at[i + 1].set(fresh), diagonal, beside

        zeros = jnp.zeros(num_iterations, start.dtype)
        return lax.fori_loop(0, num_iterations, extend, (basis, zeros, zeros))[1:]

    return lax.map(of_probe, keys)
