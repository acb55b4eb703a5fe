"""Where a posterior lies: a center and a factor L, with θ ≈ center + L z and z of spread 1."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree
from sghmc.posterior import mode
from sghmc.posterior.potential import Potential
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.posterior.surface import FEW_ROWS, Surface, as_params, as_vector
from sghmc.posterior.target import Target
from sghmc.tuning.peaks import is_spike
from sghmc.types import PyTree

_FLAT = 1e-9
"""Curvature, relative to the other terms of the same parameter, below which it is rounding."""
_LEAST_BEND = 0.1
_REACH, _EXPECTED_RISE = 2.0, 2.0
"""How far from the mode, in standard deviations, the potential is looked at; a Gaussian's rise."""
_LEAST_RISE = 0.1
_FAR = 1e6
_FARTHER = (1.0, 10.0, 100.0, 1e3)
"""How far beyond its end the way of a search is followed, in its own lengths."""
_LENGTHS = 10.0 ** np.arange(-8, 9)
"""Scales that a parameter without curvature may have."""
_MANY = 100
"""From so many parameters on, and without a peak, whitening is by a diagonal: as in a network."""
_NUM_ROWS = 2_048
_NUM_POWER_STEPS = 20
_NUM_CONTRACTIONS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """`factor` is L, a (d, d) matrix, or its diagonal where the parameters are many.

    `distance` is that of the mode found from the true one, and `is_gaussian` says that there is
    one: a peak with a curvature, not just where a search ended. `is_local`: center and factor are
    still those of mode and curvature, not of draws.
    """

    like: PyTree
    center: np.ndarray
    factor: np.ndarray
    distance: float
    is_gaussian: bool
    is_local: bool = False

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
        return as_params(vector, self.like)

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

    def spread_of(self, draws: np.ndarray) -> "Spread":
        """Mean and covariance (or variances) of z in draws, axes (draw, raveled parameter).

        Both are drawn to those of the region, by as much as the draws may lack.
        """
        z = self.inward(draws)
        count, size = z.shape
        if not self.is_dense:
            variance = (z.var(0) * count + 10) / (count + 10)
            return Spread(z.mean(0), variance, min(1.0, 5 * math.sqrt(2 / count)))
        covariance = np.cov(z.T).reshape(size, size)
        shrunk = (count * covariance + size * np.eye(size)) / (count + size)
        return Spread(z.mean(0), shrunk, 2 * math.sqrt(2 * size / count))

    def refined(self, seen: "Spread") -> "Region":
        """The region by the mean and spread of z in a pilot run."""
        if not self.is_dense:
            factor = self.factor * np.sqrt(seen.covariance)
        else:
            factor = self.factor @ np.linalg.cholesky(seen.covariance)
        center = self.outward(seen.mean[None])[0]
        return dataclasses.replace(self, center=center, factor=factor, is_local=False)


class Spread(NamedTuple):
    """Mean and covariance (or variances) of z; `slack` is what their Monte Carlo error may be."""

    mean: np.ndarray
    covariance: np.ndarray
    slack: float

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest variance in any direction."""
        dense = self.covariance.ndim == 2
        values = np.linalg.eigvalsh(self.covariance) if dense else self.covariance
        return float(values.min()), float(values.max())

    @property
    def shift(self) -> float:
        return float(np.abs(self.mean).max())

    def fits(self) -> bool:
        """Whether mean and spread are those of the region, up to what pilots can tell."""
        least, most = self.extremes
        is_centered = self.shift < 0.35 + self.slack
        return is_centered and least > 0.6 - self.slack and most < 1.6 + self.slack

    def is_far(self) -> bool:
        """Whether the draws are still on their way: a longer look from here would be wasted."""
        return self.shift > 1.5 + self.slack or self.extremes[1] > 4


def find_region(
    surface: Surface, start: PyTree, goes_on: Callable[[], bool] = lambda: True
) -> Region:
    """The mode near `start` and the curvature there; `ModeError` where the posterior is flat.

    Where no peak is found, the center is where the search ended, and the factor only a first guess
    for pilot runs to refine. Where the parameters are many nothing but a good place is looked for,
    while `goes_on()`, by some of the rows.
    """
    like, origin = surface.like, as_vector(start)
    if len(origin) > mode.DENSE_LIMIT:
        center, value = surface.part(_NUM_ROWS).descend(origin, goes_on)
        _check_end(surface, origin, center, value)
        return _diagonal_region(surface, center)
    found = mode.mode_of(surface, start)
    center = as_vector(found.position)
    assert found.hessian is not None
    hessian = found.hessian
    if not found.is_peak:
        if is_spike(surface, origin, center, hessian):
            center, hessian = origin, surface.curvature(origin)
        else:
            _check_end(surface, origin, center, found.potential)
        if len(origin) > _MANY:
            return _diagonal_region(surface, center)
        hessian = _with_kinks(surface, center, hessian)
    factor, is_peak = _dense_factor(hessian, like)
    is_gaussian = is_peak and found.is_peak
    region = Region(like, center, factor, found.distance, is_gaussian, is_gaussian)
    if region.is_gaussian:
        _check_rises(surface, region, origin)
    return region


def draw_starts(surface: Surface, region: Region, rng, count: int) -> np.ndarray:
    """Draws of N(center, L Lᵀ), drawn in where the potential is far above a Gaussian's."""
    size = len(region.center)
    z = rng.normal(size=(count, size))
    for _ in range(_NUM_CONTRACTIONS):
        rises = _rises(surface, region.center, region.outward(z))
        expected = np.sum(z**2, axis=1) / 2
        is_far = ~(rises < 1.5 * expected + 5)
        if not is_far.any():
            break
        z[is_far] /= 2
    else:  # a wall right beside the center
        z[~np.isfinite(_rises(surface, region.center, region.outward(z)))] = 0
    return region.outward(z)


def excess(surface: Surface, region: Region, draws: np.ndarray) -> float:
    """How far the potential is from that of N(center, L Lᵀ): the standard deviation over draws."""
    rises = _rises(surface, region.center, draws)
    return float(np.std(rises - np.sum(region.inward(draws) ** 2, axis=1) / 2))


def _rises(surface: Surface, center: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The potential above that of the center: asked for together, where a pass has room for it."""
    values = surface.potentials(np.concatenate([center[None], points]))
    return values[1:] - values[0]


def _dense_factor(hessian: np.ndarray, like: PyTree) -> tuple[np.ndarray, bool]:
    """L with L Lᵀ = H⁻¹, and whether H is positive definite.

    If not, a first guess by its absolute values, none of them far below those of the diagonal.
    """
    scale = np.sqrt(np.maximum(np.abs(hessian.diagonal()), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
    flattest = np.argmin(np.abs(values))
    if abs(values[flattest]) <= _FLAT * np.abs(values).max():
        raise mode.ModeError(_flat(like, vectors[:, flattest] / scale))
    is_positive = bool(values[0] > 0)
    if not is_positive:  # no peak: a bend that happens to be none here is no scale
        values = np.maximum(np.abs(values), _LEAST_BEND)
    return (vectors / np.sqrt(values)) / scale[:, None], is_positive


def _with_kinks(surface: Surface, center: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """A Hessian with a scale for parameters that have no curvature, as |θ| has none.

    It is one over the length on which the potential rises by 1 to either side, where it does.
    """
    hessian = hessian.copy()
    for i in np.flatnonzero(hessian.diagonal() == 0):
        steps = np.outer(_LENGTHS, np.eye(center.size)[i])
        rises = _rises(surface, center, center + np.concatenate([steps, -steps]))
        is_higher = ~(rises.reshape(2, -1).min(0) < 1)  # NaN: beyond a wall
        if is_higher.any():
            hessian[i, i] = _LENGTHS[np.argmax(is_higher)] ** -2.0
    return hessian


def _check_rises(surface: Surface, region: Region, origin: np.ndarray) -> None:
    """A proper posterior falls off in every direction, as far as two standard deviations tell.

    One of them is the way that the search has come: where classes can be separated it goes on. Of
    many rows some are looked at; what their slope at the center differs from that of all by, and
    makes of a rise, is taken off.
    """
    way = region.inward(origin[None])
    axes = np.concatenate([np.eye(way.size), way / max(np.linalg.norm(way), np.finfo(float).tiny)])
    axes = _REACH * axes[np.any(axes, axis=1)] @ region.factor.T
    away, center = np.concatenate([axes, -axes]), region.center[None]
    values, slopes = surface.part(FEW_ROWS).looks(np.concatenate([center, center + away]))
    _, (slope,) = surface.looks(center)
    rises = values[1:] - values[0] - away @ (slopes[0] - slope)
    worst = int(np.argmin(np.where(np.isnan(rises), np.inf, rises)))
    if rises[worst] < _LEAST_RISE * _EXPECTED_RISE:
        raise mode.ModeError(_flat(region.like, axes[worst % len(axes)]))


def _check_end(surface: Surface, origin: np.ndarray, center: np.ndarray, value: float) -> None:
    """Refuse where a search that found no peak was on its way to infinity.

    A proper density falls off beyond any distance: farther along the search's way, too.
    """
    if not np.isfinite(value) or np.abs(center).max() > _FAR * (1 + np.abs(origin).max()):
        raise mode.ModeError(_ran_away(center))
    way = center - origin
    rises = _rises(surface, center, center + np.outer(_FARTHER, way))
    if np.any(way) and np.all(rises < _LEAST_RISE * _EXPECTED_RISE):
        raise mode.ModeError(_flat(surface.like, way))


def _diagonal_region(surface: Surface, center: np.ndarray) -> Region:
    factor = _diagonal_factor(surface.target, as_params(center, surface.like))
    return Region(surface.like, center, factor, math.inf, False)


def _ran_away(center: np.ndarray) -> str:
    return (
        f"The search for the mode ran away, to {np.abs(center).max():.2g}: the posterior has no "
        f"mode that can be reached from init. Look for a density without bound, or a parameter "
        f"without a prior."
    )


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
    if isinstance(target, RowPosterior):
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
