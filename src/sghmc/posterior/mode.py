"""Newton's method for a function of a vector, in double precision: the one that all modes use.

The mode of a target and its curvature there, in double precision.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.posterior.host_potential import MAX_QUICK_ROWS, HostPotential, as_params, as_vector
from sghmc.posterior.target import Target
from sghmc.types import PyTree

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


@runtime_checkable
class Objective(Protocol):
    """A function of a vector."""

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Its value and its gradient at each row of `points`."""
        ...

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian at `x`."""
        ...


class Minimum(NamedTuple):
    """Where a search ended; `distance` is what is left, by the last Hessian used."""

    x: np.ndarray
    value: float
    hessian: np.ndarray | None
    distance: float


def minimize(
    objective: Objective,
    x: np.ndarray,
    rough: Objective | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Minimum:
    """Newton's method, damped where the function would not fall.

    A Hessian serves as long as it brings the minimum quickly nearer: near it a single one does. The
    first is that of `rough`, where that is given: a cheaper function much like this one.

    >>> class Quartic:
    ...     def evaluate(self, points):
    ...         return np.sum((points - 3) ** 4 + points**2, 1), 4 * (points - 3) ** 3 + 2 * points
    ...     def hessian(self, x):
    ...         return np.diag(12 * (x - 3) ** 2 + 2)
    >>> minimize(Quartic(), np.zeros(1)).x.round(2).tolist()
    [2.0]
    """
    (value,), (slope,) = objective.evaluate(x[None])
    bowl, damping, before = _Bowl((rough or objective).hessian(x), slope), 0.0, np.inf
    is_fresh, num_idle, num_bent = True, 0, 0
    for _ in range(_NUM_STEPS):
        distance = bowl.distance(slope)
        if not np.isfinite(value) or distance < CLOSE or not goes_on():
            break
        if not (is_fresh or distance < before / _QUICKLY):
            bowl = _Bowl(objective.hessian(x), slope)
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
        new, slopes = objective.evaluate(x + steps)
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


# The mode of a target and its curvature there, in double precision.

DENSE_LIMIT = 500
"""Up to so many parameters the whole Hessian is computed, and Newton's method used."""
_SUBSAMPLE_ROWS = MAX_QUICK_ROWS
"""Rows of the first search: with more data, all of them only finish it."""
MAX_MODE_DISTANCE = 30 * CLOSE
"""Standard deviations from a mode: a search that ends farther away has found none."""


class Mode(NamedTuple):
    """Where a search ended.

    `hessian` is that of U over the raveled parameters, or None where they are too many; `distance`
    is √(gᵀH⁻¹g), how many standard deviations the mode is still away, by the last Hessian used.
    """

    position: PyTree
    potential: float
    hessian: np.ndarray | None
    distance: float

    @property
    def is_found(self) -> bool:
        return self.distance < MAX_MODE_DISTANCE


class ModeError(ValueError):
    """A search for the mode did not find one."""


def find_mode(target: Target, start: PyTree) -> Mode:
    """The mode near `start`: Newton's method, or L-BFGS where parameters are many.

    >>> import jax.numpy as jnp, sghmc
    >>> from sghmc.posterior.mode import find_mode
    >>> target = sghmc.Potential(lambda theta: jnp.sum((theta - 3) ** 4 + theta**2))
    >>> find_mode(target, jnp.zeros(1)).position.round(2).tolist()
    [2.0]
    """
    return mode_of(HostPotential(target, start), start)


def mode_of(
    surface: HostPotential, start: PyTree, goes_on: Callable[[], bool] = lambda: True
) -> Mode:
    """Return where a search for the mode near `start` ends, at the latest when not `goes_on()`."""
    x, part = as_vector(start), surface.subsampled(_SUBSAMPLE_ROWS)
    search = minimize if x.size <= DENSE_LIMIT else _quasi_newton
    rough = None if part is surface else part
    if rough is not None:
        x = search(rough, x, None, goes_on).x
    end = search(surface, x, rough, goes_on)
    if not np.isfinite(end.value):
        raise ModeError(
            f"The search for the mode became non-finite: the potential is {end.value} there. "
            f"Start elsewhere, or look for NaN in the data and log of zero in the model."
        )
    position = jax.tree.map(jnp.asarray, as_params(end.x, surface.like))
    return Mode(position, end.value, end.hessian, end.distance)


def hessian(target: Target, position: PyTree, num_rows: int | None = None) -> np.ndarray:
    """∇²U over the raveled parameters, from all data or estimated from some rows."""
    return HostPotential(target, position, num_rows).hessian(as_vector(position))


def _quasi_newton(
    surface: HostPotential,
    x: np.ndarray,
    rough: HostPotential | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Minimum:
    x, value = surface.descend(x, goes_on)
    return Minimum(x, value, None, np.inf)
