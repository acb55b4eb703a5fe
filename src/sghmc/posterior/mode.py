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
from sghmc.posterior.posterior import Posterior, Target
from sghmc.types import PyTree

DENSE_LIMIT = 500
"""Up to so many parameters the whole Hessian is computed, and Newton's method used."""
_FEW_ROWS = 20_000
"""Rows of the first search: with more data, all of them only finish it."""
_CLOSE = 1e-3
"""How near the mode a search ends, in standard deviations."""
_NUM_NEWTON_STEPS = 100
_NUM_DAMPINGS = 40
_NUM_LBFGS_STEPS = 300
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
        return self.distance < 30 * _CLOSE


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
        search = _newton if x.size <= DENSE_LIMIT else _quasi_newton
        if isinstance(target, Posterior) and target.num_examples > 2 * _FEW_ROWS:
            x = search(_Objective(target, like, _some_rows(target, _FEW_ROWS)), x).x
        end = search(_Objective(target, like, None), x)
        position = jax.tree.map(np.asarray, tree.unravel(jnp.asarray(end.x), like))
    if not np.isfinite(end.value):
        raise ModeError(
            f"The search for the mode left the finite numbers: the potential is {end.value} there. "
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
        if isinstance(target, Posterior) and num_rows and target.num_examples > num_rows:
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


class _End(NamedTuple):
    x: np.ndarray
    value: float
    curvature: np.ndarray | None
    distance: float


def _newton(objective: _Objective, x: np.ndarray) -> _End:
    """Newton's method, damped where the potential would not fall.

    A Hessian serves as long as it brings the mode quickly nearer: near the mode a single one does.
    """
    value, slope = objective.look(x)
    bowl, damping, before = _Bowl(objective.curvature(x)), 0.0, np.inf
    is_fresh = True
    for _ in range(_NUM_NEWTON_STEPS):
        distance = bowl.distance(slope)
        if not np.isfinite(value) or distance < _CLOSE:
            break
        if not (is_fresh or distance < before / 4):
            bowl = _Bowl(objective.curvature(x))
            distance = bowl.distance(slope)
        step = _downhill(objective, bowl, x, value, slope, damping)
        if step is None:
            break
        x, value, slope, damping = step
        before, is_fresh = distance, False
    return _End(x, value, bowl.matrix, bowl.distance(slope))


def _downhill(objective: _Objective, bowl: "_Bowl", x, value, slope, damping):
    """A step that lowers the potential, with as little damping as that takes; None: there is none.

    A step that would lower it by less than rounding is taken as it is.
    """
    for _ in range(_NUM_DAMPINGS):
        step = bowl.step(slope, damping)
        expected = -slope @ step
        new, new_slope = objective.look(x + step)
        if new <= value - 1e-4 * expected or abs(expected) < 1e-12 * abs(value):
            return x + step, new, new_slope, damping / 10 if damping > 1e-6 else 0.0
        damping = max(10 * damping, 1e-3)
    return None


class _Bowl:
    """A Hessian scaled to a unit diagonal, so that units of parameters do not matter."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix
        diagonal = np.abs(matrix.diagonal())
        smallest = np.finfo(float).tiny + 1e-30 * diagonal.max(initial=0.0)
        self.scale = np.sqrt(np.maximum(diagonal, smallest))
        is_finite = bool(np.all(np.isfinite(matrix)))
        scaled = matrix / np.outer(self.scale, self.scale) if is_finite else np.eye(len(matrix))
        self.values, self.vectors = np.linalg.eigh(scaled)

    def step(self, slope: np.ndarray, damping: float) -> np.ndarray:
        """−(H + μD)⁻¹g; directions that bend down are taken as if they bent up."""
        along = self.vectors.T @ (slope / self.scale)
        bend = np.maximum(np.abs(self.values), 1e-14) + damping
        return -(self.vectors @ (along / bend)) / self.scale

    def distance(self, slope: np.ndarray) -> float:
        if self.values[0] <= 0 or not np.all(np.isfinite(slope)):
            return np.inf
        along = self.vectors.T @ (slope / self.scale)
        return float(np.sqrt(np.sum(along**2 / self.values)))


def _quasi_newton(objective: _Objective, x: np.ndarray) -> _End:
    end, value = _lbfgs(objective.target, objective.like, objective.rows, jnp.asarray(x))
    return _End(np.asarray(end), float(np.asarray(value)), None, np.inf)


@eqx.filter_jit
def _lbfgs(target, like, rows, x):
    """Until the potential falls by less than 0.01, that is a tenth of a standard deviation."""
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
        return (count < _NUM_LBFGS_STEPS) & ((count < 10) | (fall > 0.01))

    infinity = jnp.asarray(jnp.inf, x.dtype)
    x, _, _, value, _ = lax.while_loop(goes_on, body, (x, solver.init(x), 0, infinity, infinity))
    return x, value


def _some_rows(target: Posterior, count: int) -> PyTree:
    order = np.random.default_rng(0).choice(int(target.num_examples), count, replace=False)
    return target.rows(jnp.asarray(np.sort(order)))


def _double(leaf) -> jax.Array:
    return jnp.asarray(leaf, np.float64)
