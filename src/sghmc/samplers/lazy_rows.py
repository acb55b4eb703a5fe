"""Many steps of SGHMC under a Gaussian prior at once, from their exact law.

Where a step sees no data its force is the prior's alone. With x = θ − μ, v the velocity, by which θ
moves in a step, α the decay of v, h = ηλ the learning rate times the prior's precision,

    v ← (1 − α)v − hx + s n,  x ← x + v        n standard normal

so that k steps are z ← Fᵏz + N(0, s²Q_k) with z = (x, v), Q_k = Σ_{j<k} Fʲ(1, 1)ᵀ(1, 1)Fʲᵀ and

    F = I + A,  A = (−h, 1 − α; −h, −α),  A² = −(h + α)A − hI.

A power of F therefore has two numbers, Fᵏ = (1 − hb)I + aA. Q_k has two more, the variances of x
and of v: their covariance is ½(a² + Var v), since 2xv − v² is what x² grows by in a step, and a is
where k − 1 steps after a kick of 1 lead.

Numbers k are built from their binary digits, the leading one first: doubled, and one more step
where the digit is 1. No sum here is a difference of nearly equal numbers, however small α and h
are, and nothing is divided by what vanishes where the damping is critical: single precision is
enough.

Below that stand the rows of parameter tables that `Lazy` moves: by index, or as a range.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32, UInt32

from sghmc.core import runtime, tree
from sghmc.types import PyTree

_SHORT_RUN_DIGITS, _ANY_RUN_DIGITS = 17, 31
"""Binary digits of a number of steps: in runs below 2¹⁷ = 131,072 steps, and in all others."""


class PriorStep(NamedTuple):
    """Coefficients α, h, s and μ of a step by the prior alone, entry by entry."""

    decay: jax.Array
    stiffness: jax.Array
    spread: jax.Array
    mean: jax.Array


class Power(NamedTuple):
    """The numbers a and b of Fᵏ, and the variances of x and v in Q_k."""

    a: jax.Array
    b: jax.Array
    xx: jax.Array
    vv: jax.Array

    @property
    def xv(self) -> jax.Array | np.ndarray | np.floating:
        return 0.5 * (self.a**2 + self.vv)


def num_digits(num_steps: int) -> int:
    """Return the binary digits of step counts: one of two numbers, so that runs share programs."""
    return _SHORT_RUN_DIGITS if num_steps < 1 << _SHORT_RUN_DIGITS else _ANY_RUN_DIGITS


def make_steps(
    count: jax.Array,
    prior: PriorStep,
    position: jax.Array,
    velocity: jax.Array,
    normals: tuple[jax.Array, jax.Array],
    digits: int,
) -> tuple[jax.Array, jax.Array]:
    """Return position and velocity after `count` steps, entry by entry; 0 steps change no bit."""
    decay, stiffness, spread, mean = prior
    power = steps_power(count, decay, stiffness, digits)
    first, second = normals
    # A Cholesky root of Q, v first. After one step x and v have the same noise: the rest of the
    # variance of x is then 0 up to rounding, which may be negative.
    of_velocity = jnp.sqrt(power.vv)
    along = power.xv / jnp.where(power.vv > 0, of_velocity, 1)
    across = jnp.sqrt(jnp.maximum(power.xx - along**2, 0))
    a, pull, away = power.a, stiffness * power.b, position - mean
    drift = (1 - decay) * a * velocity - (stiffness * a + pull) * away
    change = -stiffness * a * away - (decay * a + pull) * velocity
    return (
        position + (drift + spread * (along * first + across * second)),
        velocity + (change + spread * of_velocity * first),
    )


def steps_power(count: jax.Array, decay, stiffness, digits: int) -> Power:
    """Return Fᵏ and Q_k for numbers of steps k below 2^digits, entry by entry."""
    shape = jnp.broadcast_shapes(*(jnp.shape(each) for each in (count, decay, stiffness)))
    power = Power(*[jnp.zeros(shape, jnp.result_type(decay, stiffness))] * 4)

    def next_digit(i, power):
        doubled = _doubled(power, decay, stiffness)
        longer = _one_more(doubled, decay, stiffness)
        is_one = (count >> (digits - 1 - i)) & np.int32(1) == 1
        return Power(*(jnp.where(is_one, x, y) for x, y in zip(longer, doubled, strict=True)))

    if runtime.has_accelerator():
        # Unrolled: each turn of a loop would be a launch, and its length a sync with the host.
        for i in range(digits):
            power = next_digit(np.int32(i), power)
        return power
    unused = lax.clz(jnp.max(count)) - np.int32(32 - digits)
    return lax.fori_loop(unused, digits, next_digit, power)


def _doubled(power: Power, decay, stiffness) -> Power:
    """Go from k to 2k steps: F²ᵏ = FᵏFᵏ and Q_2k = Q_k + Fᵏ Q_k Fᵏᵀ."""
    a, b, xx, vv = power
    pull = stiffness * b
    x_by_x, x_by_v = 1 - stiffness * a - pull, (1 - decay) * a  # the entries of Fᵏ
    v_by_x, v_by_v = -stiffness * a, 1 - decay * a - pull
    return Power(
        a * (2 - 2 * pull - (stiffness + decay) * a),
        b * (2 - pull) + a**2,
        xx + x_by_x * (x_by_x * xx + 2 * x_by_v * power.xv) + x_by_v**2 * vv,
        vv + v_by_x * (v_by_x * xx + 2 * v_by_v * power.xv) + v_by_v**2 * vv,
    )


def _one_more(power: Power, decay, stiffness) -> Power:
    """Go from k to k + 1 steps, with x moved by the new v."""
    a, b, xx, vv = power
    kept = 1 - decay
    new = 1 + kept**2 * vv + stiffness * (stiffness * xx - 2 * kept * power.xv)
    return Power(
        1 + a - stiffness * b - (stiffness + decay) * a,
        b + a,
        xx + 2 * (kept * power.xv - stiffness * xx) + new,
        new,
    )


# Rows of parameter tables, by index or as a range.

COPIES = 3
"""Normals of a parameter in a step: one for the step, two for the steps that it skipped before."""


class ParameterTable(NamedTuple):
    """An array of parameters viewed as rows, and the number of entries before its first."""

    shape: tuple[int, ...]
    first: int

    @property
    def num_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        return math.prod(self.shape[1:])

    def by_row(self, entries: jax.Array) -> jax.Array:
        """Reshape entries to rows and columns; a number for all stays a number."""
        return entries if jnp.ndim(entries) == 0 else entries.reshape(self.num_rows, self.width)

    def columns(self, rows: jax.Array) -> jax.Array:
        """Reshape values of rows, or one for all, to the shape (row or 1, column or 1)."""
        rows = rows.reshape(-1, *rows.shape[1:])
        if rows.size > len(rows):
            rows = jnp.broadcast_to(rows, (len(rows), *self.shape[1:]))
        return rows.reshape(len(rows), -1)

    def slots(self, numbers: Int32[Array, " row"]) -> UInt32[Array, "row column"]:
        """Return the slot of each entry's first normal among all normals of a step."""
        starts = np.uint32(self.first) + numbers.astype(jnp.uint32) * np.uint32(self.width)
        entries = starts[:, None] + lax.iota(jnp.uint32, self.width)[None]
        return entries * np.uint32(COPIES)


def tables_of(like: PyTree) -> tuple[ParameterTable, ...]:
    leaves = jax.tree.leaves(like)
    firsts = np.cumsum([0, *tree.sizes(like)[:-1]])
    return tuple(ParameterTable(leaf.shape, int(n)) for leaf, n in zip(leaves, firsts, strict=True))


class RowIndex(NamedTuple):
    """Rows of a table by their numbers, in any order, some more than once."""

    numbers: Int32[Array, " row"]

    def shape(self, table: ParameterTable) -> tuple[int, ...]:
        return (len(self.numbers), *table.shape[1:])

    def of(self, array: jax.Array) -> jax.Array:
        if jnp.ndim(array) == 0:
            return array
        # A number that no row has gives NaN, so that its result cannot be taken for a draw.
        missing = jnp.nan if jnp.issubdtype(array.dtype, jnp.floating) else 0
        return array.at[self.numbers].get(mode="fill", fill_value=missing)

    def put(self, array: jax.Array, rows: jax.Array) -> jax.Array:
        """Write the rows; a row that comes more than once must do so with the same entries."""
        return array.at[self.numbers].set(rows.astype(array.dtype))

    def put_sum(self, array: jax.Array, rows: jax.Array, added: jax.Array):
        """Write the rows plus the sum of all that is added to each; return also these sums."""
        array = self.put(array, rows).at[self.numbers].add(added.astype(array.dtype))
        return array, self.of(array)


class RowRange(NamedTuple):
    """Consecutive rows of a table, read and written as one slice."""

    start: Int32[Array, ""]
    length: int

    @property
    def numbers(self) -> Int32[Array, " row"]:
        return self.start + lax.iota(jnp.int32, self.length)

    def shape(self, table: ParameterTable) -> tuple[int, ...]:
        return (self.length, *table.shape[1:]) if table.shape else ()

    def of(self, array: jax.Array) -> jax.Array:
        if jnp.ndim(array) == 0:
            return array
        return lax.dynamic_slice_in_dim(array, self.start, self.length)

    def put(self, array: jax.Array, rows: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(array, rows.astype(array.dtype), self.start, 0)

    def put_sum(self, array: jax.Array, rows: jax.Array, added: jax.Array):
        return self.put(array, rows + added), rows + added


class TableState(NamedTuple):
    """The state of one table, by rows."""

    position: Float[Array, "row column"]
    velocity: Float[Array, "row column"]
    made: Int32[Array, " row"]


class RowStates(NamedTuple):
    """Some rows of a table: their state, and the coefficients of their steps."""

    chosen: RowIndex | RowRange
    position: Float[Array, "row column"]
    velocity: Float[Array, "row column"]
    made: Int32[Array, " row"]
    learning_rate: Float[Array, "row column"] | Float[Array, ""]
    prior: PriorStep
