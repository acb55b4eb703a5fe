"""Peaks of a density: how much of it each holds, and whether a search has missed one.

By Laplace's approximation a peak holds e^{−U} |H|^{−½} of it, up to a factor that all share.
"""

import dataclasses
import math

import jax
import numpy as np

from sghmc.core import tree
from sghmc.posterior import mode, newton
from sghmc.posterior.surface import FEW_ROWS, Surface, as_params, as_vector
from sghmc.types import PyTree

_NUM_STEPS = 20
"""Of a search at the most. Seven go on at once: a pass looks at eight points, with the center."""
_RADIUS = 2.0
"""Of a cube around 0 where NumPyro and Stan start chains: two searches start there, too."""
_HOME = 4.0
"""Standard deviations beyond √d up to which a search has come to the peak that is known."""
_LEAST_FALL = 0.1
"""Of what the slope promises: less is no step."""
LEAST_SHARE = 0.01
"""A peak with less of the density than that changes no standard deviation that is promised."""
_LEAST_BARRIER = 5.0
"""Between two peaks, in units of energy: a lower one is crossed, and draws say how often."""
_MOST_POLISHED, _NUM_BETWEEN = 2, 7
"""Ends of searches that are followed to a peak; points on the way between two peaks."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """Another peak: where, its share of the two, and how high the potential is between them."""

    place: np.ndarray
    share: float
    barrier: float

    def told(self, like: PyTree) -> str:
        moved = ", ".join(f"{name} = {value:.3g}" for name, value in _entries(self.place, like))
        return (
            f"there is another mode, with about {self.share:.0%} of the posterior, at {moved}, "
            f"and chains hardly cross to it ({self.barrier:.3g} units of energy lie between): "
            f"where it is but another name for the same, order the parameters "
            f"(sghmc.transforms.Ordered) or fix a sign; else take sghmc.ReplicaExchange"
        )


def is_spike(surface: Surface, start: np.ndarray, end: np.ndarray, hessian: np.ndarray) -> bool:
    """Whether a density that rises without bound from start to end holds less there.

    As that of a group's effects does where their spread goes to 0: it grows narrower faster than
    it grows higher.
    """
    low, high = surface.potentials(np.stack([start, end]))
    gained = _log_volume(surface.curvature(start)) - _log_volume(hessian)
    return bool(np.isfinite(gained) and gained > low - high > 0)


def other_peak(surface: Surface, center: np.ndarray, factor: np.ndarray) -> Peak | None:
    """The heaviest of the other peaks that searches from some places find; None: they find none."""
    some = surface.part(FEW_ROWS)
    ends = _descended(some, center, factor, _starts(surface.like, center, factor))
    found = []
    for end in ends[:_MOST_POLISHED]:
        peak = _polished(surface, center, factor, end)
        if peak is not None and all(np.any(peak.place != other.place) for other in found):
            found.append(peak)
    return max(found, key=lambda peak: peak.share, default=None)


def _starts(like: PyTree, center: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Places to search from: near 0, where signs or names are exchanged, and far out."""
    rng, size = np.random.default_rng(0), center.size
    near = rng.uniform(-_RADIUS, _RADIUS, (2, size))
    leaves = [leaf[::-1] for leaf in _leaves(center, like)]
    ways = rng.normal(size=(2, size))
    ways *= 2 * (math.sqrt(size) + _HOME) / np.linalg.norm(ways, axis=1, keepdims=True)
    far = center + np.concatenate([ways, -ways[:1]]) @ factor.T
    return np.concatenate([near, -center[None], np.concatenate(leaves)[None], far])


def _descended(
    surface: Surface, center: np.ndarray, factor: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Where searches from `starts` end that do not come home, the lowest first.

    In coordinates where the known peak has curvature 1 a slope is Newton's step to it.
    """
    reach = math.sqrt(center.size) + _HOME
    z = np.linalg.solve(factor, (starts - center).T).T
    values, slopes = surface.looks(np.concatenate([center[None], starts]))
    # All rows have no slope at their peak; what some of them have there is taken off.
    tilt, bottom = slopes[0] @ factor, values[0]
    values, slopes = values[1:] - z @ tilt, slopes[1:]
    pace, goes_on = np.ones(len(z)), _is_away(z, values - bottom)
    for _ in range(_NUM_STEPS):
        if not goes_on.any():
            break
        down = np.where(goes_on[:, None], tilt - slopes @ factor, 0.0)
        # As far as home at the most, or as one that is home would have gone.
        most = np.maximum(np.linalg.norm(z, axis=1), reach)
        share = pace * most / np.maximum(np.linalg.norm(down, axis=1), most)
        steps = down * share[:, None]
        new, new_slopes = surface.looks(center + (z + steps) @ factor.T)
        new = new - (z + steps) @ tilt
        is_good = goes_on & (new < values - _LEAST_FALL * np.sum(steps * down, axis=1))
        z = np.where(is_good[:, None], z + steps, z)
        values = np.where(is_good, new, values)
        slopes = np.where(is_good[:, None], new_slopes, slopes)
        pace = np.where(is_good, np.minimum(1, 2 * pace), pace / 4)
        goes_on = _is_away(z, values - bottom)
    order = np.argsort(values[goes_on])
    return (center + z @ factor.T)[goes_on][order]


def _is_away(z: np.ndarray, rises: np.ndarray) -> np.ndarray:
    """Of each z, whether it is not where the known peak is; one that is lost counts as home."""
    reach = math.sqrt(z.shape[1]) + _HOME
    is_home = (np.linalg.norm(z, axis=1) < reach) & (rises < reach**2 / 2)
    return np.isfinite(rises) & ~is_home


def _polished(surface: Surface, center, factor, end) -> Peak | None:
    """The peak that Newton's method finds from `end`, where it is another one and matters."""
    some = surface.part(FEW_ROWS)
    if some is not surface:
        end = newton.minimize(some, end).x
        if not _is_away(np.linalg.solve(factor, end - center)[None], np.zeros(1))[0]:
            return None
    found = newton.minimize(surface, end, None if some is surface else some)
    away = np.linalg.norm(np.linalg.solve(factor, found.x - center))
    if not found.distance < mode.PEAK or away < 1:
        return None
    between = np.linspace(0, 1, _NUM_BETWEEN)[:, None]
    values = surface.potentials(center + between * (found.x - center))
    # Searches end with a Hessian of some steps ago.
    known, new = (_log_volume(surface.curvature(x)) for x in (center, found.x))
    excess = found.value - values[0] + known - new
    share = 1 / (1 + math.exp(min(excess, 700.0)))
    barrier = float(np.nanmax(values) - max(values[0], values[-1]))
    if share < LEAST_SHARE or barrier < _LEAST_BARRIER:
        return None
    return Peak(found.x, share, barrier)


def _log_volume(hessian: np.ndarray) -> float:
    """log |H|^{−½}; infinite where there is a direction without curvature."""
    scale = np.sqrt(np.abs(hessian.diagonal()))
    if not np.all(scale > 0) or not np.all(np.isfinite(hessian)):
        return math.inf
    return float(
        -np.sum(np.log(scale)) - np.linalg.slogdet(hessian / np.outer(scale, scale))[1] / 2
    )


def _leaves(vector: np.ndarray, like: PyTree) -> list[np.ndarray]:
    """The raveled leaves of a raveled vector."""
    return [as_vector([leaf]) for leaf in jax.tree.leaves(as_params(vector, like))]


def _entries(vector: np.ndarray, like: PyTree) -> list[tuple[str, float]]:
    """The first entries by name."""
    return [(tree.entry_name(like, i), float(vector[i])) for i in range(min(3, vector.size))]
