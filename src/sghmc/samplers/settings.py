"""Settings of samplers: numbers and schedules, checked when given and evaluated at steps.

V̂ among a sampler's settings: what is taken off the injected noise, or its estimator.
"""

import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import matrices, pencils, tree
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.types import PyTree, Schedule

__all__ = ["array_setting", "check_setting", "rescale", "scaled", "value_at", "values_over"]

_SCHEDULE_POINTS = 1 << 20
"""Steps at which a schedule is checked, evenly spaced: all of them, but for the longest runs."""


def check_setting(value: Any, name: str, *, positive: bool = False) -> None:
    """Refuse a number that cannot be; schedules can only be checked once steps are known."""
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
    """The setting at step t."""
    return jnp.asarray(setting(t) if callable(setting) else setting)


def values_over(setting: float | Schedule, num_steps: int, name: str) -> np.ndarray:
    """The setting's values at (a grid of) the steps 0, …, num_steps − 1, checked.

    A constant has one value: it broadcasts against the others.
    """
    if not callable(setting):
        return np.array([float(setting)])
    points = np.unique(np.linspace(0, num_steps - 1, min(num_steps, _SCHEDULE_POINTS)).astype(int))
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
    """A setting ready for the loop: numbers become arrays, so that a new one does not retrace."""
    return setting if callable(setting) else jnp.asarray(setting, dtype)


def rescale(setting: float | Schedule, factor: float) -> float | Schedule:
    """A number or a schedule times a factor."""
    if callable(setting):
        return lambda t: factor * setting(t)
    return factor * setting


def scaled(setting: Any, factor: float) -> Any:
    """A setting times a factor: a number, a schedule, or a matrix in any of its forms."""
    if callable(setting):
        return rescale(cast(Schedule, setting), factor)
    return jax.tree.map(lambda leaf: factor * leaf, setting)


# V̂ among a sampler's settings: what is taken off the injected noise, or its estimator.

_ROUNDING = 1e-6
"""Relative: all noise may come from the gradient, which is at the edge of what is allowed."""


class NoiseEstimate(eqx.Module):
    """What an estimate of V̂ starts from: a kernel's matrices without gradient noise."""

    fisher: EmpiricalFisher
    noise: pencils.Pencil
    drag: pencils.Pencil | None = None


def check_gradient_noise(value: PyTree | EmpiricalFisher) -> None:
    if not isinstance(value, EmpiricalFisher):
        matrices.check(value, "gradient_noise")


def parse_gradient_noise(value: PyTree | EmpiricalFisher, like: PyTree) -> matrices.Matrix:
    """V̂, or nothing yet where it will be estimated."""
    if not isinstance(value, EmpiricalFisher):
        return matrices.parse(value, like, "gradient_noise", definite=False)
    if value.diagonal:
        return matrices.parse(0.0, like, "gradient_noise", definite=False)
    return matrices.Dense(np.zeros((tree.size(like), tree.size(like))))


def given_fisher(value: PyTree | EmpiricalFisher) -> EmpiricalFisher | None:
    return value if isinstance(value, EmpiricalFisher) else None


def is_subtracted(value: PyTree | EmpiricalFisher) -> bool:
    """Whether anything is, or will be, taken off the injected noise."""
    if isinstance(value, EmpiricalFisher):
        return True
    return any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(value))


def worst_excess(needed: np.ndarray, allowed: np.ndarray) -> tuple[float, float] | None:
    """What V̂ needs and what is allowed, over the steps of a schedule, where that is worst.

    None where it is allowed everywhere.
    """
    needed, allowed = np.broadcast_arrays(needed, allowed)
    worst = (needed - allowed).argmax()
    if needed[worst] <= allowed[worst] * (1 + _ROUNDING):
        return None
    return float(needed[worst]), float(allowed[worst])
