"""The law of new observations: a mixture over draws, of Gaussians or Student's t."""

from typing import NamedTuple

import numpy as np
from scipy import special

_NUM_BISECTIONS = 40
_HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


class Uncertainty(NamedTuple):
    """Standard deviations of a new observation at each row.

    | field | meaning |
    | --- | --- |
    | `std` | of the observation: std² = epistemic² + aleatoric² |
    | `epistemic` | of its mean over draws: more rows make it smaller |
    | `aleatoric` | of the noise: more rows do not |
    """

    std: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray


class Predictive(NamedTuple):
    """Of some rows: location (draw, row), scale (draw, row) or (draw, 1), degrees (draw, 1).

    `degrees` of infinity: Gaussian.
    """

    location: np.ndarray
    scale: np.ndarray
    degrees: np.ndarray

    def mean(self) -> np.ndarray:
        return self.location.mean(0)

    def uncertainty(self) -> Uncertainty:
        stretch = np.where(np.isinf(self.degrees), 1, 1 / (1 - 2 / self.degrees))
        noise = np.broadcast_to(self.scale**2 * stretch, self.location.shape).mean(0)
        spread = self.location.var(0)
        return Uncertainty(np.sqrt(spread + noise), np.sqrt(spread), np.sqrt(noise))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        errors = (y[None] - self.location) / self.scale
        if np.isinf(self.degrees).all():
            logs = -0.5 * errors**2 - _HALF_LOG_TAU
        else:
            v = self.degrees
            logs = -(v + 1) / 2 * np.log1p(errors**2 / v) - 0.5 * np.log(v * np.pi)
            logs = logs + special.gammaln((v + 1) / 2) - special.gammaln(v / 2)
        return special.logsumexp(logs - np.log(self.scale), axis=0) - np.log(len(errors))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """P(observation ≤ y) at each row."""
        errors = (y[None] - self.location) / self.scale
        if np.isinf(self.degrees).all():
            return special.ndtr(errors).mean(0)
        return special.stdtr(self.degrees, errors).mean(0)

    def quantile(self, level: float) -> np.ndarray:
        """Where the cdf is `level`, by bisection between the draws' own quantiles."""
        if np.isinf(self.degrees).all():
            reach = special.ndtri(level)
        else:
            reach = special.stdtrit(self.degrees, level)
        own = self.location + self.scale * reach
        low, high = own.min(0), own.max(0)
        for _ in range(_NUM_BISECTIONS):
            middle = 0.5 * (low + high)
            is_below = self.cdf(middle) < level
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return 0.5 * (low + high)

    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Observations (sample, row), each row and sample from a draw of its own."""
        num_draws, num_rows = self.location.shape
        drawn = generator.integers(0, num_draws, (count, num_rows))
        rows = np.arange(num_rows)[None]
        noise = generator.standard_normal(drawn.shape)
        degrees = np.broadcast_to(self.degrees, self.location.shape)[drawn, rows]
        is_student = np.isfinite(degrees)
        safe = np.where(is_student, degrees, 1.0)
        noise = np.where(is_student, noise / np.sqrt(generator.chisquare(safe) / safe), noise)
        scale = np.broadcast_to(self.scale, self.location.shape)[drawn, rows]
        return self.location[drawn, rows] + scale * noise
