"""Newton's method for a function of a vector, in double precision: the one that all modes use."""

from typing import NamedTuple, Protocol

import numpy as np

CLOSE = 1e-3
"""How near the minimum a search ends: √(gᵀH⁻¹g), for a potential in standard deviations."""
_NUM_STEPS = 100
"""A search far from its minimum takes some tens of steps: one that takes more does not converge."""
_DAMPINGS = np.geomspace(1e-3, 1e39, 43)
"""Of a Hessian scaled to a unit diagonal: to where a step is nothing in double precision."""
_TOGETHER = 8
"""Dampings that are tried at once."""
_LEAST_DAMPING = 1e-6
"""Below this, none."""
_LITTLE, _MOST_IDLE = 0.01, 3
"""Where nothing looks like a minimum, a search ends after so many steps that gain so little, or a
thousandth for each parameter."""
_MOST_BENT = 10
"""Hessians with a direction that bends down: a search that meets so many finds no minimum soon."""
_QUICKLY = 4
"""A Hessian is kept while a step brings the minimum so many times nearer."""
_LEAST_FALL = 1e-4
"""Of the fall that the slope promises (Armijo)."""
_ROUNDING = 1e-12
"""A fall, relative to the function, that sums over many rows cannot tell from 0."""
_FLAT, _FLAT_DIAGONAL = 1e-14, 1e-30
"""Curvature, relative to the largest, that is but rounding: scaled, and of the diagonal."""


class Objective(Protocol):
    """A function of a vector."""

    def looks(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Its value and its gradient at each row of `points`."""
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


def minimize(objective: Objective, x: np.ndarray, rough: Objective | None = None) -> Minimum:
    """Newton's method, damped where the function would not fall.

    A Hessian serves as long as it brings the minimum quickly nearer: near it a single one does. The
    first is that of `rough`, where that is given: a cheaper function much like this one.

    >>> class Quartic:
    ...     def looks(self, points):
    ...         return np.sum((points - 3) ** 4 + points**2, 1), 4 * (points - 3) ** 3 + 2 * points
    ...     def curvature(self, x):
    ...         return np.diag(12 * (x - 3) ** 2 + 2)
    >>> minimize(Quartic(), np.zeros(1)).x.round(2).tolist()
    [2.0]
    """
    (value,), (slope,) = objective.looks(x[None])
    bowl, damping, before = _Bowl((rough or objective).curvature(x), slope), 0.0, np.inf
    is_fresh, num_idle, num_bent = True, 0, 0
    for _ in range(_NUM_STEPS):
        distance = bowl.distance(slope)
        if not np.isfinite(value) or distance < CLOSE:
            break
        if not (is_fresh or distance < before / _QUICKLY):
            bowl = _Bowl(objective.curvature(x), slope)
            distance = bowl.distance(slope)
            num_bent += np.isinf(distance)
        step = _downhill(objective, bowl, x, value, slope, damping)
        if step is None:
            break
        is_idle = np.isinf(distance) and value - step[1] < max(_LITTLE, 1e-3 * x.size)
        num_idle = num_idle + 1 if is_idle else 0
        x, value, slope, damping = step
        before, is_fresh = distance, False
        if num_idle == _MOST_IDLE or num_bent == _MOST_BENT:
            break
    return Minimum(x, float(value), bowl.matrix, bowl.distance(slope))


def _downhill(objective: Objective, bowl: "_Bowl", x, value, slope, damping):
    """A step that lowers the function, with as little damping as that takes; None: there is none.

    A step that would lower it by less than rounding is taken as it is.
    """
    ladder = np.append(damping, _DAMPINGS[1.001 * damping < _DAMPINGS])
    for first in range(0, len(ladder), _TOGETHER):
        some = ladder[first : first + _TOGETHER]
        steps = np.stack([bowl.step(slope, each) for each in some])
        expected = -steps @ slope
        new, slopes = objective.looks(x + steps)
        is_nothing = np.abs(expected) < _ROUNDING * abs(value)
        is_good = (new <= value - _LEAST_FALL * expected) | is_nothing
        if is_good.any():
            i = int(np.argmax(is_good))
            damping = some[i] / 10 if some[i] > _LEAST_DAMPING else 0.0
            return x + steps[i], new[i], slopes[i], damping
    return None


class _Bowl:
    """A Hessian scaled to a unit diagonal, so that units of parameters do not matter.

    Where no parameter has any curvature, as on both sides of a kink, one length of each is that on
    which its slope makes a difference of 1.
    """

    def __init__(self, matrix: np.ndarray, slope: np.ndarray):
        self.matrix = matrix
        diagonal = np.abs(matrix.diagonal())
        self.is_flat = not np.any(matrix)
        if self.is_flat:
            diagonal = np.where(slope == 0, 1.0, slope**2)
            matrix = np.diag(diagonal)
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
        if self.is_flat or self.values[0] <= 0 or not np.all(np.isfinite(slope)):
            return np.inf
        along = self.vectors.T @ (slope / self.scale)
        return float(np.sqrt(np.sum(along**2 / self.values)))
