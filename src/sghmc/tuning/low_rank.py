"""Factors L = diagonal times (I + low rank) for many parameters, from curvature or from draws.

A few directions far stiffer or softer than all others, beside scales of their own for all
parameters: a factor of such a form has products in O(dk), where a matrix would need d².
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree
from sghmc.core.matrices import LowRankFactor
from sghmc.posterior import mode
from sghmc.posterior.host_potential import HostPotential, as_params
from sghmc.posterior.posterior import AbstractPosterior, RowPosterior
from sghmc.posterior.target import Potential, Target
from sghmc.types import PyTree

NUM_CURVATURE_ROWS = 2_048
"""Rows of which a first guess of scales is made."""
_NUM_POWER_STEPS = 20

# Products of the Hessian that a sweep makes at once: about so many directions can be told apart.
_NUM_PROBES = 64
# Diagonal and directions are found in turn.
_NUM_SWEEPS = 3
# A direction is taken for one of its own if it is stiffer than the rest by this factor.
_MIN_STIFFNESS = 3.0
# No parameter's curvature is taken to be below this share of the median, in a sweep.
_MIN_SCALE_SHARE = 1e-3
# Directions of draws whose variance is off by less than this factor are left as they are.
_MIN_RATIO = 2.0
# Singular values of n noisy vectors in d dimensions reach 1 + √(d/n): larger ones say something.
_EDGE_MARGIN = 1.3
# Steps of a search for the mode in whitened coordinates, and powers of 2 that its steps may have.
_MAX_STEPS, _STEP_POWERS = 40, np.arange(2, -6, -1)


class CurvatureFit(NamedTuple):
    """A factor L with LLᵀ ≈ H⁻¹.

    `unevenness` is the mean square of the eigenvalues of LᵀHL that are left, relative to the square
    of their mean: 1 where L is right. `is_convex` is False where a negative one was met.
    """

    factor: LowRankFactor
    unevenness: float
    is_convex: bool


def fit_curvature(potential: HostPotential, x: np.ndarray, scale: np.ndarray) -> CurvatureFit:
    """Return a low-rank factor from products of the Hessian at x; `scale` is a first guess of sds.

    Each sweep finds the stiffest directions by subspace iteration, and the diagonal of what is left
    by Hutchinson's method, in coordinates scaled by the diagonal of the sweep before.
    """
    rng, size = np.random.default_rng(0), len(x)
    probes = rng.choice([-1.0, 1.0], (min(_NUM_PROBES, size), size))

    def products(rows: np.ndarray) -> np.ndarray:
        return scale * potential.hessian_products(x, scale * rows)

    for _ in range(_NUM_SWEEPS - 1):
        stiff, basis, left = _separate(products, probes, num_powers=1)
        diagonal = np.mean(probes * left, 0) / np.maximum(1 - np.sum(basis**2, 1), 0.05)
        diagonal = np.abs(diagonal)
        scale = scale / np.sqrt(np.maximum(diagonal, _MIN_SCALE_SHARE * np.median(diagonal)))
    stiff, basis, left = _separate(products, probes, num_powers=2)
    mean = np.mean(np.sum(probes * left, 1)) / (size - len(stiff))
    unevenness = np.mean(np.sum(left**2, 1)) / (size - len(stiff)) / mean**2
    none, ones = np.zeros((size, 0)), np.ones(size)
    diagonal = LowRankFactor(scale / np.sqrt(abs(mean)), none, none, ones)
    factor = diagonal.stretched(ones, basis, np.sqrt(np.abs(mean / stiff)))
    return CurvatureFit(factor, float(unevenness), bool(mean > 0 and np.all(stiff > 0)))


def _separate(
    products: Callable[[np.ndarray], np.ndarray], probes: np.ndarray, num_powers: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the stiffest eigenvalues, their directions, and products with the rest of the matrix.

    `products` multiplies rows by the matrix, and the rest is that of the rows of `probes`.
    """
    images = products(probes)
    basis = np.linalg.qr(images.T)[0]
    curved = products(basis.T).T
    for _ in range(num_powers - 1):
        basis = np.linalg.qr(curved)[0]
        curved = products(basis.T).T
    values, turn = np.linalg.eigh(basis.T @ curved)
    order = np.argsort(-np.abs(values))
    values, basis, curved = values[order], basis @ turn[:, order], curved @ turn[:, order]

    def without(count: int) -> np.ndarray:
        directions = basis[:, :count]
        # Projected on both sides: what directions lack then matters in second order only.
        left = images - (probes @ directions) @ curved[:, :count].T
        return left - (left @ directions) @ directions.T

    rest = np.mean(np.sum(probes * without(len(values)), 1)) / max(1, len(basis) - len(values))
    count = int(np.sum(np.abs(values) > _MIN_STIFFNESS * abs(rest)))
    return values[:count], basis[:, :count], without(count)


def descend(
    potential: HostPotential,
    factor: LowRankFactor | np.ndarray,
    x: np.ndarray,
    goes_on: Callable[[], bool] = lambda: True,
) -> tuple[np.ndarray, float, float]:
    """Search the mode from x by conjugate gradients in z; return its place, U and distance there.

    The distance |Lᵀ∇U| is in standard deviations.
    """
    (value,), (slope,) = potential.evaluate(x[None])
    before, step = np.ones(len(x)), np.zeros(len(x))
    if isinstance(factor, LowRankFactor):
        outward, inward = factor.rows, factor.transpose().rows
    else:
        outward, inward = factor.__matmul__, factor.T.__matmul__
    for _ in range(_MAX_STEPS):
        along = inward(slope)
        if np.linalg.norm(along) < mode.CLOSE or not goes_on():
            break
        step = max(0.0, along @ (along - before) / (before @ before)) * step - along
        if step @ along >= 0:
            step = -along
        points = x + np.outer(2.0**_STEP_POWERS, outward(step))
        values, slopes = potential.evaluate(points)
        best = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
        if not values[best] < value:
            break
        x, value, slope, before = points[best], values[best], slopes[best], along
    return x, float(value), float(np.linalg.norm(inward(slope)))


def fit_spikes(z: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal directions whose variance is far from 1, as columns, and their variances.

    `z` are draws and `slopes` gradients at them, both with mean 0. In the directions where one of
    them stands out, the covariance is the one of the least Fisher divergence, as nutpie has it: the
    geometric mean of the draws' covariance and of the inverse of the gradients'. It is right for
    draws of a Gaussian that are few, or have not yet crossed it.
    """
    count, found = len(z), [_outstanding(each) for each in (z, slopes)]
    basis, triangle = np.linalg.qr(np.hstack(found))
    basis = basis[:, np.abs(triangle.diagonal()) > 1e-6]
    of_draws, of_slopes = ((each @ basis).T @ (each @ basis) / count for each in (z, slopes))
    if basis.shape[1] == 0:
        return basis, np.ones(0)
    # A # B⁻¹ = B^(−½) (B^½ A B^½)^½ B^(−½)
    root = _power(of_slopes, 0.5)
    inverse = np.linalg.inv(root)
    values, turn = np.linalg.eigh(inverse @ _power(root @ of_draws @ root, 0.5) @ inverse)
    is_far = np.maximum(values, 1 / values) > _MIN_RATIO
    return basis @ turn[:, is_far], values[is_far]


def _outstanding(rows: np.ndarray) -> np.ndarray:
    """Return right singular vectors, as columns, with singular values beyond those of noise."""
    count, size = rows.shape
    squares, left = np.linalg.eigh(rows @ rows.T)
    edge = np.median(np.sum(rows**2, 1)) / size * (_EDGE_MARGIN * (1 + np.sqrt(size / count))) ** 2
    chosen = np.flatnonzero(squares / count > edge)[-(count // 4) :]
    return rows.T @ (left[:, chosen] / np.sqrt(squares[chosen]))


def _power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    floor = np.finfo(float).eps * max(values[-1], np.finfo(float).tiny)
    return (vectors * np.maximum(values, floor) ** exponent) @ vectors.T


def diagonal_factor(potential: HostPotential, center: np.ndarray) -> np.ndarray:
    """Return a diagonal L = (λD)^{−½}, D the diagonal of the curvature H.

    λ is the largest eigenvalue of D^{−½}HD^{−½}, so that no direction has a frequency above 1.
    """
    target, rows = potential.target, None
    if isinstance(target, RowPosterior):
        order = np.random.default_rng(0).permutation(int(target.num_examples))
        rows = target.rows(jnp.asarray(order[:NUM_CURVATURE_ROWS]))
    factor = _inverse_root(target, as_params(center, potential.like), rows)
    return np.asarray(factor, np.float64)


@eqx.filter_jit
def _inverse_root(target: Target, position: PyTree, rows: PyTree) -> jax.Array:
    """Return (λD)^{−½}; D is the empirical Fisher information plus the prior's curvature."""
    x = tree.ravel(position)
    signs = jax.random.rademacher(jax.random.key(0), x.shape, x.dtype)

    def slope(potential):
        return lambda x: tree.ravel(jax.grad(potential)(tree.unravel(x, position)))

    def hessian_product(potential, direction):
        return jax.jvp(slope(potential), (x,), (direction,))[1]

    if isinstance(target, Potential):
        potential = prior = target.potential
        fisher = jnp.zeros_like(x)
    else:
        assert isinstance(target, AbstractPosterior)

        def potential(params):
            return target.estimate(params, rows)

        def prior(params):
            return -target.log_prior_at(params)

        def square(example):
            row = jax.tree.map(lambda leaf: leaf[None], example)
            return slope(lambda params: target.log_likelihood_sum(params, row))(x) ** 2

        fisher = target.num_examples * jnp.mean(lax.map(square, rows, batch_size=64), 0)
    # Exact for priors that treat each parameter by itself: v ⊙ Hv is then the diagonal.
    diagonal = fisher + jnp.abs(signs * hessian_product(prior, signs))
    root = jnp.maximum(diagonal, 1e-6 * jnp.max(diagonal)) ** -0.5

    def power_step(_, pair):
        vector = pair[0] / jnp.linalg.norm(pair[0])
        product = root * hessian_product(potential, root * vector)
        return product, jnp.linalg.norm(product)

    _, largest = lax.fori_loop(0, _NUM_POWER_STEPS, power_step, (signs, jnp.zeros((), x.dtype)))
    return root / jnp.sqrt(jnp.maximum(largest, 1.0))
