"""Search for modes that the first search has missed, and estimate how much mass each holds.

By Laplace's approximation a mode holds e^{−U} |H|^{−½} of the posterior, up to a factor that all
modes share.
"""

import dataclasses
import math

import jax
import numpy as np

from sghmc.core import tree
from sghmc.posterior import mode
from sghmc.posterior.host_potential import MAX_QUICK_ROWS, HostPotential, as_params, as_vector
from sghmc.types import PyTree

# Steps of a descent, all of which go on at once.
_MAX_SEARCH_STEPS = 20
# NumPyro and Stan start chains in a cube of this half-width around 0; so do two of the searches.
_START_CUBE = 2.0
# A point within √d plus so many standard deviations belongs to the known mode.
_BASIN_MARGIN = 4.0
# Armijo: a step counts if U falls by this share of what the slope predicts.
_MIN_FALL = 0.1
# A mode with less mass than this does not change a standard deviation noticeably.
MIN_MASS = 0.01
# Chains cross a barrier of less energy than this, and their draws show how often.
_MIN_BARRIER = 5.0
_MAX_POLISHED = 4
# Curvature in z below this share of the largest is that of a ridge.
_FLAT_CURVATURE = 1e-6
# Walkers that cool down from temperatures of up to so many squared standard deviations to 1, by
# steps of these sizes in z; and how many of them descend from the best place that they saw.
_NUM_WALKERS, _NUM_DESCENTS = 32, 9
_WALK_SCALES, _WALK_STEPS = (2.0, 30.0), (0.2, 1.2)
# Momentum that a walker keeps from step to step, and the most and fewest steps of a walk.
_WALK_MEMORY, _MAX_WALK, _MIN_WALK = 0.9, 100, 10
_NUM_POINTS_BETWEEN = 7
_NUM_NAMED_ENTRIES = 3


@dataclasses.dataclass(frozen=True)
class OtherMode:
    """A second mode: its position, its share of the mass of both, the barrier between them."""

    position: np.ndarray
    mass: float
    barrier: float

    def complaint(self, like: PyTree) -> str:
        """Return what a report says about a mode that chains from the first one miss."""
        named = range(min(_NUM_NAMED_ENTRIES, self.position.size))
        entries = [f"{tree.entry_name(like, i)} = {float(self.position[i]):.3g}" for i in named]
        return (
            f"there is another mode, with about {self.mass:.0%} of the posterior, at "
            f"{', '.join(entries)}, and chains hardly cross to it ({self.barrier:.3g} units of "
            f"energy lie between): if it is the same solution under another name, order the "
            f"parameters (sghmc.transforms.Ordered) or fix a sign; else take sghmc.ReplicaExchange"
        )


def is_spike(
    potential: HostPotential, start: np.ndarray, end: np.ndarray, hessian: np.ndarray
) -> bool:
    """Whether a density that rises without bound from start to end holds less mass at the end.

    The effects of a group are like that as their standard deviation goes to 0: the density becomes
    narrower faster than it becomes higher. `hessian` is that at the end.
    """
    low, high = potential.potentials(np.stack([start, end]))
    some_rows = potential.subsampled(MAX_QUICK_ROWS)
    narrowing = _log_volume(some_rows.hessian(start)) - _log_volume(hessian)
    return bool(np.isfinite(narrowing) and narrowing > low - high > 0)


def find_other_mode(
    potential: HostPotential,
    center: np.ndarray,
    factor: np.ndarray,
    rng: np.random.Generator,
    num_gradients: int = _NUM_WALKERS * _MAX_WALK,
) -> tuple[OtherMode | None, str]:
    """Return the heaviest mode besides the known one at `center`, or None, and what was searched.

    `factor` is L with LLᵀ = H⁻¹ at the center; walkers may take `num_gradients`.
    """
    some_rows = potential.subsampled(MAX_QUICK_ROWS)
    starts = _starts(potential.like, center, factor)
    num_steps = min(_MAX_WALK, num_gradients // _NUM_WALKERS)
    words = f"descents from {len(starts)} places"
    if num_steps >= _MIN_WALK:
        seen = _wander(some_rows, center, factor, rng, num_steps)
        starts = np.concatenate([starts, seen])
        words = (
            f"{_NUM_WALKERS} walkers that cooled down from up to {_WALK_SCALES[1]:g} standard "
            f"deviations around the mode, and descents from {len(starts)} places"
        )
    ends = _descend(some_rows, center, factor, starts)
    found: list[OtherMode] = []
    for end in ends[:_MAX_POLISHED]:
        other = _polish(potential, some_rows, center, factor, end)
        if other is not None:
            found.append(other)
    words += (
        f": {'another mode' if found else 'no other mode'} with {MIN_MASS:.0%} of the posterior "
        f"or more. A mode that is much narrower, or lies farther off, cannot be excluded"
    )
    return max(found, key=lambda other: other.mass, default=None), words


def _wander(
    potential: HostPotential,
    center: np.ndarray,
    factor: np.ndarray,
    rng: np.random.Generator,
    num_steps: int,
) -> np.ndarray:
    """Return points that tempered walkers saw where the potential is lowest beside a Gaussian's.

    Each is a chain of guided HMC at its own falling temperature, so that it crosses barriers first
    and settles last. In another mode the potential is far below ½|z|², that of the known mode.
    """
    scales = np.geomspace(*_WALK_SCALES, _NUM_WALKERS)[:, None]
    least, most = np.log(_WALK_STEPS)
    steps = np.exp(rng.uniform(least, most, (_NUM_WALKERS, 1)))
    z = scales * rng.normal(size=(_NUM_WALKERS, center.size))

    def evaluate(z):
        values, slopes = potential.evaluate(center + z @ factor.T)
        with np.errstate(invalid="ignore", over="ignore"):  # far outside
            return values, slopes @ factor

    (bottom,), (tilt,) = evaluate(np.zeros((1, center.size)))
    values, slopes = evaluate(z)
    momenta = scales * rng.normal(size=z.shape)
    best, lowest = z.copy(), np.full(len(z), np.inf)
    for step in range(num_steps):
        heat = scales ** (1 - step / num_steps)  # the square root of the temperature
        fresh = rng.normal(size=z.shape)
        momenta = _WALK_MEMORY * momenta + math.sqrt(1 - _WALK_MEMORY**2) * heat * fresh
        half = momenta - steps / 2 * slopes
        new = z + steps * half
        new_values, new_slopes = evaluate(new)
        kicked = half - steps / 2 * new_slopes
        with np.errstate(invalid="ignore", over="ignore"):
            rise = new_values - values + np.sum(kicked**2 - momenta**2, axis=1) / 2
        is_good = rise < heat[:, 0] ** 2 * rng.exponential(size=len(z))
        is_good |= ~np.isfinite(values) & np.isfinite(new_values)
        z = np.where(is_good[:, None], new, z)
        values = np.where(is_good, new_values, values)
        slopes = np.where(is_good[:, None], new_slopes, slopes)
        momenta = np.where(is_good[:, None], kicked, -momenta)
        score = values - bottom - z @ tilt - np.sum(z**2, axis=1) / 2
        is_better = (score < lowest) & _is_outside(z, values - bottom)
        best, lowest = np.where(is_better[:, None], z, best), np.where(is_better, score, lowest)
    chosen = np.argsort(lowest)[:_NUM_DESCENTS]
    return center + best[chosen][np.isfinite(lowest[chosen])] @ factor.T


def _starts(like: PyTree, center: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return seven starts: two near 0, with opposite signs, with each leaf reversed, three far out.

    Signs and labels are what a model most often leaves undetermined.
    """
    rng, size = np.random.default_rng(0), center.size
    near = rng.uniform(-_START_CUBE, _START_CUBE, (2, size))
    leaves = jax.tree.leaves(as_params(center, like))
    reversed_leaves = np.concatenate([as_vector([leaf])[::-1] for leaf in leaves])
    ways = rng.normal(size=(2, size))
    ways *= 2 * (math.sqrt(size) + _BASIN_MARGIN) / np.linalg.norm(ways, axis=1, keepdims=True)
    far = center + np.concatenate([ways, -ways[:1]]) @ factor.T
    return np.concatenate([near, -center[None], reversed_leaves[None], far])


def _descend(
    potential: HostPotential, center: np.ndarray, factor: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Return where descents from `starts` end outside of the known basin, each place once.

    In z the known mode has curvature 1, so that a slope is Newton's step to it.
    """
    radius = math.sqrt(center.size) + _BASIN_MARGIN
    z = np.linalg.solve(factor, (starts - center).T).T
    values, slopes = potential.evaluate(np.concatenate([center[None], starts]))
    # All rows together have no slope at their mode; what some rows have there is taken off.
    tilt, bottom = slopes[0] @ factor, values[0]
    values, slopes = values[1:] - z @ tilt, slopes[1:]
    pace, goes_on = np.ones(len(z)), _is_outside(z, values - bottom)
    for _ in range(_MAX_SEARCH_STEPS):
        if not goes_on.any():
            break
        down = np.where(goes_on[:, None], tilt - slopes @ factor, 0.0)
        # No step is longer than the way back to the center, or than the radius of the basin.
        longest = np.maximum(np.linalg.norm(z, axis=1), radius)
        share = pace * longest / np.maximum(np.linalg.norm(down, axis=1), longest)
        steps = down * share[:, None]
        new, new_slopes = potential.evaluate(center + (z + steps) @ factor.T)
        new = new - (z + steps) @ tilt
        is_good = goes_on & (new < values - _MIN_FALL * np.sum(steps * down, axis=1))
        z = np.where(is_good[:, None], z + steps, z)
        values = np.where(is_good, new, values)
        slopes = np.where(is_good[:, None], new_slopes, slopes)
        pace = np.where(is_good, np.minimum(1, 2 * pace), pace / 4)
        goes_on = _is_outside(z, values - bottom)
    lowest: list[np.ndarray] = []  # one of those that went to the same place
    for end in z[goes_on][np.argsort(values[goes_on])]:
        if all(np.linalg.norm(end - other) > math.sqrt(center.size) for other in lowest):
            lowest.append(end)
    return center + np.reshape(lowest, (-1, center.size)) @ factor.T


def _is_outside(z: np.ndarray, rises: np.ndarray) -> np.ndarray:
    """Return which points are finite and outside of the known mode's basin."""
    radius = math.sqrt(z.shape[1]) + _BASIN_MARGIN
    is_inside = (np.linalg.norm(z, axis=1) < radius) & (rises < radius**2 / 2)
    return np.isfinite(rises) & ~is_inside


def _polish(
    potential: HostPotential,
    some_rows: HostPotential,
    center: np.ndarray,
    factor: np.ndarray,
    end: np.ndarray,
) -> OtherMode | None:
    """Return the mode that Newton's method finds from `end`, if it is another one and matters."""
    is_part = some_rows is not potential
    if is_part:
        end = mode.minimize(some_rows, end).x
        if not _is_outside(np.linalg.solve(factor, end - center)[None], np.zeros(1))[0]:
            return None
    found = mode.minimize(potential, end, some_rows if is_part else None)
    away = np.linalg.norm(np.linalg.solve(factor, found.x - center))
    if not found.distance < mode.MAX_MODE_DISTANCE or away < 1:
        return None
    between = np.linspace(0, 1, _NUM_POINTS_BETWEEN)[:, None]
    values = potential.potentials(center + between * (found.x - center))
    # The search may end with a Hessian of some steps before, so both are computed here.
    hessians = [potential.hessian(x) for x in (center, found.x)]
    curvatures = np.linalg.eigvalsh(factor.T @ hessians[1] @ factor)
    if curvatures[0] < _FLAT_CURVATURE * curvatures[-1]:  # a ridge, of which no part is a mode
        return None
    known, new = map(_log_volume, hessians)
    excess = found.value - values[0] + known - new
    mass = 1 / (1 + math.exp(min(excess, 700.0)))
    barrier = float(np.nanmax(values) - max(values[0], values[-1]))
    if mass < MIN_MASS or barrier < _MIN_BARRIER:
        return None
    return OtherMode(found.x, mass, barrier)


def _log_volume(hessian: np.ndarray) -> float:
    """Return log |H|^{−½}, or ∞ if a direction has no curvature."""
    scale = np.sqrt(np.abs(hessian.diagonal()))
    if not np.all(scale > 0) or not np.all(np.isfinite(hessian)):
        return math.inf
    return float(
        -np.sum(np.log(scale)) - np.linalg.slogdet(hessian / np.outer(scale, scale))[1] / 2
    )
