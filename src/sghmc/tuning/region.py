"""Where a posterior lies: a center and a factor L, with θ ≈ center + L z and z of spread 1."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree
from sghmc.posterior import mode
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.potential import Potential
from sghmc.posterior.target import Target
from sghmc.types import PyTree

_FLAT = 1e-9
"""Curvature, relative to the other terms of the same parameter, below which it is rounding."""
_REACH, _EXPECTED_RISE = 2.0, 2.0
"""How far from the mode, in standard deviations, the potential is looked at; a Gaussian's rise."""
_LEAST_RISE = 0.1
_FAR = 1e6
_NUM_ROWS = 2_048
_NUM_POWER_STEPS = 20
_NUM_CONTRACTIONS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """`factor` is L, a (d, d) matrix, or its diagonal where the parameters are many.

    `distance` is that of the mode found from the true one, and `is_gaussian` says that there is
    one: a peak with a curvature, not just where a search ended.
    """

    like: PyTree
    center: np.ndarray
    factor: np.ndarray
    distance: float
    is_gaussian: bool

    @property
    def is_dense(self) -> bool:
        return self.factor.ndim == 2

    @property
    def center_tree(self) -> PyTree:
        return self.params(self.center)

    @property
    def factor_tree(self) -> PyTree:
        """L as `Whitened` takes it."""
        return self.factor if self.is_dense else self.params(self.factor)

    def params(self, vector: np.ndarray) -> PyTree:
        """A raveled vector as parameters; any leading axes stay."""
        leading = vector.shape[:-1]
        leaves, treedef = jax.tree.flatten(self.like)
        ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
        parts = np.split(vector, ends[:-1], axis=-1)
        shaped = [
            np.asarray(part, leaf.dtype).reshape((*leading, *leaf.shape))
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, shaped)

    def outward(self, z: np.ndarray) -> np.ndarray:
        """θ of each row of z."""
        return self.center + (z @ self.factor.T if self.is_dense else z * self.factor)

    def inward(self, theta: np.ndarray) -> np.ndarray:
        """z of each row of θ."""
        away = theta - self.center
        return np.linalg.solve(self.factor, away.T).T if self.is_dense else away / self.factor

    def whitened(self, matrix: np.ndarray) -> np.ndarray:
        """Lᵀ A L, or its diagonal, of a matrix or a diagonal over θ."""
        if self.is_dense:
            return self.factor.T @ matrix @ self.factor
        return self.factor**2 * matrix

    def refined(self, mean: np.ndarray, covariance: np.ndarray) -> "Region":
        """The region by the mean and covariance (or variances) of z in a pilot run."""
        if not self.is_dense:
            factor = self.factor * np.sqrt(covariance)
        else:
            factor = self.factor @ np.linalg.cholesky(covariance)
        return dataclasses.replace(self, center=self.outward(mean[None])[0], factor=factor)


def find_region(target: Target, start: PyTree) -> Region:
    """The mode near `start` and the curvature there; `ModeError` where the posterior is flat.

    Where no peak is found, the center is where the search ended, and the factor only a first guess
    for pilot runs to refine.
    """
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), start)
    found = mode.find_mode(target, start)
    center, origin = (
        np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(place)])
        for place in (found.position, start)
    )
    if np.abs(center).max() > _FAR * (1 + np.abs(origin).max()) and not found.is_peak:
        raise mode.ModeError(
            f"The search for the mode ran away, to {np.abs(center).max():.2g}: the posterior has "
            f"no mode that can be reached from init. Look for a density without bound, or a "
            f"parameter without a prior."
        )
    if found.hessian is None:
        factor = _diagonal_factor(target, found.position)
        return Region(like, center, factor, found.distance, False)
    factor, is_peak = _dense_factor(found.hessian, like)
    region = Region(like, center, factor, found.distance, is_peak and found.is_peak)
    if region.is_gaussian:
        _check_rises(target, region, found.potential)
    return region


def draw_starts(target: Target, region: Region, rng, count: int) -> np.ndarray:
    """Draws of N(center, L Lᵀ), drawn in where the potential is far above a Gaussian's."""
    size = len(region.center)
    z = rng.normal(size=(count, size))
    lowest = mode.potentials(target, region.like, region.center[None])[0]
    for _ in range(_NUM_CONTRACTIONS):
        rises = mode.potentials(target, region.like, region.outward(z)) - lowest
        expected = np.sum(z**2, axis=1) / 2
        is_far = ~(rises < 1.5 * expected + 5)
        if not is_far.any():
            break
        z[is_far] /= 2
    return region.outward(z)


def _dense_factor(hessian: np.ndarray, like: PyTree) -> tuple[np.ndarray, bool]:
    """L with L Lᵀ = H⁻¹, and whether H is positive definite; if not, by its absolute values."""
    scale = np.sqrt(np.maximum(np.abs(hessian.diagonal()), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
    flattest = np.argmin(np.abs(values))
    if abs(values[flattest]) < _FLAT * np.abs(values).max():
        raise mode.ModeError(_flat(like, vectors[:, flattest] / scale))
    is_positive = bool(values[0] > 0)
    return (vectors / np.sqrt(np.abs(values))) / scale[:, None], is_positive


def _check_rises(target: Target, region: Region, lowest: float) -> None:
    """A proper posterior falls off in every direction, as far as two standard deviations tell."""
    axes = _REACH * region.factor.T
    points = np.concatenate([region.center + axes, region.center - axes])
    rises = mode.potentials(target, region.like, points) - lowest
    worst = int(np.argmin(np.where(np.isnan(rises), np.inf, rises)))
    if rises[worst] < _LEAST_RISE * _EXPECTED_RISE:
        raise mode.ModeError(_flat(region.like, axes[worst % len(axes)]))


def _flat(like: PyTree, direction: np.ndarray) -> str:
    largest = np.argsort(-np.abs(direction))[:3]
    weights = [
        f"{direction[i] / np.abs(direction).max():+.2g} {tree.entry_name(like, int(i))}"
        for i in largest
        if abs(direction[i]) > 0.05 * np.abs(direction).max()
    ]
    return (
        f"The posterior does not fall off along {', '.join(weights)}: it is flat or improper there "
        f"(collinear columns, classes that a plane separates, a parameter that the data do not "
        f"see). Give these parameters a proper prior, or leave redundant ones out."
    )


def _diagonal_factor(target: Target, position: PyTree) -> np.ndarray:
    """L = (λD)^{−½}, D the diagonal of the curvature H, λ the top eigenvalue of D^{−½}HD^{−½}.

    So no direction has a frequency above 1. D is the empirical Fisher information plus the
    curvature of the prior.
    """
    rows = None
    if isinstance(target, Posterior):
        count = int(target.num_examples)
        order = np.random.default_rng(0).permutation(count)[:_NUM_ROWS]
        rows = target.rows(jnp.asarray(order))
    return np.asarray(_scaled_curvature(target, position, rows), np.float64)


@eqx.filter_jit
def _scaled_curvature(target, position, rows):
    x = tree.ravel(position)
    signs = jax.random.rademacher(jax.random.key(0), x.shape, x.dtype)

    def slope(potential):
        return lambda x: tree.ravel(jax.grad(potential)(tree.unravel(x, position)))

    def bend(potential, direction):
        return jax.jvp(slope(potential), (x,), (direction,))[1]

    if isinstance(target, Potential):
        potential = prior = target.potential
        fisher = jnp.zeros_like(x)
    else:

        def potential(params):
            return target.estimate(params, rows)

        def prior(params):
            return -target.log_prior_at(params)

        def square(example):
            row = jax.tree.map(lambda leaf: leaf[None], example)
            return slope(lambda params: target.log_likelihood_sum(params, row))(x) ** 2

        fisher = target.num_examples * jnp.mean(lax.map(square, rows, batch_size=64), 0)
    # Exact for priors that bend each parameter by itself: v ⊙ Hv is then the diagonal.
    diagonal = fisher + jnp.abs(signs * bend(prior, signs))
    root = jnp.maximum(diagonal, 1e-6 * jnp.max(diagonal)) ** -0.5

    def power(_, pair):
        vector = pair[0] / jnp.linalg.norm(pair[0])
        product = root * bend(potential, root * vector)
        return product, jnp.linalg.norm(product)

    _, largest = lax.fori_loop(0, _NUM_POWER_STEPS, power, (signs, jnp.zeros((), x.dtype)))
    return root / jnp.sqrt(jnp.maximum(largest, 1.0))
