"""U and its derivatives over raveled parameters, in float64 on the host, for searches and tuning.

Always in double precision, whatever the parameters and the data have: a sum over a million rows in
single precision would move the mode of a badly scaled target by standard deviations.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sghmc.core import runtime, tree
from sghmc.core.runtime import double_precision
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.types import PyTree

MAX_QUICK_ROWS = 20_000
"""Number of rows up to which compilation takes longer than passes over the data."""
_MAX_LBFGS_STEPS, _LBFGS_BLOCK_STEPS = 300, 20
"""Largest number of steps of L-BFGS, each one or two passes over the data; steps of one block."""
_MIN_LBFGS_STEPS = 10
"""Steps of a block that are made in any case: the first are short, whatever the scale."""
_MIN_LBFGS_DECREASE = 0.01
"""Decrease of U in a step below which L-BFGS ends: about a tenth of a standard deviation."""
_TANGENT_BATCH = 32
"""Number of directions that one pass over the data differentiates in; it bounds the memory."""
_DIRECTIONS_PER_PASS = 8
"""Number of directions that cost as much together as one alone: their products are of matrices."""
_POINT_BATCH = 8
"""Number of points that one pass over the data evaluates; always the same, to compile once."""


class HostPotential:
    """U over all data, or estimated from `num_rows` rows; `like` has the parameters' shapes.

    `check(count)` is called before `count` gradients are evaluated, and may raise.
    """

    def __init__(
        self,
        target: Target,
        like: PyTree,
        num_rows: int | None = None,
        check: Callable[[int], None] = lambda count: None,
    ):
        self.target, self.check, self.rows = target, check, None
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
        self.wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), like)
        self.is_short = True
        if isinstance(target, AbstractPosterior):
            count = int(target.num_examples)
            if num_rows is not None and num_rows < count:
                self.rows = _some_rows(target, num_rows)
            self.is_short = min(num_rows or count, count) <= MAX_QUICK_ROWS

    def subsampled(self, num_rows: int) -> "HostPotential":
        """Return U estimated from `num_rows` rows; itself, if there are not twice as many."""
        target = self.target
        is_long = isinstance(target, AbstractPosterior) and target.num_examples > 2 * num_rows
        return HostPotential(target, self.like, num_rows, self.check) if is_long else self

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return U and ∇U at each row of `points`."""
        values, slopes = [], []
        for first in range(0, len(points), _POINT_BATCH):
            some = points[first : first + _POINT_BATCH]
            self.check(len(some))
            padded = np.concatenate([some, np.repeat(some[:1], _POINT_BATCH - len(some), 0)])
            value, slope = self._call(_evaluate_points, padded)
            values.append(value[: len(some)])
            slopes.append(slope[: len(some)])
        return np.concatenate(values), np.concatenate(slopes)

    def potentials(self, points: np.ndarray) -> np.ndarray:
        return self.evaluate(points)[0]

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return ∇²U(x); a column costs about two gradients."""
        self.check(2 * x.size)
        matrix = self._call(_hessian, x)
        return (matrix + matrix.T) / 2

    def hessian_products(self, x: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return ∇²U(x) times each row of `directions`, several of which share a pass."""
        self.check(math.ceil(2 * len(directions) / _DIRECTIONS_PER_PASS))
        return self._call(_hessian_products, x, directions)

    def descend(
        self, x: np.ndarray, goes_on: Callable[[], bool] = lambda: True
    ) -> tuple[np.ndarray, float]:
        """Run L-BFGS from x while `goes_on()`; return its end and the potential there."""
        state, value = None, np.nan
        for _ in range(_MAX_LBFGS_STEPS // _LBFGS_BLOCK_STEPS):
            self.check(_LBFGS_BLOCK_STEPS)
            x, value, decrease, state = self._call(_lbfgs, x, state)
            if not (decrease > _MIN_LBFGS_DECREASE and goes_on()):
                break
        return x, float(value)

    def _call(self, function: Callable, x: np.ndarray, *args) -> Any:
        with double_precision():
            compiled = _compiled(function, self.is_short)
            found = compiled(self.target, self.wide, self.rows, jnp.asarray(x, np.float64), *args)
            return jax.tree.map(np.asarray, found)


def as_vector(params: PyTree) -> np.ndarray:
    """Return the raveled parameters in double precision, on the host."""
    leaves = jax.tree.leaves(params)
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def as_params(vector: np.ndarray, like: PyTree) -> PyTree:
    """Reshape raveled parameters to the shapes and dtypes of `like`; leading axes stay."""
    leaves, treedef = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(vector, ends[:-1], axis=-1)
    shaped = [
        part.astype(leaf.dtype).reshape((*vector.shape[:-1], *leaf.shape))
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, shaped)


@functools.cache
def _compiled(function: Callable, is_short: bool) -> Any:
    return eqx.filter_jit(function, **(runtime.jit_options("once") if is_short else {}))


def _evaluate_points(target, like, rows, points):
    return jax.vmap(lambda x: _evaluate(target, like, rows, x))(points)


def _evaluate(target, like, rows, x):
    params = tree.unravel(x, like)
    if rows is None:
        value, grad = target.evaluate(params)
    else:
        value, grad = jax.value_and_grad(target.estimate)(params, rows)
    return value, tree.ravel(grad)


def _hessian(target, like, rows, x):
    def column(direction):
        return jax.jvp(lambda x: _evaluate(target, like, rows, x)[1], (x,), (direction,))[1]

    if x.size <= _TANGENT_BATCH:
        return jax.vmap(column)(jnp.eye(x.size))
    return lax.map(column, jnp.eye(x.size), batch_size=_TANGENT_BATCH)


def _hessian_products(target, like, rows, x, directions):
    def product(direction):
        return jax.jvp(lambda x: _evaluate(target, like, rows, x)[1], (x,), (direction,))[1]

    return lax.map(product, directions, batch_size=_TANGENT_BATCH)


def _lbfgs(target, like, rows, x, state):
    """Make a block of steps of L-BFGS, fewer if the potential hardly decreases."""
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
        count, is_falling = carry[2], carry[4] > _MIN_LBFGS_DECREASE
        return (count < _LBFGS_BLOCK_STEPS) & ((count < _MIN_LBFGS_STEPS) | is_falling)

    infinity = jnp.asarray(jnp.inf, x.dtype)
    state = solver.init(x) if state is None else state
    start = (x, state, 0, infinity, infinity)
    x, state, _, value, decrease = lax.while_loop(goes_on, body, start)
    return x, value, decrease, state


def _some_rows(target: AbstractPosterior, count: int) -> PyTree:
    order = np.random.default_rng(0).choice(int(target.num_examples), count, replace=False)
    return _rows(target, np.sort(order).astype(np.int32))


@eqx.filter_jit
def _rows(target: AbstractPosterior, numbers: jax.Array | np.ndarray) -> PyTree:
    return target.rows(jnp.asarray(numbers))
