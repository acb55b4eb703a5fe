"""The mode of a target and its curvature there, in double precision.

Whatever the precision of the parameters and of the data: a sum over a million rows in single
precision would move the mode of a badly scaled target by standard deviations.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sghmc.core import tree, xla
from sghmc.posterior.posterior import Posterior, Target
from sghmc.types import PyTree

DENSE_LIMIT = 500
"""Up to so many parameters the whole Hessian is computed, and Newton's method used."""
_FEW_ROWS = 20_000
"""Rows of the first search: with more data, all of them only finish it."""
_CLOSE = 1e-3
"""How near the mode a search ends, in standard deviations."""
_NUM_NEWTON_STEPS = 100
_DAMPINGS = np.geomspace(1e-3, 1e39, 43)
_LITTLE, _MOST_IDLE = 0.01, 3
_NUM_LBFGS_STEPS = 300
_NUM_LBFGS_AT_ONCE = 20
_TANGENTS = 32
"""Directions in which a pass over the data differentiates at once: bounds its memory."""
_TOGETHER = 8
"""Points that a pass over the data looks at at once, dampings of a step among them: so that one
compiled program serves all that is asked about a potential."""


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
    return mode_of(Surface(target, start), start)


def mode_of(surface: "Surface", start: PyTree) -> Mode:
    """The mode near `start` of a surface over all data."""
    x, target = as_vector(start), surface.target
    search = _newton if x.size <= DENSE_LIMIT else _quasi_newton
    if isinstance(target, Posterior) and target.num_examples > 2 * _FEW_ROWS:
        part = Surface(target, start, _FEW_ROWS, surface.check)
        end = search(part, x, None)
        end = search(surface, end.x, None if end.curvature is None else part)
    else:
        end = search(surface, x, None)
    if not np.isfinite(end.value):
        raise ModeError(
            f"The search for the mode left the finite numbers: the potential is {end.value} there. "
            f"Start elsewhere, or look for NaN in the data and log of zero in the model."
        )
    position = jax.tree.map(jnp.asarray, as_params(end.x, surface.like))
    return Mode(position, end.value, end.curvature, end.distance)


def hessian(target: Target, position: PyTree, num_rows: int | None = None) -> np.ndarray:
    """∇²U over the raveled parameters, from all data or estimated from some rows."""
    return Surface(target, position, num_rows).curvature(as_vector(position))


def as_vector(params: PyTree) -> np.ndarray:
    """The raveled parameters in double precision, on the host."""
    leaves = jax.tree.leaves(params)
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def as_params(vector: np.ndarray, like: PyTree) -> PyTree:
    """Raveled parameters in the shapes and dtypes of `like`; any leading axes stay."""
    leaves, treedef = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(vector, ends[:-1], axis=-1)
    shaped = [
        part.astype(leaf.dtype).reshape((*vector.shape[:-1], *leaf.shape))
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, shaped)


class Surface:
    """U as a function of raveled parameters, over all data or estimated from `num_rows` rows.

    `check()` is called before every pass over the data, and may raise.
    `seconds` is the least that a pass over these data took, for one point, and `compile_seconds`
    what its first call took beyond that; both are known after some `looks`.
    """

    def __init__(
        self,
        target: Target,
        like: PyTree,
        num_rows: int | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        self.target, self.check, self.rows = target, check, None
        self.clock: list[float] = []
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
        self.wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), like)
        if isinstance(target, Posterior):
            count = int(target.num_examples)
            if num_rows is not None and num_rows < count:
                self.rows = _some_rows(target, num_rows)
            self.is_short = min(num_rows or count, count) <= _FEW_ROWS
        else:
            self.is_short = True

    def looks(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """U and ∇U at each row of `points`."""
        values, slopes = [], []
        for first in range(0, len(points), _TOGETHER):
            self.check()
            some = points[first : first + _TOGETHER]
            padded = np.concatenate([some, np.repeat(some[:1], _TOGETHER - len(some), 0)])
            began = _clock()
            value, slope = self._call(_looks, padded)
            self.clock.append(_clock() - began)
            values.append(value[: len(some)])
            slopes.append(slope[: len(some)])
        return np.concatenate(values), np.concatenate(slopes)

    @property
    def seconds(self) -> float:
        return min(self.clock) / _TOGETHER

    @property
    def compile_seconds(self) -> float:
        return self.clock[0] - min(self.clock)

    def potentials(self, points: np.ndarray) -> np.ndarray:
        return self.looks(points)[0]

    def curvature(self, x: np.ndarray) -> np.ndarray:
        self.check()
        matrix = self._call(_curvature, x)
        return (matrix + matrix.T) / 2

    def descend(
        self, x: np.ndarray, goes_on: Callable[[], bool] = lambda: True
    ) -> tuple[np.ndarray, float]:
        """The end of L-BFGS from x, and the potential there."""
        state, value = None, np.nan
        for _ in range(_NUM_LBFGS_STEPS // _NUM_LBFGS_AT_ONCE):
            self.check()
            x, value, fall, state = self._call(_lbfgs, x, state)
            if not (fall > _LITTLE and goes_on()):
                break
        return x, float(value)

    def _call(self, function: Callable, x: np.ndarray, *args) -> Any:
        with jax.enable_x64(True):
            compiled = _compiled(function, self.is_short)
            found = compiled(self.target, self.wide, self.rows, jnp.asarray(x, np.float64), *args)
            return jax.tree.map(np.asarray, found)


def _clock() -> float:
    """Seconds: of this process alone on CPUs, which others may be using, too."""
    return time.perf_counter() if xla.has_accelerator() else time.process_time()


@functools.cache
def _compiled(function: Callable, is_short: bool) -> Any:
    """Where rows are few compilation is what counts, and is left at its least."""
    return eqx.filter_jit(function, **(xla.start_options() if is_short else {}))


def _looks(target, like, rows, points):
    return jax.vmap(lambda x: _look(target, like, rows, x))(points)


def _look(target, like, rows, x):
    params = tree.unravel(x, like)
    if rows is None:
        value, grad = target.evaluate(params)
    else:
        value, grad = jax.value_and_grad(target.estimate)(params, rows)
    return value, tree.ravel(grad)


def _curvature(target, like, rows, x):
    def column(direction):
        return jax.jvp(lambda x: _look(target, like, rows, x)[1], (x,), (direction,))[1]

    if x.size <= _TANGENTS:
        return jax.vmap(column)(jnp.eye(x.size))
    return lax.map(column, jnp.eye(x.size), batch_size=_TANGENTS)


def _lbfgs(target, like, rows, x, state):
    """Some steps, while the potential falls by more than 0.01, a tenth of a standard deviation."""
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
        return (count < _NUM_LBFGS_AT_ONCE) & ((count < 10) | (fall > _LITTLE))

    infinity = jnp.asarray(jnp.inf, x.dtype)
    state = solver.init(x) if state is None else state
    start = (x, state, 0, infinity, infinity)
    x, state, _, value, fall = lax.while_loop(goes_on, body, start)
    return x, value, fall, state


class _End(NamedTuple):
    x: np.ndarray
    value: float
    curvature: np.ndarray | None
    distance: float


def _newton(surface: Surface, x: np.ndarray, bends: Surface | None) -> _End:
    """Newton's method, damped where the potential would not fall.

    A Hessian serves as long as it brings the mode quickly nearer: near the mode a single one does.
    Where `bends` is given, the curvature is that of its rows, as long as that will do. A search
    that gains little where nothing looks like a peak ends.
    """
    (value,), (slope,) = surface.looks(x[None])
    bowl, damping, before = _Bowl((bends or surface).curvature(x)), 0.0, np.inf
    is_fresh, num_idle = True, 0
    for _ in range(_NUM_NEWTON_STEPS):
        distance = bowl.distance(slope)
        if not np.isfinite(value) or distance < _CLOSE:
            break
        if not (is_fresh or distance < before / 4):
            bowl = _Bowl(surface.curvature(x))
            distance = bowl.distance(slope)
        step = _downhill(surface, bowl, x, value, slope, damping)
        if step is None:
            break
        little = max(_LITTLE, 1e-3 * x.size)
        num_idle = num_idle + 1 if value - step[1] < little and np.isinf(distance) else 0
        x, value, slope, damping = step
        before, is_fresh = distance, False
        if num_idle == _MOST_IDLE:
            break
    return _End(x, float(value), bowl.matrix, bowl.distance(slope))


def _downhill(surface: Surface, bowl: "_Bowl", x, value, slope, damping):
    """A step that lowers the potential, with as little damping as that takes; None: there is none.

    A step that would lower it by less than rounding is taken as it is.
    """
    ladder = np.append(damping, _DAMPINGS[1.001 * damping < _DAMPINGS])
    for first in range(0, len(ladder), _TOGETHER):
        some = ladder[first : first + _TOGETHER]
        steps = np.stack([bowl.step(slope, each) for each in some])
        expected = -steps @ slope
        new, slopes = surface.looks(x + steps)
        is_good = (new <= value - 1e-4 * expected) | (np.abs(expected) < 1e-12 * abs(value))
        if is_good.any():
            i = int(np.argmax(is_good))
            return x + steps[i], new[i], slopes[i], some[i] / 10 if some[i] > 1e-6 else 0.0
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


def _quasi_newton(surface: Surface, x: np.ndarray, bends: Surface | None) -> _End:
    x, value = surface.descend(x)
    return _End(x, value, None, np.inf)


def _some_rows(target: Posterior, count: int) -> PyTree:
    order = np.random.default_rng(0).choice(int(target.num_examples), count, replace=False)
    return _rows(target, np.sort(order).astype(np.int32))


@eqx.filter_jit
def _rows(target: Posterior, numbers: np.ndarray) -> PyTree:
    return target.rows(jnp.asarray(numbers))
