"""The affine steps after which a sampler repeats, and the law that they have."""

from collections.abc import Sequence

import numpy as np

from sghmc.core.double import double_precision
from sghmc.samplers.base import Sampler
from sghmc.theory.affine import AffineMap, affine_map

LARGEST_RADIUS = 1 + 1e-9
"""Up to here a spectral radius above 1 is rounding."""
_NEGLIGIBLE = 1e-17
"""A term of a sum, relative to the sum, that double precision cannot see."""


def held(sampler: Sampler, t: int) -> Sampler:
    """The sampler with every schedule held at its value at step t."""
    with double_precision():
        values = {n: float(np.asarray(value(t))) for n, value in sampler.schedules.items()}
    return sampler.with_settings(**values)


def cycle(sampler: Sampler, precision: np.ndarray, gradient_noise) -> list[AffineMap]:
    """The steps after which the dynamics repeat: one, or all from one resampling to the next."""
    period = sampler.dynamics.resample_every
    if period is None:
        return [affine_map(sampler, precision, gradient_noise)]
    resampling, plain = (
        affine_map(sampler, precision, gradient_noise, t=t) for t in (period, 2 * period - 1)
    )
    return [resampling] + [plain] * (period - 1)


def spectral_radius(steps: Sequence[AffineMap]) -> float:
    return float(np.max(np.abs(np.linalg.eigvals(_compose(steps).transition))))


def _compose(steps: Sequence[AffineMap]) -> AffineMap:
    """All the steps as one map."""
    whole = steps[0]
    for step in steps[1:]:
        noise = np.concatenate([step.transition @ whole.noise, step.noise], axis=1)
        whole = AffineMap(step.transition @ whole.transition, noise, step.view)
    return whole


def cycle_covariances(steps: Sequence[AffineMap]) -> list[np.ndarray]:
    """The stationary covariance before each step of the cycle."""
    covariances = [_solve_lyapunov(_compose(steps))]
    for step in steps[:-1]:
        covariances.append(propagate(step, covariances[-1]))
    return covariances


def propagate(step: AffineMap, covariance: np.ndarray) -> np.ndarray:
    """The covariance after a step."""
    return step.transition @ covariance @ step.transition.T + step.noise @ step.noise.T


def _solve_lyapunov(step: AffineMap) -> np.ndarray:
    """S = F S Fᵀ + L Lᵀ by doubling, S_{2k} = S_k + F^k S_k (F^k)ᵀ: accurate up to instability."""
    transition, covariance = step.transition, step.noise @ step.noise.T
    increment = covariance
    while np.max(np.abs(increment)) > _NEGLIGIBLE * np.max(np.abs(covariance)):
        increment = transition @ covariance @ transition.T
        covariance = covariance + increment
        transition = transition @ transition
    return covariance


def mean_lag_sum(steps: Sequence[AffineMap], covariances: Sequence[np.ndarray]) -> np.ndarray:
    """Σ_{s≥1} Cov(z_{t+s}, z_t), averaged over the steps t of the cycle.

    With R_t the sum of the transitions from t to all later times, R_t = (I + R_{t+1})F_t.
    """
    identity = np.eye(len(steps[0].transition))
    cycle, within = identity, 0 * identity
    for step in steps:
        cycle = step.transition @ cycle
        within = within + cycle
    later = within @ np.linalg.inv(identity - cycle)
    total = 0 * identity
    for step, covariance in zip(steps[::-1], covariances[::-1], strict=True):
        later = (identity + later) @ step.transition
        total = total + later @ covariance
    return total / len(steps)
