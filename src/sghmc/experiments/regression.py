"""A linear regression whose posterior is known exactly: rows made on the spot, a Gaussian answer.

    y = xᵀβ + N(0, 1),   β ~ N(0, PRIOR_SD²)
    β | data ~ N(m, Λ⁻¹),   Λ = XᵀX + I/PRIOR_SD²,   m = Λ⁻¹Xᵀy

Neighbouring columns are correlated and each has a unit of its own: the posterior is as badly scaled
as real tables make it.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sghmc.posterior.posterior import Posterior

PRIOR_SD = 100.0
_DECADES = 1.0
"""Units of columns range from a tenth to ten."""
_CHUNK = 1 << 16
"""Rows that are brought to double precision at a time."""


class Gaussian(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def correlation(self) -> np.ndarray:
        return self.covariance / np.outer(self.sd, self.sd)


class Regression(NamedTuple):
    x: np.ndarray
    y: np.ndarray

    def posterior(self) -> Posterior:
        def log_likelihood(coefficients, row):
            x, y = row
            return -0.5 * (y - x @ coefficients) ** 2

        def log_prior(coefficients):
            return -0.5 * jnp.sum(coefficients**2) / PRIOR_SD**2

        return Posterior(log_likelihood, log_prior, (self.x, self.y))

    def answer(self) -> Gaussian:
        """The posterior, in double precision."""
        width = self.x.shape[1]
        precision, vector = np.eye(width) / PRIOR_SD**2, np.zeros(width)
        for first in range(0, len(self.x), _CHUNK):
            rows = self.x[first : first + _CHUNK].astype(np.float64)
            precision += rows.T @ rows
            vector += rows.T @ self.y[first : first + _CHUNK]
        covariance = np.linalg.inv(precision)
        return Gaussian(covariance @ vector, (covariance + covariance.T) / 2)


def make_regression(num_rows: int, num_columns: int, correlation: float, seed: int) -> Regression:
    """An intercept and columns of which each is correlated with the one before."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((num_columns, num_rows), np.float32)
    rest = np.float32(np.sqrt(1 - correlation**2))
    for i in range(2, num_columns):
        x[i] = np.float32(correlation) * x[i - 1] + rest * x[i]
    x[0] = 1
    units = 10 ** generator.uniform(-_DECADES, _DECADES, num_columns)
    units[0] = 1
    coefficients = generator.standard_normal(num_columns) / units
    x = np.ascontiguousarray((x * units.astype(np.float32)[:, None]).T)
    noise = generator.standard_normal(num_rows, np.float32)
    return Regression(x, x @ coefficients.astype(np.float32) + noise)
