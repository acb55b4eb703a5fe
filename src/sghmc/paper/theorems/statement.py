"""A statement of a theorem as numbers, and whether it holds.

The Gaussian target and the setting of SGHMC on which laws are exact: U = ½ θᵀ PRECISION θ.
"""

from typing import Any, NamedTuple

import numpy as np

from sghmc import theory
from sghmc.paper import pages
from sghmc.samplers import Sampler
from sghmc.samplers.sghmc import SGHMC

ROUNDING = 1e-10
"""What double precision leaves of a difference that is 0."""


class Statement(NamedTuple):
    """`relation` is "=" (to within `tolerance`) or "<"."""

    words: str
    measured: float
    expected: float
    tolerance: float
    relation: str = "="

    def holds(self) -> bool:
        difference = self.measured - self.expected
        if self.relation == "<":
            return bool(difference < 0)
        return bool(abs(difference) <= self.tolerance)

    def judged(self) -> dict[str, Any]:
        return {
            "statement": self.words,
            "measured": float(self.measured),
            "relation": self.relation,
            "expected": float(self.expected),
            "tolerance": float(self.tolerance),
            "passed": self.holds(),
        }


class Checked(NamedTuple):
    """What was found of a theorem: statements, and numbers for its picture."""

    statements: list[Statement]
    curve: dict[str, Any]


# The Gaussian target and the setting of SGHMC on which laws are exact: U = ½ θᵀ PRECISION θ.

PRECISION = np.array([[1.6, 0.5], [0.5, 0.7]])
MASS = np.array([[1.3, -0.3], [-0.3, 0.8]])
FRICTION = np.array([[1.1, 0.4], [0.4, 0.9]])
GRADIENT_NOISE = np.array([[2.0, -0.6], [-0.6, 1.5]])
TEMPERATURE = 0.8
ZERO = np.zeros((2, 2))
STEP_SIZES = 0.4 * 0.5 ** np.arange(6)
"""Halved again and again, so that orders in ε show."""
ORDER_TOLERANCE = 0.05
"""Of an exponent of ε at the smallest step sizes: what the next order leaves is below 0.02."""


def sampler(step_size: float, gradient_noise=GRADIENT_NOISE, temperature=TEMPERATURE) -> SGHMC:
    return SGHMC(float(step_size), FRICTION, MASS, gradient_noise, temperature)


def stationary_law(of: Sampler, gradient_noise: np.ndarray = GRADIENT_NOISE) -> theory.Law:
    return theory.stationary_law(of, PRECISION, gradient_noise)


def half_drift_back(step_size: float) -> np.ndarray:
    """From the end of a step to its mid-drift point, as a matrix on (θ, r)."""
    return np.block([[np.eye(2), -step_size / 2 * np.linalg.inv(MASS)], [ZERO, np.eye(2)]])


def middle_covariance(of: SGHMC, gradient_noise: np.ndarray) -> np.ndarray:
    """The covariance of (θ, r) at mid-drift points."""
    middle = half_drift_back(float(np.asarray(of.step_size)))
    return middle @ stationary_law(of, gradient_noise).state_covariance @ middle.T


def block_diagonal(of_position: np.ndarray, of_momentum: np.ndarray) -> np.ndarray:
    return np.block([[of_position, ZERO], [ZERO, of_momentum]])


def order(errors: list[float]) -> float:
    """The exponent of ε, from the two smallest step sizes."""
    return float(np.log2(errors[-2] / errors[-1]))


def draw_orders(axis, curve, labels: dict[str, str], *, title: str, ylabel: str) -> None:
    """Errors against step sizes, both on logarithmic axes."""
    colors = (pages.COLORS["red"], pages.COLORS["blue"])
    for (name, label), color in zip(labels.items(), colors, strict=True):
        axis.loglog(curve["step_sizes"], curve[name], marker="o", color=color, label=label)
    axis.set(title=title, xlabel=r"step size $\varepsilon$", ylabel=ylabel)
    axis.set_xticks([], minor=True)
    axis.set_xticks(curve["step_sizes"], labels=[f"{size:g}" for size in curve["step_sizes"]])
