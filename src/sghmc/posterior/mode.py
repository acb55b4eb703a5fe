"""Find the mode of a target with its Hessian, by a damped Newton method on the host in float64."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.posterior.host_potential import MAX_QUICK_ROWS, HostPotential, as_params, as_vector
from sghmc.posterior.target import Target
from sghmc.types import PyTree

CLOSE = 1e-3
"""Distance √(gᵀH⁻¹g) at which a search ends; for a potential, in standard deviations."""
_MAX_NEWTON_STEPS = 100
"""Largest number of steps: a search far from its minimum takes some tens, if it converges."""
_DAMPINGS = np.geomspace(1e-3, 1e39, 43)
"""Dampings of a Hessian scaled to a unit diagonal, up to steps of 0 in double precision."""
_DAMPING_BATCH = 8
"""Number of dampings that are tried in one evaluation."""
_MIN_DAMPING = 1e-6
"""Smallest damping; the next smaller one is 0."""
_MIN_DECREASE, _MAX_IDLE_STEPS = 0.01, 3
"""Without positive curvature, a search stops after 3 consecutive steps that each lower U by less
than 0.01, or a thousandth for each parameter."""
_MAX_INDEFINITE_HESSIANS = 10
"""A search that has met this many Hessians with a negative eigenvalue stops."""
_MIN_SPEEDUP = 4
"""A Hessian is reused while a step divides the distance to the minimum by at least this factor."""
_MAX_STALE_DISTANCE = 5.0
"""Largest distance √(ΔᵀHΔ) from its point at which a Hessian still is that of the minimum."""
_ARMIJO_SHARE = 1e-4
"""Armijo constant: smallest share of the predicted decrease that a step must reach."""
_RELATIVE_ROUNDING = 1e-12
"""Relative change of the function that is below the rounding error of sums over many rows."""
_MIN_CURVATURE, _MIN_DIAGONAL = 1e-14, 1e-30
"""Smallest curvature above rounding, relative to the largest: when scaled, and on the diagonal."""


@runtime_checkable
class Objective(Protocol):
    """A function of a vector with its derivatives."""

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the value and the gradient at each row of `points`."""
        ...

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian at `x`."""
        ...


class Minimum(NamedTuple):
    """The end of a search; `distance` is √(gᵀH⁻¹g) there, by the last Hessian used."""

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
    """Minimise by Newton's method, damped if a full step would not lower the function.

    A Hessian is reused as long as it converges quickly; near the minimum a single one is enough.
    The first is that of `rough`, if given, a cheaper function much like this one.

    >>> class Quartic:
    ...     def evaluate(self, points):
    ...         return np.sum((points - 3) ** 4 + points**2, 1), 4 * (points - 3) ** 3 + 2 * points
    ...     def hessian(self, x):
    ...         return np.diag(12 * (x - 3) ** 2 + 2)
    >>> minimize(Quartic(), np.zeros(1)).x.round(2).tolist()
    [2.0]
    """
    (value,), (slope,) = objective.evaluate(x[None])
    model, damping, before = _QuadraticModel((rough or objective).hessian(x), slope), 0.0, np.inf
    is_fresh, num_idle, num_indefinite, of_model = True, 0, 0, x
    for _ in range(_MAX_NEWTON_STEPS):
        distance = model.distance(slope)
        if distance < CLOSE and model.length(x - of_model) > _MAX_STALE_DISTANCE:
            # Far away it may be another one: at the end of a funnel it is, by many powers of ten.
            model, of_model = _QuadraticModel(objective.hessian(x), slope), x
            distance = model.distance(slope)
        if not np.isfinite(value) or distance < CLOSE or not goes_on():
            break
        if not (is_fresh or distance < before / _MIN_SPEEDUP):
            model, of_model = _QuadraticModel(objective.hessian(x), slope), x
            distance = model.distance(slope)
            num_indefinite += np.isinf(distance)
        step = _downhill(objective, model, x, value, slope, damping)
        if step is None:
            break
        is_idle = np.isinf(distance) and value - step[1] < max(_MIN_DECREASE, 1e-3 * x.size)
        num_idle = num_idle + 1 if is_idle else 0
        x, value, slope, damping = step
        before, is_fresh = distance, False
        if num_idle == _MAX_IDLE_STEPS or num_indefinite == _MAX_INDEFINITE_HESSIANS:
            break
    return Minimum(x, float(value), model.matrix, model.distance(slope))


def _downhill(objective: Objective, model: "_QuadraticModel", x, value, slope, damping):
    """Return the step that lowers the function with the least damping, or None.

    A step whose predicted decrease is below rounding is accepted without a test.
    """
    ladder = np.append(damping, _DAMPINGS[1.001 * damping < _DAMPINGS])
    for first in range(0, len(ladder), _DAMPING_BATCH):
        some = ladder[first : first + _DAMPING_BATCH]
        steps = np.stack([model.step(slope, each) for each in some])
        expected = -steps @ slope
        new, slopes = objective.evaluate(x + steps)
        is_negligible = np.abs(expected) < _RELATIVE_ROUNDING * abs(value)
        is_good = (new <= value - _ARMIJO_SHARE * expected) | is_negligible
        if is_good.any():
            i = int(np.argmax(is_good))
            damping = some[i] / 10 if some[i] > _MIN_DAMPING else 0.0
            return x + steps[i], new[i], slopes[i], damping
    return None


class _QuadraticModel:
    """A Hessian scaled to a unit diagonal, so that units of parameters do not matter.

    If no parameter has any curvature, as on both sides of a kink, each is scaled so that its slope
    changes the function by 1 over one unit.
    """

    def __init__(self, matrix: np.ndarray, slope: np.ndarray):
        self.matrix = matrix
        diagonal = np.abs(matrix.diagonal())
        self.is_flat = not np.any(matrix)
        if self.is_flat:
            diagonal = np.where(slope == 0, 1.0, slope**2)
            matrix = np.diag(diagonal)
        smallest = np.finfo(float).tiny + _MIN_DIAGONAL * diagonal.max(initial=0.0)
        self.scale = np.sqrt(np.maximum(diagonal, smallest))
        is_finite = bool(np.all(np.isfinite(matrix)))
        scaled = matrix / np.outer(self.scale, self.scale) if is_finite else np.eye(len(matrix))
        self.values, self.vectors = np.linalg.eigh(scaled)

    def step(self, slope: np.ndarray, damping: float) -> np.ndarray:
        """Return −(H + μD)⁻¹g, with negative eigenvalues replaced by their absolute values."""
        along = self.vectors.T @ (slope / self.scale)
        curvature = np.maximum(np.abs(self.values), _MIN_CURVATURE) + damping
        return -(self.vectors @ (along / curvature)) / self.scale

    def length(self, way: np.ndarray) -> float:
        return float(np.sqrt(np.abs(way @ self.matrix @ way)))

    def distance(self, slope: np.ndarray) -> float:
        if self.is_flat or self.values[0] <= 0 or not np.all(np.isfinite(slope)):
            return np.inf
        along = self.vectors.T @ (slope / self.scale)
        return float(np.sqrt(np.sum(along**2 / self.values)))


# The mode of a target.

DENSE_LIMIT = 500
"""Largest number of parameters for which the whole Hessian is computed, for Newton's method."""
_SUBSAMPLE_ROWS = MAX_QUICK_ROWS
"""Number of rows of the first search; of larger data, a search over all rows finishes it."""
MAX_MODE_DISTANCE = 30 * CLOSE
"""Largest distance in standard deviations at which a search counts as having found a mode."""


class Mode(NamedTuple):
    """The end of a search for a mode.

    `hessian` is that of U over the raveled parameters, or None if they are too many; `distance` is
    √(gᵀH⁻¹g), the remaining distance in standard deviations, by the last Hessian used.
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
    """Find the mode near `start` by Newton's method, or by L-BFGS if there are many parameters.

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
    """Return ∇²U over the raveled parameters, from all data or estimated from some rows."""
    return HostPotential(target, position, num_rows).hessian(as_vector(position))


def _quasi_newton(
    surface: HostPotential,
    x: np.ndarray,
    rough: HostPotential | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Minimum:
    x, value = surface.descend(x, goes_on)
    return Minimum(x, value, None, np.inf)
