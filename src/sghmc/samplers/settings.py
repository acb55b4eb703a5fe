"""Check and evaluate the settings of samplers: numbers, schedules, and the gradient noise V̂."""

import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import checks, matrices, tree
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.types import PyTree, Schedule

__all__ = ["array_setting", "check_setting", "rescale", "scaled", "value_at", "values_over"]

_MAX_SCHEDULE_POINTS = 1 << 20
"""Largest number of evenly spaced steps at which a schedule is checked; most runs are shorter."""


def check_setting(value: Any, name: str, *, positive: bool = False) -> None:
    """Refuse a number that is negative or not finite; schedules are checked by `values_over`."""
    if callable(value):
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number or a schedule (a function of the step number), not {value!r}."
        ) from None
    wanted = "positive" if positive else "zero or more"
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be {wanted} and finite, but is {number:g}.")


def value_at(setting: float | jax.Array | Schedule, t) -> jax.Array:
    """Return the setting at step t."""
    return jnp.asarray(setting(t) if callable(setting) else setting)


def values_over(setting: float | Schedule, num_steps: int, name: str) -> np.ndarray:
    """Check and return the setting's values at (a grid of) the steps 0, …, num_steps − 1.

    A constant has one value: it broadcasts against the others.
    """
    if not callable(setting):
        return np.array([float(setting)])
    count = min(num_steps, _MAX_SCHEDULE_POINTS)
    points = np.unique(np.linspace(0, num_steps - 1, count).astype(int))
    values = np.asarray(jax.vmap(lambda t: jnp.asarray(setting(t), float))(jnp.asarray(points)))
    if values.ndim != 1:
        raise ValueError(f"The schedule of {name} must return a number, not {values.shape[1:]}.")
    bad = ~(np.isfinite(values) & (values >= 0))
    if np.any(bad):
        raise ValueError(
            f"The schedule of {name} must stay finite and not negative, but is "
            f"{values[bad][0]:g} at step {points[bad][0]}."
        )
    return values


def array_setting(setting: float | Schedule, dtype) -> jax.Array | Schedule:
    """Convert a number to an array, so that a new value does not retrace; keep a schedule."""
    return setting if callable(setting) else jnp.asarray(setting, dtype)


def rescale(setting: float | Schedule, factor: float) -> float | Schedule:
    """Return a number or a schedule times a factor."""
    if callable(setting):
        return lambda t: factor * setting(t)
    return factor * setting


def scaled(setting: Any, factor: float) -> Any:
    """Return a setting times a factor: a number, a schedule, or a matrix in any of its forms."""
    if callable(setting):
        return rescale(cast(Schedule, setting), factor)
    return jax.tree.map(lambda leaf: factor * leaf, setting)


# The gradient noise V̂, which is subtracted from the injected noise, or its estimator.

_NOISE_TOLERANCE = 1e-6
"""Relative tolerance of the check of V̂, so that rounding does not refuse the largest allowed V̂."""


class NoiseEstimate(eqx.Module):
    """An estimator of V̂ with the kernel's matrices for V̂ = 0, into which estimates are put."""

    fisher: EmpiricalFisher
    noise: matrices.Pencil
    drag: matrices.Pencil | None = None


def parse_gradient_noise(value: PyTree | EmpiricalFisher, like: PyTree) -> matrices.Matrix:
    """Return V̂, or zeros where it will be estimated during the run."""
    is_estimated = isinstance(value, EmpiricalFisher)
    if is_estimated and not value.diagonal:
        return matrices.Dense(np.zeros((tree.size(like), tree.size(like))))
    given = 0.0 if is_estimated else value
    return checks.parse_matrix(given, like, "gradient_noise", definite=False)


def worst_excess(needed: np.ndarray, allowed: np.ndarray) -> tuple[float, float] | None:
    """Return the pair (needed, allowed) of the step with the largest excess; None without any."""
    needed, allowed = np.broadcast_arrays(needed, allowed)
    worst = (needed - allowed).argmax()
    if needed[worst] <= allowed[worst] * (1 + _NOISE_TOLERANCE):
        return None
    return float(needed[worst]), float(allowed[worst])
