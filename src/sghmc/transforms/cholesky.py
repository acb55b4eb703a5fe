"""Factors of covariance and correlation matrices."""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.transforms.base import Transform, checked


class CholeskyCovariance(Transform):
    """Lower triangular L with a positive diagonal, so that L Lᵀ is a covariance matrix.

    x has the k(k + 1)/2 entries of the triangle, row by row; those of the diagonal are logarithms.

    >>> from sghmc import transforms
    >>> transforms.CholeskyCovariance().forward(jax.numpy.zeros(3)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def forward(self, x):
        size = _triangle_size(x.shape[-1], 1)
        rows, columns = np.tril_indices(size)
        entries = jnp.where(rows == columns, jnp.exp(x), x)
        return jnp.zeros((*x.shape[:-1], size, size), x.dtype).at[..., rows, columns].set(entries)

    def inverse(self, y):
        def is_factor(y):
            is_lower = np.all(np.triu(y, 1) == 0, axis=(-2, -1))
            return is_lower & np.all(np.diagonal(y, axis1=-2, axis2=-1) > 0, axis=-1)

        y = checked(y, is_factor, "lower triangular with a positive diagonal")
        rows, columns = np.tril_indices(y.shape[-1])
        entries = y[..., rows, columns]
        is_diagonal = rows == columns
        return jnp.where(is_diagonal, jnp.log(jnp.where(is_diagonal, entries, 1)), entries)

    def log_jacobian(self, x):
        rows, columns = np.tril_indices(_triangle_size(x.shape[-1], 1))
        return jnp.sum(jnp.where(rows == columns, x, 0))


class CholeskyCorrelation(Transform):
    """Lower triangular L with rows of length 1, so that L Lᵀ is a correlation matrix.

        Lᵢⱼ = tanh(xᵢⱼ) √(1 − Lᵢ₁² − … − Lᵢ,ⱼ₋₁²)  for j < i,  and Lᵢᵢ is what a length of 1 leaves

    x has the k(k − 1)/2 entries below the diagonal, row by row. The Jacobian is that of these
    entries of L: the measure in which LKJ priors of L are written.

    >>> from sghmc import transforms
    >>> transforms.CholeskyCorrelation().forward(jax.numpy.zeros(1)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def _parts(self, x):
        """tanh(x) as a strictly lower matrix, and log of 1 − Σ L² left of and at each entry."""
        size = _triangle_size(x.shape[-1], 0)
        rows, columns = np.tril_indices(size, -1)
        empty = jnp.zeros((*x.shape[:-1], size, size), x.dtype)
        # log(1 − tanh²), without rounding where tanh is nearly 1.
        shrink = empty.at[..., rows, columns].set(_log_sech_squared(x))
        left = jnp.cumsum(shrink, axis=-1) - shrink
        return empty.at[..., rows, columns].set(jnp.tanh(x)), left, shrink

    def forward(self, x):
        tangents, left, _ = self._parts(x)
        diagonal = jnp.broadcast_to(jnp.eye(tangents.shape[-1], dtype=x.dtype), tangents.shape)
        return (tangents + diagonal) * jnp.tril(jnp.exp(left / 2))

    def inverse(self, y):
        def is_factor(y):
            is_lower = np.all(np.triu(y, 1) == 0, axis=(-2, -1))
            is_positive = np.all(np.diagonal(y, axis1=-2, axis2=-1) > 0, axis=-1)
            lengths = np.sum(np.asarray(y, np.float64) ** 2, axis=-1)
            return is_lower & is_positive & np.all(np.abs(lengths - 1) < 1e-4, axis=-1)

        y = checked(y, is_factor, "lower triangular with a positive diagonal and rows of length 1")
        # What the entries right of one, up to the diagonal, leave for it.
        right = jnp.flip(jnp.cumsum(jnp.flip(y**2, -1), axis=-1), -1)
        rows, columns = np.tril_indices(y.shape[-1], -1)
        entries, room = y[..., rows, columns], right[..., rows, columns]
        return jnp.arctanh(entries / jnp.sqrt(room))

    def log_jacobian(self, x):
        _, left, shrink = self._parts(x)
        return jnp.sum(shrink + jnp.tril(left, -1) / 2)


def _triangle_size(count: int, offset: int) -> int:
    """The size of a matrix of whose lower triangle there are `count` entries; without a diagonal
    where `offset` is 0.
    """
    size = round((2 * count + 1 / 4) ** 0.5 + (1 - 2 * offset) / 2)
    if size * (size - 1 + 2 * offset) // 2 != count:
        example = [i * (i - 1 + 2 * offset) // 2 for i in range(2, 5)]
        raise ValueError(
            f"{count} numbers are no triangle of a matrix: there are {example} for sizes 2, 3, 4."
        )
    return size


def _log_sech_squared(x: jax.Array) -> jax.Array:
    """log(1 − tanh² x)."""
    return 2 * (np.log(2) - x - jax.nn.softplus(-2 * x))
