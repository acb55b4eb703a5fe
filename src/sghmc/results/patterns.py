"""Patterns in draws and models that name a remedy: heavy tails, funnels, unused examples."""

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.types import PyTree

# Shares of the draws, the farthest from the median, by which a tail is judged; and the fewest.
_TAIL_SHARES, _MIN_TAIL_DRAWS = (0.01, 0.025, 0.05), 20
# From a tail index of 2 on (its inverse: 0.5) there is no standard deviation. Estimates of lighter
# tails by n draws, Student's t with 2½ degrees of freedom or a lognormal, stay below 0.5 + 4/√n.
_MAX_INVERSE_TAIL_INDEX, _TAIL_INDEX_SLACK = 0.5, 4.0
_NUM_NAMED = 3
# A funnel: among this share of the draws, the smallest or the largest of some number, acceptance is
# below this multiple of the mean.
_FUNNEL_SHARE, _MAX_RELATIVE_ACCEPTANCE = 0.05, 0.5
NON_CENTRE = (
    "the spread of other parameters goes with it, a funnel that no step size fits: write the model "
    "non-centred, x = mean + sd·z with z ~ N(0, 1) as the parameter, and sd > 0 by "
    'sghmc.transforms.Space({"sd": sghmc.transforms.Positive()})'
)
# On what a part of a log-likelihood depends: parameters, arrays with a row for each example, or its
# example. With fewer rows an axis of this length may be another one.
_PARAMS, _ROWS, _EXAMPLE, _MIN_ROWS = 1, 2, 4, 20


def heavy_tails(draws: np.ndarray) -> bool:
    """Return whether draws of one number are too far-flung for a standard deviation.

    By Hill's estimator of the tail index, at several shares of the draws: all must say so.
    """
    away = np.asarray(draws, np.float64).ravel()
    if away.size == 0 or not np.all(np.isfinite(away)):
        return False
    away = np.sort(np.abs(away - np.median(away)))
    found = []
    for share in _TAIL_SHARES:
        count = max(_MIN_TAIL_DRAWS, int(share * away.size))
        if count >= away.size / 2 or away[-count - 1] <= 0:
            return False
        found.append(np.mean(np.log(away[-count:] / away[-count - 1])))
    limit = _MAX_INVERSE_TAIL_INDEX + _TAIL_INDEX_SLACK / math.sqrt(away.size)
    return bool(min(found) > limit)


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


def rejected_tail(
    quantities: Mapping[str, np.ndarray], acceptance: np.ndarray | None
) -> str | None:
    """Return the advice to non-centre if steps are rejected where some number is large or small.

    As in a funnel, whose narrow end no step size for its wide end enters: draws there are few, and
    R-hat is 1. `acceptance` has an entry for every draw.
    """
    if acceptance is None or acceptance.size * _FUNNEL_SHARE < _MIN_TAIL_DRAWS:
        return None
    accepted = np.nan_to_num(acceptance, nan=0.0).ravel()
    count, least = int(_FUNNEL_SHARE * accepted.size), accepted.mean() * _MAX_RELATIVE_ACCEPTANCE
    for name, draws in quantities.items():
        in_order = np.argsort(np.ravel(draws))
        for words, tail in (("small", in_order[:count]), ("large", in_order[-count:])):
            if accepted[tail].mean() < least:
                return (
                    f"steps are rejected where {name} is {words} ({accepted[tail].mean():.0%} "
                    f"accepted, else {accepted.mean():.0%}), so that draws there are too few: "
                    f"{NON_CENTRE}"
                )
    return None


def misused_example(target: Target, positions: PyTree) -> tuple[str | None, str | None]:
    """Return what is wrong with a log-likelihood that is not that of its example, and what may be.

    Its trace does not use the example, or sums over arrays with a row for each example.
    """
    if not isinstance(target, AbstractPosterior):
        return None, None
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), positions)
    hyper = () if target.hyper is None else (target.hyper,)
    count = int(target.num_examples)
    # Closed over, so that the example's variables come last.
    try:
        closed = jax.make_jaxpr(lambda p, row: target.log_likelihood(p, row, *hyper))(
            like, target.example
        )
    except Exception:  # whatever a user's function raises if the draws are not its parameters
        return None, None
    num_params = len(jax.tree.leaves(like))
    given = [_PARAMS] * num_params + [_EXAMPLE] * (len(closed.jaxpr.invars) - num_params)
    (used,), sums = _flow(closed, given, count)
    remedy = "write the log-likelihood of one example, or take sghmc.Potential(U) with the sum"
    if not used & _EXAMPLE:
        return (
            f"log_likelihood(params, example) does not use its example: each of the {count:,} rows "
            f"adds the same number, as if all data came as often; {remedy} over all"
        ), None
    sums = [flags for flags in sums if count >= _MIN_ROWS and flags & _PARAMS and flags & _ROWS]
    if not sums:
        return None, None
    if all(flags & _EXAMPLE for flags in sums):
        return None, (
            f"log_likelihood(params, example) sums over all {count:,} rows for each of them: if "
            f"that is the log-likelihood of all data, it counts {count:,} times; {remedy}"
        )
    return (
        f"log_likelihood(params, example) sums over all {count:,} rows whatever its example is: "
        f"that sum counts {count:,} times; {remedy}"
    ), None


def _flow(
    closed: ClosedJaxpr, given: Sequence[int], count: int
) -> tuple[tuple[int, ...], list[int]]:
    """Return on what a program's results depend, and its sums over an axis of length `count`.

    `given` says on what its arguments depend. A row that the example chooses is no longer of all.
    """
    jaxpr, sums = closed.jaxpr, []
    known = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> int:
        is_constant = isinstance(atom, Literal) or atom not in known
        if not is_constant:
            return known[atom]
        return _ROWS if getattr(atom.aval, "shape", ())[:1] == (count,) else 0

    for equation in jaxpr.eqns:
        flags = [of(atom) for atom in equation.invars]
        union = functools.reduce(operator.or_, flags, 0)
        inner = [each for each in equation.params.values() if isinstance(each, ClosedJaxpr)]
        found = (union,) * len(equation.outvars)
        if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(flags):
            found, more = _flow(inner[0], flags, count)
            sums += more
        elif equation.primitive.name in ("gather", "dynamic_slice"):
            if any(each & _EXAMPLE for each in flags[1:]):
                found = (union & ~_ROWS,)
        elif any(count in atom.aval.shape and of(atom) & _ROWS for atom in equation.invars) and all(
            count not in atom.aval.shape for atom in equation.outvars
        ):
            sums.append(union)
        known.update(zip(equation.outvars, found, strict=True))
    return tuple(of(atom) for atom in jaxpr.outvars), sums
