"""V̂ among a sampler's settings: what is taken off the injected noise, or its estimator."""

import equinox as eqx
import jax
import numpy as np

from sghmc.core import matrices, pencils, tree
from sghmc.gradients.fisher import EmpiricalFisher
from sghmc.types import PyTree

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
