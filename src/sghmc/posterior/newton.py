"""Newton's method for a function of a vector, in double precision: the one that all modes use."""

from typing import NamedTuple, Protocol

import numpy as np

CLOSE = 1e-3
"""How near the minimum a search ends: √(gᵀH⁻¹g), for a potential in standard deviations."""
_NUM_STEPS = 100
"""A search far from its minimum takes some tens of steps: one that takes more does not converge."""
_NUM_DAMPINGS = 40
"""Tenfold each: from the first damping to one where a step is nothing in double precision."""
_QUICKLY = 4
"""A Hessian is kept while a step brings the minimum so many times nearer."""
_LEAST_FALL = 1e-4
"""Of the fall that the slope promises (Armijo)."""
_FIRST_DAMPING, _LEAST_DAMPING = 1e-3, 1e-6
"""Relative to a Hessian scaled to a unit diagonal; below the second, none."""
_ROUNDING = 1e-12
"""A fall, relative to the function, that sums over many rows cannot tell from 0."""
_FLAT, _FLAT_DIAGONAL = 1e-14, 1e-30
"""Curvature, relative to the largest, that is but rounding: scaled, and of the diagonal."""


class Objective(Protocol):
    """A function of a vector."""

    def look(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Its value and its gradient."""
        ...

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """Its Hessian."""
        ...


class Minimum(NamedTuple):
    """Where a search ended; `distance` is what is left, by the last Hessian used."""

    x: np.ndarray
    value: float
    curvature: np.ndarray | None
    distance: float


def minimize(objective: Objective, x: np.ndarray) -> Minimum:
    """Newton's method, damped where the function would not fall.

    A Hessian serves as long as it brings the minimum quickly nearer: near it a single one does.

    >>> class Quartic:
    ...     def look(self, x):
    ...         return float(np.sum((x - 3) ** 4 + x**2)), 4 * (x - 3) ** 3 + 2 * x
    ...     def curvature(self, x):
    ...         return np.diag(12 * (x - 3) ** 2 + 2)
    >>> minimize(Quartic(), np.zeros(1)).x.round(2).tolist()
    [2.0]
    """
    value, slope = objective.look(x)
    bowl, damping, before = _Bowl(objective.curvature(x)), 0.0, np.inf
    is_fresh = True
    for _ in range(_NUM_STEPS):
        distance = bowl.distance(slope)
        if not np.isfinite(value) or distance < CLOSE:
            break
        if not (is_fresh or distance < before / _QUICKLY):
            bowl = _Bowl(objective.curvature(x))
            distance = bowl.distance(slope)
        step = _downhill(objective, bowl, x, value, slope, damping)
        if step is None:
            break
        x, value, slope, damping = step
        before, is_fresh = distance, False
    return Minimum(x, value, bowl.matrix, bowl.distance(slope))


def _downhill(objective: Objective, bowl: "_Bowl", x, value, slope, damping):
    """A step that lowers the function, with as little damping as that takes; None: there is none.

    A step that would lower it by less than rounding is taken as it is.
    """
    for _ in range(_NUM_DAMPINGS):
        step = bowl.step(slope, damping)
        expected = -slope @ step
        new, new_slope = objective.look(x + step)
        if new <= value - _LEAST_FALL * expected or abs(expected) < _ROUNDING * abs(value):
            return x + step, new, new_slope, damping / 10 if damping > _LEAST_DAMPING else 0.0
        damping = max(10 * damping, _FIRST_DAMPING)
    return None


class _Bowl:
    """A Hessian scaled to a unit diagonal, so that units of parameters do not matter."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix
        diagonal = np.abs(matrix.diagonal())
        smallest = np.finfo(float).tiny + _FLAT_DIAGONAL * diagonal.max(initial=0.0)
        self.scale = np.sqrt(np.maximum(diagonal, smallest))
        is_finite = bool(np.all(np.isfinite(matrix)))
        scaled = matrix / np.outer(self.scale, self.scale) if is_finite else np.eye(len(matrix))
        self.values, self.vectors = np.linalg.eigh(scaled)

    def step(self, slope: np.ndarray, damping: float) -> np.ndarray:
        """−(H + μD)⁻¹g; directions that bend down are taken as if they bent up."""
        along = self.vectors.T @ (slope / self.scale)
        bend = np.maximum(np.abs(self.values), _FLAT) + damping
        return -(self.vectors @ (along / bend)) / self.scale

    def distance(self, slope: np.ndarray) -> float:
        if self.values[0] <= 0 or not np.all(np.isfinite(slope)):
            return np.inf
        along = self.vectors.T @ (slope / self.scale)
        return float(np.sqrt(np.sum(along**2 / self.values)))
