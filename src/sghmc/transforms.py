"""Constrained parameters as maps of unconstrained ones, with the logarithms of their Jacobians.

A log density of y = f(x) becomes one of x if log |∂f/∂x| is added. `Space` does that for the
functions of a posterior, so that they can be written in terms of the constrained values.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from sghmc import display
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.target import Potential
from sghmc.types import PyTree

__all__ = [
    "CholeskyCorrelation",
    "CholeskyCovariance",
    "Interval",
    "Ordered",
    "Positive",
    "Simplex",
    "Space",
    "Transform",
]


class Transform(eqx.Module):
    """A one-to-one map from real numbers x to constrained values y.

    Arrays may have any leading axes: draws are mapped at once.
    """

    def _repr_html_(self) -> str:
        return display.notebook_settings(self)

    @abc.abstractmethod
    def forward(self, x: jax.Array) -> jax.Array:
        """Map unconstrained numbers to the constrained value."""

    @abc.abstractmethod
    def inverse(self, y: ArrayLike) -> jax.Array:
        """Map a constrained value to unconstrained numbers; raise if it violates the constraint."""

    @abc.abstractmethod
    def log_jacobian(self, x: jax.Array) -> jax.Array:
        """Return log |∂y/∂x|, summed over all of x, for the entries of y that are free."""


def checked(y: ArrayLike, is_inside: Callable[[np.ndarray], Any], words: str) -> jax.Array:
    """Convert a value to an array; raise an error with `words` unless it `is_inside`."""
    array = jnp.asarray(y, jnp.result_type(float))
    if not isinstance(array, Tracer) and not np.all(is_inside(np.asarray(array))):
        raise ValueError(f"The value must be {words}, but is {y}.")
    return array


# Positive, bounded and ordered numbers.


class Positive(Transform):
    """y = low + eˣ: above `low`, entry by entry.

    >>> from sghmc import transforms
    >>> float(transforms.Positive().inverse(1.0))
    0.0
    """

    low: float = 0.0

    def forward(self, x):
        return self.low + jnp.exp(x)

    def inverse(self, y):
        y = checked(y, lambda y: y > self.low, f"above {self.low:g}")
        return jnp.log(y - self.low)

    def log_jacobian(self, x):
        return jnp.sum(x)


class Interval(Transform):
    """y = low + (high − low)/(1 + e⁻ˣ): between `low` and `high`, entry by entry.

    >>> from sghmc import transforms
    >>> float(transforms.Interval(0, 10).inverse(5.0))
    0.0
    """

    low: float = 0.0
    high: float = 1.0

    def __check_init__(self):
        if not self.low < self.high:
            raise ValueError(
                f"An interval needs low < high, but they are {self.low!r} and {self.high!r}."
            )

    def forward(self, x):
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def inverse(self, y):
        words = f"between {self.low:g} and {self.high:g}"
        y = checked(y, lambda y: (self.low < y) & (y < self.high), words)
        return jnp.log(y - self.low) - jnp.log(self.high - y)

    def log_jacobian(self, x):
        inside = jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)
        return jnp.sum(inside + np.log(self.high - self.low))


class Ordered(Transform):
    """y₁ = x₁, yᵢ = yᵢ₋₁ + e^{xᵢ}: rising along the last axis.

    >>> from sghmc import transforms
    >>> transforms.Ordered().forward(jax.numpy.zeros(3)).tolist()
    [0.0, 1.0, 2.0]
    """

    def forward(self, x):
        first, rest = x[..., :1], jnp.exp(x[..., 1:])
        return jnp.cumsum(jnp.concatenate([first, rest], axis=-1), axis=-1)

    def inverse(self, y):
        y = checked(y, lambda y: np.diff(y, axis=-1) > 0, "rising along the last axis")
        return jnp.concatenate([y[..., :1], jnp.log(jnp.diff(y, axis=-1))], axis=-1)

    def log_jacobian(self, x):
        return jnp.sum(x[..., 1:])


# Factors of covariance and correlation matrices.


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

        Lᵢⱼ = tanh(xᵢⱼ) √(1 − Lᵢ₁² − … − Lᵢ,ⱼ₋₁²)  for j < i,  and Lᵢᵢ > 0 by the length of 1

    x has the k(k − 1)/2 entries below the diagonal, row by row. The Jacobian is that of these
    entries of L: the measure in which LKJ priors of L are written.

    >>> from sghmc import transforms
    >>> transforms.CholeskyCorrelation().forward(jax.numpy.zeros(1)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def _parts(self, x):
        """Return tanh(x) as a strictly lower matrix, and logarithms for the rests of rows."""
        size = _triangle_size(x.shape[-1], 0)
        rows, columns = np.tril_indices(size, -1)
        empty = jnp.zeros((*x.shape[:-1], size, size), x.dtype)
        # log(1 − tanh²), computed without cancellation if tanh is nearly 1.
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
        # Sums of squares of each entry and those right of it: 1 minus those left of it.
        right = jnp.flip(jnp.cumsum(jnp.flip(y**2, -1), axis=-1), -1)
        rows, columns = np.tril_indices(y.shape[-1], -1)
        return jnp.arctanh(y[..., rows, columns] / jnp.sqrt(right[..., rows, columns]))

    def log_jacobian(self, x):
        _, left, shrink = self._parts(x)
        return jnp.sum(shrink + jnp.tril(left, -1) / 2)


def _triangle_size(count: int, offset: int) -> int:
    """Return the size of a matrix whose lower triangle has `count` entries.

    The triangle includes the diagonal if `offset` is 1, and does not if it is 0.
    """
    size = round((2 * count + 1 / 4) ** 0.5 + (1 - 2 * offset) / 2)
    if size * (size - 1 + 2 * offset) // 2 != count:
        example = [i * (i - 1 + 2 * offset) // 2 for i in range(2, 5)]
        raise ValueError(
            f"{count} numbers do not fill a triangle of a matrix: sizes 2, 3, 4 have {example}."
        )
    return size


def _log_sech_squared(x: jax.Array) -> jax.Array:
    """Return log(1 − tanh² x)."""
    return 2 * (np.log(2) - x - jax.nn.softplus(-2 * x))


# Shares that add to 1.


class Simplex(Transform):
    """k positive shares of sum 1, along the last axis, from k − 1 numbers by stick-breaking.

        yᵢ = zᵢ (1 − y₁ − … − yᵢ₋₁),  zᵢ = 1/(1 + (k − i) e^{−xᵢ}),  and y_k is the rest

    At x = 0 all shares are equal.

    >>> from sghmc import transforms
    >>> transforms.Simplex().forward(jax.numpy.zeros(3)).round(2).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def _log_parts(self, x):
        """Return the logarithms of the numbers of parts after each cut, k − 1, …, 1."""
        return jnp.broadcast_to(jnp.log(jnp.arange(x.shape[-1], 0, -1, dtype=x.dtype)), x.shape)

    def _logits(self, x):
        return x - self._log_parts(x)

    def _log_rest(self, logits):
        """Return the logarithm of the rest of the stick before each cut."""
        left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        return jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)

    def forward(self, x):
        logits = self._logits(x)
        log_rest = self._log_rest(logits)
        cut = log_rest[..., :-1] + jax.nn.log_sigmoid(logits)
        return jnp.exp(jnp.concatenate([cut, log_rest[..., -1:]], axis=-1))

    def inverse(self, y):
        def is_simplex(y):
            return np.all(y > 0, axis=-1) & (np.abs(np.sum(y, axis=-1) - 1) < 1e-4)

        y = checked(y, is_simplex, "positive shares that add to 1 along the last axis")
        rest = jnp.flip(jnp.cumsum(jnp.flip(y, -1), axis=-1), -1)[..., 1:]
        logits = jnp.log(y[..., :-1]) - jnp.log(rest)
        return logits + self._log_parts(logits)

    def log_jacobian(self, x):
        logits = self._logits(x)
        slopes = jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits)
        return jnp.sum(slopes + self._log_rest(logits)[..., :-1])


# Parameter spaces, and posteriors over them.


class Space(eqx.Module):
    """A parameter space in which some parameters are constrained.

    `transforms` is a pytree like the parameters, or a prefix of one, with a `Transform` for each
    constrained part and None for the others; a dict may omit unconstrained parameters.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> from jax.scipy.stats import expon, norm
    >>> from sghmc import transforms
    >>> space = transforms.Space({"sd": transforms.Positive()})
    >>> posterior = space.posterior(
    ...     lambda p, y: norm.logpdf(y, p["mean"], p["sd"]),
    ...     lambda p: norm.logpdf(p["mean"], 0, 10) + expon.logpdf(p["sd"]),
    ...     jnp.array([2.1, 1.4, 3.3, 2.2]),
    ... )
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), posterior, "auto", space.unconstrain({"mean": 0.0, "sd": 1.0}),
    ...     num_samples=100, num_chains=4, progress=False,
    ... )
    >>> draws = space.constrain(samples.positions)
    >>> bool(draws["sd"].min() > 0)
    True
    """

    transforms: PyTree

    def __check_init__(self):
        for leaf in jax.tree.leaves(self.transforms, is_leaf=_is_transform):
            if not _is_transform(leaf):
                raise TypeError(
                    f"A space needs transforms such as Positive() for constrained parameters and "
                    f"None for the others, not {leaf!r}."
                )

    def constrain(self, params: PyTree) -> PyTree:
        """Map parameters to constrained values; leading axes stay, so it also maps draws."""
        return self._map(lambda transform, x: transform.forward(jnp.asarray(x)), params)

    def unconstrain(self, values: PyTree) -> PyTree:
        """Map constrained values to unconstrained parameters, for example the start of a run."""
        mapped = self._map(lambda transform, y: transform.inverse(y), values)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), mapped)

    def log_jacobian(self, params: PyTree) -> jax.Array:
        """Return log |∂(values)/∂(params)|."""
        terms = self._map(lambda transform, x: transform.log_jacobian(x), params, lambda x: 0.0)
        return sum(jax.tree.leaves(terms), jnp.zeros(()))

    def posterior(
        self,
        log_likelihood: Callable[..., jax.Array],
        log_prior: Callable[..., jax.Array],
        data: PyTree,
        hyper: PyTree = None,
    ) -> Posterior:
        """Make a `Posterior` over unconstrained parameters from functions of constrained values."""
        prior = _OfValues(self, log_prior, sign=1)
        return Posterior(_OfValues(self, log_likelihood), prior, data, hyper)

    def potential(self, function: Callable[[PyTree], jax.Array]) -> Potential:
        """Make a `Potential` over unconstrained parameters from a U of constrained values."""
        return Potential(_OfValues(self, function, sign=-1))

    def _map(
        self, function: Callable[[Transform, Any], Any], tree: PyTree, otherwise=lambda x: x
    ) -> PyTree:
        def of_part(transform, part):
            if transform is None:
                return jax.tree.map(otherwise, part)
            return jax.tree.map(lambda leaf: function(transform, leaf), part)

        return jax.tree.map(of_part, self._whole(tree), tree, is_leaf=_is_transform)

    def _whole(self, tree: PyTree) -> PyTree:
        """Return the transforms, with None for entries of a dict that have none."""
        if not isinstance(self.transforms, dict) or not isinstance(tree, dict):
            return self.transforms
        unknown = sorted(set(self.transforms) - set(tree))
        if unknown:
            raise ValueError(f"There is no parameter {unknown[0]!r}: there are {sorted(tree)}.")
        return {name: self.transforms.get(name) for name in tree}


class _OfValues(eqx.Module):
    """A function of constrained values as one of parameters, plus `sign` times the Jacobian's log.

    Of a log density the sign is 1, of a potential −1, of a log-likelihood 0.
    """

    space: Space
    function: Callable
    sign: int = eqx.field(static=True, default=0)

    def __call__(self, params, *args):
        value = self.function(self.space.constrain(params), *args)
        return value + self.sign * self.space.log_jacobian(params) if self.sign else value


def _is_transform(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, Transform)
