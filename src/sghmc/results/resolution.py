"""Whether a step is larger than the last digit of the parameters that it moves, or heats them."""

import math
import numbers
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.results.origin import Origin
from sghmc.samplers.base import Sampler
from sghmc.samplers.rounding import StochasticRounding, last_digit, rounding_variance
from sghmc.types import PyTree

_HEAT = 0.1
"""What rounding may add to variances, relative to them, before it is said."""


def resolution_fault(origin: Origin, positions: PyTree) -> str | None:
    """What is wrong with steps that rounding swallows: chains stick where numbers are large."""
    if isinstance(origin.sampler, StochasticRounding):
        return _heat_fault(origin.sampler, origin.temperature, positions)
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
                f"steps, parameters of more digits or, in bfloat16, StochasticRounding"
            )
    return None


def _heat_fault(sampler: Sampler, temperature: float, positions: PyTree) -> str | None:
    """What is wrong where rounding by chance adds to the spread: arrays (chain, draw, …)."""
    for leaf in jax.tree.leaves(positions):
        if leaf.dtype != jnp.bfloat16:
            continue
        heat = rounding_heat(sampler, temperature, np.asarray(leaf, np.float64))
        if heat is not None and heat > _HEAT:
            return (
                f"rounding to bfloat16 adds {heat:.0%} to the variance of parameters: take larger "
                f"steps, over which its noise is spread, or parameters of more digits"
            )
    return None


def rounding_heat(sampler: Sampler, temperature: float, draws: np.ndarray) -> float | None:
    """What stochastic rounding adds to variances, relative to them, for small steps.

    The mean over the parameters of draws (chain, draw, …); None where settings are no numbers.
    """
    move = _typical_move(sampler, temperature)
    if not move:
        return None
    settings, dynamics = sampler.settings, sampler.dynamics
    per_draw = rounding_variance(move, last_digit(draws))
    added, spread = per_draw.mean((0, 1)), draws.var((0, 1))
    moving = spread > 0
    if not moving.any():
        return None
    added, spread = added[moving], spread[moving]
    step, friction, mass = settings.get("step_size"), dynamics.friction, settings.get("mass")
    if friction is None:
        return float(np.mean(added)) / move**2
    if not (_is_number(friction) and _is_number(step) and _is_number(mass) and friction):
        return None
    rate, heat = friction / mass, temperature / mass
    return float(np.mean(added / step * (1 / (2 * rate * spread) + rate / (2 * heat))))


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
