"""Whether a step is larger than the last digit of the parameters that it moves."""

import math
import numbers
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.results.origin import Origin
from sghmc.samplers.base import Sampler
from sghmc.types import PyTree


def resolution_fault(origin: Origin, positions: PyTree) -> str | None:
    """What is wrong with steps that rounding swallows: chains stick where numbers are large."""
    move = _typical_move(origin.sampler, origin.temperature)
    if not move:
        return None
    for leaf in jax.tree.leaves(positions):
        size = math.sqrt(np.mean(np.square(np.asarray(leaf, np.float64))))
        digit = float(jnp.finfo(leaf.dtype).eps) * size
        if move < digit:
            return (
                f"a step moves parameters by about {move:.1g}, but the last digit of {leaf.dtype} "
                f"numbers of their size is {digit:.1g}: moves are lost in rounding; take larger "
                f"steps, or parameters of more digits"
            )
    return None


def _typical_move(sampler: Sampler, temperature: float) -> float | None:
    """The root mean square of a parameter's move in a step; None where it is not one number."""
    settings = sampler.settings
    step, mass = settings.get("step_size"), settings.get("mass")
    preconditioner = sampler.dynamics.preconditioner
    if _is_number(step) and _is_number(mass):
        return step * math.sqrt(temperature / mass)
    if _is_number(step) and _is_number(preconditioner):
        return math.sqrt(2 * step * temperature * preconditioner)
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) or (hasattr(value, "shape") and value.shape == ())
