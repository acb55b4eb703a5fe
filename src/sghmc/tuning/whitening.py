"""Coordinates z with θ = center + L z, in which the posterior has standard deviation 1.

`find_whitening` takes them from the mode and the curvature there; pilot runs refine them.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sghmc.core import tree
from sghmc.core.checks import MAX_DENSE_PARAMETERS
from sghmc.core.matrices import LowRankFactor
from sghmc.posterior import mode
from sghmc.posterior.host_potential import MAX_QUICK_ROWS, HostPotential, as_params, as_vector
from sghmc.results.patterns import NON_CENTRE
from sghmc.samplers import Sampler
from sghmc.samplers.wrappers import Whitened
from sghmc.tuning.low_rank import (
    NUM_CURVATURE_ROWS,
    descend,
    diagonal_factor,
    fit_curvature,
    fit_spikes,
)
from sghmc.tuning.other_modes import is_spike
from sghmc.types import PyTree

# A curvature below this share of the other terms of the same parameter is rounding.
_FLAT_CURVATURE = 1e-9
# Where the Hessian is not positive definite: the smallest |eigenvalue| of the scaled Hessian that
# is taken for a scale.
_MIN_SCALED_EIGENVALUE = 0.1
# Distance from the mode, in standard deviations, at which the potential must have risen. A Gaussian
# rises by ½·2² = 2; less than a tenth of that counts as flat.
_CHECKED_DISTANCE = 2.0
_MIN_RISE = 0.1 * 2.0
# A search that ends beyond this multiple of where it started has run away.
_MAX_COORDINATE = 1e6
# A search without a peak is followed farther along its own way by these multiples of its length.
_FARTHER = (1.0, 10.0, 100.0, 1e3)
# Lengths tried as the scale of a parameter without curvature.
_KINK_LENGTHS = 10.0 ** np.arange(-8, 9)
# With more parameters than this, and without a peak, L is diagonal: a network is like that.
_MAX_DENSE_WITHOUT_PEAK = 100
# Draws of a pilot run at which gradients tell low ranks.
_NUM_SLOPES = 128
# Of fewer rows than so many for each parameter a curvature has no inverse to speak of.
_ROWS_PER_PARAMETER = 10
# Where the mean square of eigenvalues is so many times their squared mean, no low rank is left out:
# up to some parameters the whole Hessian is computed.
_MAX_UNEVENNESS = 2.0
_MAX_START_CONTRACTIONS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Whitening:
    """Center and factor L of the coordinates z = L⁻¹(θ − center), for raveled parameters θ.

    | field | meaning |
    | --- | --- |
    | `like` | shapes and dtypes of the parameters |
    | `factor` | L: a (d, d) matrix or, of many parameters, a diagonal with a low rank or without |
    | `distance` | of the center from the mode, in standard deviations |
    | `is_gaussian` | the center is a peak with a curvature, not just where a search ended |
    | `is_local` | center and factor are still those of mode and curvature, not of draws |
    | `funnel` | advice, if the search from the start ended in a spike without mass |
    """

    like: PyTree
    center: np.ndarray
    factor: np.ndarray | LowRankFactor
    distance: float
    is_gaussian: bool
    is_local: bool = False
    funnel: str = ""

    @property
    def is_dense(self) -> bool:
        return isinstance(self.factor, np.ndarray) and self.factor.ndim == 2

    def wrap(self, sampler: Sampler) -> Whitened:
        """Return a sampler that runs `sampler` in these coordinates."""
        factor: PyTree = self.factor
        if isinstance(self.factor, np.ndarray) and not self.is_dense:
            factor = self.params(self.factor)
        return Whitened(sampler, self.params(self.center), factor)

    def params(self, vector: np.ndarray) -> PyTree:
        """Return a raveled vector as parameters; any leading axes stay."""
        return as_params(vector, self.like)

    def to_position(self, z: np.ndarray) -> np.ndarray:
        """Return θ of each row of z."""
        if isinstance(self.factor, LowRankFactor):
            return self.center + self.factor.rows(z)
        return self.center + (z @ self.factor.T if self.is_dense else z * self.factor)

    def to_z(self, theta: np.ndarray) -> np.ndarray:
        """Return z of each row of θ."""
        away = theta - self.center
        if isinstance(self.factor, LowRankFactor):
            return self.factor.inverse().rows(away)
        return np.linalg.solve(self.factor, away.T).T if self.is_dense else away / self.factor

    def whitened_noise(self, covariance: np.ndarray) -> np.ndarray:
        """Return LᵀVL, the covariance of gradients in z, from V.

        If L is not dense, V is a diagonal, and the result has as many entries with the right mean.
        """
        if isinstance(self.factor, LowRankFactor):
            return self.factor.row_squares * covariance
        if self.is_dense:
            return self.factor.T @ covariance @ self.factor
        return self.factor**2 * covariance

    def fit(
        self, draws: np.ndarray, slopes: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> "WhiteningFit":
        """Return mean and covariance of z in draws of raveled parameters, axes (…, parameter).

        The covariance is shrunk towards 1 by as much as so few draws may be off. A factor of low
        rank is fitted by `slopes`, the gradients at some of the draws, too.
        """
        draws = draws.reshape(-1, draws.shape[-1])
        z = self.to_z(draws)
        count, size = z.shape
        if self.is_dense:
            covariance = np.cov(z.T).reshape(size, size)
            shrunk = (count * covariance + size * np.eye(size)) / (count + size)
            return WhiteningFit(z.mean(0), shrunk, 2 * math.sqrt(2 * size / count))
        variance, spikes = (z.var(0) * count + 10) / (count + 10), None
        if slopes is not None and isinstance(self.factor, LowRankFactor):
            chosen = np.unique(np.linspace(0, count - 1, _NUM_SLOPES).astype(int))
            some, w = z[chosen], self.factor.transpose().rows(slopes(draws[chosen]))
            variance = np.sqrt((some.var(0) * len(some) + 10) / (w.var(0) * len(some) + 10))
            root = np.sqrt(variance)
            spikes = fit_spikes((some - some.mean(0)) / root, (w - w.mean(0)) * root)
        return WhiteningFit(z.mean(0), variance, min(1.0, 5 * math.sqrt(2 / count)), spikes)

    def refined(self, fit: "WhiteningFit") -> "Whitening":
        """Return the coordinates in which z of a pilot run would have had mean 0 and covariance 1.

        θ = c + Lz with z ~ (m, S) has mean c + Lm and covariance LSLᵀ.
        """
        if isinstance(self.factor, LowRankFactor):
            basis, values = fit.spikes or (np.zeros((len(fit.mean), 0)), np.ones(0))
            factor = self.factor.stretched(np.sqrt(fit.covariance), basis, np.sqrt(values))
        elif self.is_dense:
            factor = self.factor @ np.linalg.cholesky(fit.covariance)
        else:
            factor = self.factor * np.sqrt(fit.covariance)
        center = self.to_position(fit.mean[None])[0]
        return dataclasses.replace(self, center=center, factor=factor, is_local=False)


class WhiteningFit(NamedTuple):
    """Mean and covariance (or variances) of z in draws; `slack` bounds their Monte Carlo error.

    `spikes` are directions, as columns, with variances of their own beside those of parameters.
    """

    mean: np.ndarray
    covariance: np.ndarray
    slack: float
    spikes: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def extremes(self) -> tuple[float, float]:
        """Return the smallest and the largest variance of any direction."""
        is_dense = self.covariance.ndim == 2
        values = np.linalg.eigvalsh(self.covariance) if is_dense else self.covariance
        if self.spikes is not None:
            values = np.append(values, self.spikes[1])
        return float(values.min()), float(values.max())

    @property
    def is_good(self) -> bool:
        """Whether the draws have mean 0 and variance 1, as far as a pilot run can tell."""
        smallest, largest = self.extremes
        is_centered = np.abs(self.mean).max() < 0.35 + self.slack
        return bool(is_centered and smallest > 0.6 - self.slack and largest < 1.6 + self.slack)

    @property
    def is_far(self) -> bool:
        """Whether the draws are still moving to the posterior, so that a long run is wasted."""
        return bool(np.abs(self.mean).max() > 1.5 + self.slack or self.extremes[1] > 4)


def find_whitening(
    potential: HostPotential, start: PyTree, goes_on: Callable[[], bool] = lambda: True
) -> Whitening:
    """Search the mode near `start`; raise `ModeError` where the posterior is flat or improper.

    Without a peak the center is where the search ended, and the factor only a first guess for pilot
    runs to refine. With more than `mode.DENSE_LIMIT` parameters L-BFGS on some rows looks for a
    good place, and the factor has a low rank. Searches end when `goes_on()` is False.
    """
    like, origin = potential.like, as_vector(start)
    if len(origin) > mode.DENSE_LIMIT:
        return _whitening_of_many(potential, origin, goes_on)
    found = mode.mode_of(potential, start, goes_on)
    center = as_vector(found.position)
    assert found.hessian is not None
    hessian = found.hessian
    funnel = ""
    if is_spike(potential, origin, center, hessian):
        first = potential.hessian(origin)
        scale = int(np.argmax(np.abs(center - origin) * np.sqrt(np.abs(first.diagonal()))))
        funnel = (
            f"the density rises without end, or nearly so, along {tree.entry_name(like, scale)}: "
            f"{NON_CENTRE}"
        )
        center, hessian = origin, first
    if not found.is_found:
        if not funnel:
            _check_end(potential, origin, center, found.potential)
        if len(origin) > _MAX_DENSE_WITHOUT_PEAK:
            factor = diagonal_factor(potential, center)
            return Whitening(like, center, factor, math.inf, False)
        hessian = _with_kinks(potential, center, hessian)
    factor, is_peak = _dense_factor(hessian, like)
    is_gaussian = is_peak and found.is_found and not funnel
    whitening = Whitening(like, center, factor, found.distance, is_gaussian, is_gaussian, funnel)
    if is_gaussian:
        _check_rises(potential, whitening, origin)
    return whitening


def _whitening_of_many(
    potential: HostPotential, origin: np.ndarray, goes_on: Callable[[], bool]
) -> Whitening:
    """Return coordinates for too many parameters for Newton's method.

    With too few rows for a curvature, as far from a mode, they are a first guess for pilot runs.
    """
    size = len(origin)
    num_rows = max(NUM_CURVATURE_ROWS, _ROWS_PER_PARAMETER * size)
    part = potential.subsampled(num_rows)
    center, _ = part.descend(origin, goes_on)
    found = fit_curvature(part, center, diagonal_factor(potential, center))
    factor, is_convex = found.factor, found.is_convex
    if found.unevenness > _MAX_UNEVENNESS and size <= MAX_DENSE_PARAMETERS:
        factor, is_convex = _dense_factor(part.hessian(center), potential.like)
    center, value, distance = descend(potential, factor, center, goes_on)
    _check_end(potential, origin, center, value)
    is_gaussian = is_convex and distance < mode.MAX_MODE_DISTANCE
    return Whitening(potential.like, center, factor, distance, is_gaussian, is_gaussian)


def draw_starts(
    potential: HostPotential, whitening: Whitening, rng: np.random.Generator, count: int
) -> np.ndarray:
    """Draw from N(center, LLᵀ), and halve z while the potential is far above a Gaussian's."""
    z = rng.normal(size=(count, len(whitening.center)))
    is_far = np.ones(count, bool)
    for _ in range(_MAX_START_CONTRACTIONS):
        rises = _rises(potential, whitening.center, whitening.to_position(z))
        expected = np.sum(z**2, axis=1) / 2
        is_far = ~(rises < 1.5 * expected + 5)
        if not is_far.any():
            break
        z[is_far] /= 2
    else:  # a wall right beside the center
        z[is_far] = 0
    return whitening.to_position(z)


def gaussian_misfit(potential: HostPotential, whitening: Whitening, draws: np.ndarray) -> float:
    """Return the standard deviation over draws of U minus the potential of N(center, LLᵀ)."""
    rises = _rises(potential, whitening.center, draws)
    return float(np.std(rises - np.sum(whitening.to_z(draws) ** 2, axis=1) / 2))


def _rises(potential: HostPotential, center: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return how far the potential at each point is above that at the center."""
    # Evaluated together: one pass over the data takes several points.
    values = potential.potentials(np.concatenate([center[None], points]))
    return values[1:] - values[0]


def _dense_factor(hessian: np.ndarray, like: PyTree) -> tuple[np.ndarray, bool]:
    """Return L with LLᵀ = H⁻¹, and whether H is positive definite.

    If it is not, L is a first guess from the absolute eigenvalues.
    """
    # Scaled to a unit diagonal, so that units of parameters do not matter.
    scale = np.sqrt(np.maximum(np.abs(hessian.diagonal()), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
    flattest = np.argmin(np.abs(values))
    if abs(values[flattest]) <= _FLAT_CURVATURE * np.abs(values).max():
        raise mode.ModeError(_flat_message(like, vectors[:, flattest] / scale))
    is_positive = bool(values[0] > 0)
    if not is_positive:
        values = np.maximum(np.abs(values), _MIN_SCALED_EIGENVALUE)
    return (vectors / np.sqrt(values)) / scale[:, None], is_positive


def _with_kinks(potential: HostPotential, center: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Return a Hessian with a scale for parameters that have no curvature, as |θ| has none.

    The scale is the length on which the potential rises by 1 on both sides, where there is one.
    """
    hessian = hessian.copy()
    for i in np.flatnonzero(hessian.diagonal() == 0):
        steps = np.outer(_KINK_LENGTHS, np.eye(center.size)[i])
        rises = _rises(potential, center, center + np.concatenate([steps, -steps]))
        is_higher = ~(rises.reshape(2, -1).min(0) < 1)  # NaN: beyond a wall
        if is_higher.any():
            hessian[i, i] = _KINK_LENGTHS[np.argmax(is_higher)] ** -2.0
    return hessian


def _check_rises(potential: HostPotential, whitening: Whitening, origin: np.ndarray) -> None:
    """Raise `ModeError` unless the potential rises in every direction of z.

    One direction is the way that the search has come: if a plane separates the classes, it falls on
    along it. Of many rows only some are evaluated.
    """
    way = whitening.to_z(origin[None])
    axes = np.concatenate([np.eye(way.size), way / max(np.linalg.norm(way), np.finfo(float).tiny)])
    axes = _CHECKED_DISTANCE * axes[np.any(axes, axis=1)] @ np.asarray(whitening.factor).T
    away, center = np.concatenate([axes, -axes]), whitening.center[None]
    values, slopes = potential.subsampled(MAX_QUICK_ROWS).evaluate(
        np.concatenate([center, center + away])
    )
    _, (slope,) = potential.evaluate(center)
    # Some rows have another slope at the center than all rows: what that adds is taken off.
    rises = values[1:] - values[0] - away @ (slopes[0] - slope)
    worst = int(np.argmin(np.where(np.isnan(rises), np.inf, rises)))
    if rises[worst] < _MIN_RISE:
        raise mode.ModeError(_flat_message(whitening.like, axes[worst % len(axes)]))


def _check_end(
    potential: HostPotential, origin: np.ndarray, center: np.ndarray, value: float
) -> None:
    """Raise `ModeError` if a search that found no peak was on its way to infinity.

    A proper density falls off beyond any distance, also farther along the way of the search.
    """
    size = np.abs(center).max()
    if not np.isfinite(value) or size > _MAX_COORDINATE * (1 + np.abs(origin).max()):
        raise mode.ModeError(
            f"The search for the mode ran away, to {size:.2g}: the posterior has no mode that can "
            f"be reached from init. Look for a density without bound, or a parameter without a "
            f"prior."
        )
    way = center - origin
    rises = _rises(potential, center, center + np.outer(_FARTHER, way))
    if np.any(way) and np.all(rises < _MIN_RISE):
        raise mode.ModeError(_flat_message(potential.like, way))


def _flat_message(like: PyTree, direction: np.ndarray) -> str:
    largest = np.abs(direction).max()
    weights = [
        f"{direction[i] / largest:+.2g} {tree.entry_name(like, int(i))}"
        for i in np.argsort(-np.abs(direction))[:3]
        if abs(direction[i]) > 0.05 * largest
    ]
    return (
        f"The posterior does not fall off along {', '.join(weights)}: it is flat or improper there "
        f"(collinear columns, classes that a plane separates, a parameter that the data do not "
        f"see). Give these parameters a proper prior, or leave redundant ones out."
    )
