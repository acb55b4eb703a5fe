"""The mode of a target and its curvature there, in double precision."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.posterior import newton
from sghmc.posterior.newton import Minimum
from sghmc.posterior.surface import FEW_ROWS, Surface, as_params, as_vector
from sghmc.posterior.target import Target
from sghmc.types import PyTree

DENSE_LIMIT = 500
"""Up to so many parameters the whole Hessian is computed, and Newton's method used."""
_FEW_ROWS = FEW_ROWS
"""Rows of the first search: with more data, all of them only finish it."""
PEAK = 30 * newton.CLOSE
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
    def is_peak(self) -> bool:
        return self.distance < PEAK


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
    return mode_of(Surface(target, start), start)


def mode_of(surface: Surface, start: PyTree) -> Mode:
    """The mode near `start` of a surface over all data."""
    x, part = as_vector(start), surface.part(_FEW_ROWS)
    search = newton.minimize if x.size <= DENSE_LIMIT else _quasi_newton
    rough = None if part is surface else part
    if rough is not None:
        x = search(rough, x).x
    end = search(surface, x, rough)
    if not np.isfinite(end.value):
        raise ModeError(
            f"The search for the mode became non-finite: the potential is {end.value} there. "
            f"Start elsewhere, or look for NaN in the data and log of zero in the model."
        )
    position = jax.tree.map(jnp.asarray, as_params(end.x, surface.like))
    return Mode(position, end.value, end.curvature, end.distance)


def hessian(target: Target, position: PyTree, num_rows: int | None = None) -> np.ndarray:
    """∇²U over the raveled parameters, from all data or estimated from some rows."""
    return Surface(target, position, num_rows).curvature(as_vector(position))


def _quasi_newton(surface: Surface, x: np.ndarray, rough: Surface | None = None) -> Minimum:
    x, value = surface.descend(x)
    return Minimum(x, value, None, np.inf)
