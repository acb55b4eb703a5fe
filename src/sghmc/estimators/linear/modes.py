"""Modes of linear models and their curvature, with the precisions at typical values."""

import numpy as np

from sghmc.estimators.linear.whitened import (
    INTERCEPT_PRECISION,
    NOISE_RATE,
    NOISE_SHAPE,
    PRECISION_SHAPE,
    Mode,
)
from sghmc.estimators.rows import Rows

_NUM_ROUNDS = 30
_NUM_NEWTON_STEPS = 50
_NUM_HALVINGS = 30
_CLOSE = 1e-3
"""How near the mode, in standard deviations, and how near its precisions, relative."""


def linear_mode(sums: dict[str, np.ndarray], is_weight: np.ndarray, rate: float) -> Mode:
    """The mode given the noise and prior precisions that expectation maximization finds."""
    noise, precision = 1.0, 1.0
    for _ in range(_NUM_ROUNDS):
        curvature = noise * sums["gram"] + np.diag(_prior(precision, is_weight))
        covariance = np.linalg.inv(curvature)
        center = noise * covariance @ sums["moment"]
        errors = sums["square"] - 2 * sums["moment"] @ center + center @ sums["gram"] @ center
        errors = max(errors, 0.0) + np.sum(sums["gram"] * covariance)
        old = noise, precision
        noise = float((NOISE_SHAPE + sums["count"] / 2) / (NOISE_RATE + errors / 2))
        precision = _typical_precision(center, covariance, is_weight, rate)
        if np.allclose(old, (noise, precision), rtol=_CLOSE):
            break
    curvature = noise * sums["gram"] + np.diag(_prior(precision, is_weight))
    center = np.linalg.solve(curvature, noise * sums["moment"])
    return Mode(center, curvature, is_weight, precision, rate, noise)


def logistic_mode(rows: Rows, num_logits: int, is_weight: np.ndarray, rate: float) -> Mode:
    """Newton's method at a precision, a typical precision at the mode, and so on."""
    target = _Logistic(rows, num_logits)
    beta, precision = np.zeros(num_logits * rows.x.shape[1]), 1.0
    for _ in range(_NUM_ROUNDS):
        prior = _prior(precision, is_weight)
        beta, curvature = _newton(target, beta, prior)
        old = precision
        precision = _typical_precision(beta, np.linalg.inv(curvature), is_weight, rate)
        if np.isclose(old, precision, rtol=_CLOSE):
            break
    beta, curvature = _newton(target, beta, _prior(precision, is_weight))
    return Mode(beta, curvature, is_weight, precision, rate)


def _prior(precision: float, is_weight: np.ndarray) -> np.ndarray:
    return np.where(is_weight > 0, precision, INTERCEPT_PRECISION)


def _typical_precision(center, covariance, is_weight, rate: float) -> float:
    squares = np.sum(is_weight * (center**2 + np.diag(covariance)))
    return float((PRECISION_SHAPE + is_weight.sum() / 2) / (rate + squares / 2))


class _Logistic:
    """The log-likelihood of a (multinomial) logistic regression, in double precision."""

    def __init__(self, rows: Rows, num_logits: int):
        self.rows, self.num_logits = rows, num_logits
        self.labels = rows.y[:, None] if num_logits == 1 else np.eye(num_logits)[rows.y.astype(int)]

    def probabilities(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(class | x) of the classes that have a logit, and log-likelihoods of the rows."""
        logits = self.rows.x @ beta.reshape(self.num_logits, -1).T
        if self.num_logits == 1:
            logits = np.column_stack([np.zeros(len(logits)), logits])
        logits = logits - logits.max(1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        chosen = logs[np.arange(len(logs)), self.rows.y.astype(int)]
        return np.exp(logs[:, -self.num_logits :]), chosen

    def potential(self, beta: np.ndarray) -> float:
        return -float(self.rows.weight @ self.probabilities(beta)[1])

    def slope(self, beta: np.ndarray) -> np.ndarray:
        errors = self.rows.weight[:, None] * (self.probabilities(beta)[0] - self.labels)
        return (errors.T @ self.rows.x).ravel()

    def curvature(self, beta: np.ndarray) -> np.ndarray:
        p, x = self.probabilities(beta)[0], self.rows.x
        size, width = self.num_logits, x.shape[1]
        result = np.empty((size, width, size, width))
        for k in range(size):
            for m in range(k, size):
                share = self.rows.weight * p[:, k] * ((k == m) - p[:, m])
                result[k, :, m] = (x * share[:, None]).T @ x
                result[m, :, k] = result[k, :, m].T
        return result.reshape(size * width, size * width)


def _newton(target: _Logistic, beta: np.ndarray, prior: np.ndarray):
    """Damped Newton steps until the next one would be a small part of a standard deviation."""

    def potential(beta):
        return target.potential(beta) + 0.5 * prior @ beta**2

    distance = np.inf
    for _ in range(_NUM_NEWTON_STEPS):
        curvature = target.curvature(beta) + np.diag(prior)
        slope = target.slope(beta) + prior * beta
        step = np.linalg.solve(curvature, slope)
        distance = float(np.sqrt(slope @ step))
        if distance < _CLOSE:
            return beta - step, curvature
        old, size = potential(beta), 1.0
        for _ in range(_NUM_HALVINGS):
            if potential(beta - size * step) < old:
                break
            size /= 2
        beta = beta - size * step
    raise ValueError(
        f"Newton's method is still {distance:.2g} standard deviations off the mode "
        f"after {_NUM_NEWTON_STEPS} steps: look for inputs of extreme size."
    )
