"""Patterns in draws and models that name a remedy: heavy tails, funnels, unused examples."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.types import PyTree

# Shares of the draws, the farthest from the median, by which a tail is judged; and the fewest.
_TAIL_SHARES, _MIN_TAIL_DRAWS = (0.01, 0.025, 0.05), 20
# From a tail index of 2 on (its inverse: 0.5) there is no standard deviation. Estimates of lighter
# tails reach that too: those of Student's t with 3 degrees of freedom or of a lognormal.
_MAX_INVERSE_TAIL_INDEX = 0.7
# A funnel: the logarithm of how far some numbers lie from their medians goes with another number.
_MIN_FUNNEL_CORRELATION = 0.35
_MAX_FUNNEL_QUANTITIES, _MAX_FUNNEL_DRAWS, _NUM_NAMED = 100, 4_000, 3


def heavy_tails(draws: np.ndarray) -> bool:
    """Return whether draws of one number are too far-flung for a standard deviation.

    By Hill's estimator of the tail index, at several shares of the draws: all must say so.
    """
    away = np.asarray(draws, np.float64).ravel()
    if not np.all(np.isfinite(away)):
        return False
    away = np.sort(np.abs(away - np.median(away)))
    found = []
    for share in _TAIL_SHARES:
        count = max(_MIN_TAIL_DRAWS, int(share * away.size))
        if count >= away.size / 2 or away[-count - 1] <= 0:
            return False
        found.append(np.mean(np.log(away[-count:] / away[-count - 1])))
    return bool(min(found) > _MAX_INVERSE_TAIL_INDEX)


def tail_care(quantities: Mapping[str, np.ndarray]) -> str | None:
    """Return what to mind if some numbers have no standard deviation, with quantiles of one."""
    heavy = [name for name, draws in quantities.items() if heavy_tails(draws)]
    if not heavy:
        return None
    low, middle, high = np.quantile(quantities[heavy[0]], (0.05, 0.5, 0.95))
    named = ", ".join(heavy[:_NUM_NAMED]) + (" and others" if len(heavy) > _NUM_NAMED else "")
    return (
        f"the tails of {named} are so heavy that mean and standard deviation may not exist, and no "
        f"number of draws determines them: read quantiles (of {heavy[0]}: 5 % {low:.3g}, median "
        f"{middle:.3g}, 95 % {high:.3g})"
    )


def funnel_advice(quantities: Mapping[str, np.ndarray]) -> str | None:
    """Return the advice to non-centre if the spread of some numbers depends on another one."""
    names = list(quantities)[:_MAX_FUNNEL_QUANTITIES]
    if len(names) < 2:
        return None
    draws = np.stack([np.asarray(quantities[name], np.float64) for name in names])
    draws = draws[:, :, :: max(1, draws[0].size // _MAX_FUNNEL_DRAWS)]
    is_moving = np.ptp(draws, axis=(1, 2)) > 0
    if not np.all(np.isfinite(draws)) or is_moving.sum() < 2 or draws[0].size < _MIN_TAIL_DRAWS:
        return None
    draws, names = draws[is_moving], [n for n, moves in zip(names, is_moving, strict=True) if moves]
    # Inside of each chain: chains that sit apart are another fault.
    ranks = np.argsort(np.argsort(draws, axis=2), axis=2).reshape(len(draws), -1)
    away = np.abs(draws - np.median(draws, axis=2, keepdims=True))
    logs = np.log(away + 1e-12 * away.max(axis=(1, 2), keepdims=True) + np.finfo(float).tiny)
    logs = (logs - logs.mean(2, keepdims=True)).reshape(len(draws), -1)
    size = len(draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        related = np.nan_to_num(np.abs(np.corrcoef(ranks, logs)[:size, size:]))
    np.fill_diagonal(related, 0.0)
    counts = (related > _MIN_FUNNEL_CORRELATION).sum(1)
    scale = int(np.argmax(counts))
    if counts[scale] < min(2, size - 1):
        return None
    narrowed = [names[j] for j in np.flatnonzero(related[scale] > _MIN_FUNNEL_CORRELATION)]
    shown = ", ".join(narrowed[:_NUM_NAMED]) + (" and others" if len(narrowed) > _NUM_NAMED else "")
    return (
        f"the spread of {shown} depends on {names[scale]}, a funnel that no step size fits: write "
        f"the model non-centred, x = mean + sd·z with z ~ N(0, 1) as the parameter, and sd > 0 by "
        f'sghmc.transforms.Space({{"sd": sghmc.transforms.Positive()}})'
    )


def unused_example(target: Target, positions: PyTree) -> str | None:
    """Return what is wrong with a log-likelihood whose trace does not use its example."""
    if not isinstance(target, AbstractPosterior):
        return None
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), positions)
    hyper = () if target.hyper is None else (target.hyper,)
    # Closed over, so that the example's variables come last.
    try:
        closed = jax.make_jaxpr(lambda p, row: target.log_likelihood(p, row, *hyper))(
            like, target.example
        )
    except Exception:  # whatever a user's function raises if the draws are not its parameters
        return None
    if _is_used(closed.jaxpr, len(jax.tree.leaves(target.example))):
        return None
    return (
        f"log_likelihood(params, example) does not use its example: each of the "
        f"{int(target.num_examples):,} rows adds the same number, as if all data came as often; "
        f"write the log-likelihood of one example, or take sghmc.Potential(U) with the sum over all"
    )


def _is_used(jaxpr: Any, num_last: int) -> bool:
    """Return whether any of the last arguments of a program reaches its result."""
    needed = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    for equation in reversed(jaxpr.eqns):
        if any(variable in needed for variable in equation.outvars):
            needed |= {atom for atom in equation.invars if not isinstance(atom, Literal)}
    return any(variable in needed for variable in jaxpr.invars[len(jaxpr.invars) - num_last :])
