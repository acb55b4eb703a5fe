"""The mode of a target and its curvature there, in double precision.

Whatever the precision of the parameters and of the data: a sum over a million rows in single
precision would move the mode of a badly scaled target by standard deviations.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sghmc.core import tree
from sghmc.posterior import newton
from sghmc.posterior.base import AbstractPosterior
from sghmc.posterior.newton import Minimum
from sghmc.posterior.target import Target
from sghmc.types import PyTree

DENSE_LIMIT = 500
"""Up to so many parameters the whole Hessian is computed, and Newton's method used."""
_FEW_ROWS = 20_000
"""Rows of the first search: with more data, all of them only finish it."""
_PEAK = 30 * newton.CLOSE
"""Standard deviations from a mode: a search that ends farther away has found none."""
_NUM_LBFGS_STEPS = 300
"""Steps of L-BFGS at the most: each is a pass over the data or two."""
_LEAST_LBFGS_STEPS = 10
"""Steps that it makes in any case: the first are short, whatever the scale."""
_LBFGS_FALL = 0.01
"""A fall of the potential below which it ends: that is a tenth of a standard deviation."""
_TANGENTS = 32
"""Directions in which a pass over the data differentiates at once: bounds its memory."""


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
        return self.distance < _PEAK


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
    with jax.enable_x64(True):
        x = np.asarray(tree.ravel(jax.tree.map(_double, start)))
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), start)
        search = newton.minimize if x.size <= DENSE_LIMIT else _quasi_newton
        if isinstance(target, AbstractPosterior) and target.num_examples > 2 * _FEW_ROWS:
            x = search(_Objective(target, like, _some_rows(target, _FEW_ROWS)), x).x
        end = search(_Objective(target, like, None), x)
        position = jax.tree.map(np.asarray, tree.unravel(jnp.asarray(end.x), like))
    if not np.isfinite(end.value):
        raise ModeError(
            f"The search for the mode became non-finite: the potential is {end.value} there. "
            f"Start elsewhere, or look for NaN in the data and log of zero in the model."
        )
    position = jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), position, start)
    return Mode(position, end.value, end.curvature, end.distance)


def hessian(target: Target, position: PyTree, num_rows: int | None = None) -> np.ndarray:
    """∇²U over the raveled parameters, from all data or estimated from some rows."""
    with jax.enable_x64(True):
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), position)
        x = np.asarray(tree.ravel(jax.tree.map(_double, position)))
        rows = None
        if isinstance(target, AbstractPosterior) and num_rows and target.num_examples > num_rows:
            rows = _some_rows(target, num_rows)
        return _Objective(target, like, rows).curvature(x)


def potentials(target: Target, like: PyTree, points: np.ndarray) -> np.ndarray:
    """U at each row of `points`, raveled parameters: a few passes over the data for all."""
    with jax.enable_x64(True):
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), like)
        return np.asarray(_potentials(target, like, jnp.asarray(points, np.float64)))


@eqx.filter_jit
def _potentials(target, like, points):
    def of_point(x):
        return target.potential(tree.unravel(x, like))

    return lax.map(of_point, points, batch_size=_TANGENTS)


class _Objective:
    """U as a function of raveled parameters, over all data or estimated from some rows."""

    def __init__(self, target: Target, like: PyTree, rows: PyTree | None):
        self.target, self.like, self.rows = target, like, rows

    def look(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _value_and_slope(self.target, self.like, self.rows, jnp.asarray(x))
        return float(value), np.asarray(slope)

    def curvature(self, x: np.ndarray) -> np.ndarray:
        matrix = np.asarray(_curvature(self.target, self.like, self.rows, jnp.asarray(x)))
        return (matrix + matrix.T) / 2


@eqx.filter_jit
def _value_and_slope(target, like, rows, x):
    params = tree.unravel(x, like)
    if rows is None:
        value, grad = target.evaluate(params)
    else:
        value, grad = jax.value_and_grad(target.estimate)(params, rows)
    return value, tree.ravel(grad)


@eqx.filter_jit
def _curvature(target, like, rows, x):
    def slope(x):
        return _value_and_slope(target, like, rows, x)[1]

    def column(direction):
        return jax.jvp(slope, (x,), (direction,))[1]

    return lax.map(column, jnp.eye(x.size), batch_size=_TANGENTS)


def _quasi_newton(objective: _Objective, x: np.ndarray) -> Minimum:
    end, value = _lbfgs(objective.target, objective.like, objective.rows, jnp.asarray(x))
    return Minimum(np.asarray(end), float(np.asarray(value)), None, np.inf)


@eqx.filter_jit
def _lbfgs(target, like, rows, x):
    """L-BFGS, until the potential hardly falls."""
    solver = optax.lbfgs()

    def value_of(x):
        params = tree.unravel(x, like)
        return target.potential(params) if rows is None else target.estimate(params, rows)

    evaluate = optax.value_and_grad_from_state(value_of)

    def body(carry):
        x, state, count, before, _ = carry
        value, grad = evaluate(x, state=state)
        updates, state = solver.update(grad, state, x, value=value, grad=grad, value_fn=value_of)
        return optax.apply_updates(x, updates), state, count + 1, value, before - value

    def goes_on(carry):
        count, fall = carry[2], carry[4]
        return (count < _NUM_LBFGS_STEPS) & ((count < _LEAST_LBFGS_STEPS) | (fall > _LBFGS_FALL))

    infinity = jnp.asarray(jnp.inf, x.dtype)
    x, _, _, value, _ = lax.while_loop(goes_on, body, (x, solver.init(x), 0, infinity, infinity))
    return x, value


def _some_rows(target: AbstractPosterior, count: int) -> PyTree:
    order = np.random.default_rng(0).choice(int(target.num_examples), count, replace=False)
    return target.rows(jnp.asarray(np.sort(order)))


def _double(leaf) -> jax.Array:
    return jnp.asarray(leaf, np.float64)
