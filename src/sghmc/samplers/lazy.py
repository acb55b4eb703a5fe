"""SGHMC for parameter tables: a step costs as much as the rows that its batch uses."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32

from sghmc.core import matrices, random, runtime, tree
from sghmc.core.checks import value_at
from sghmc.core.runtime import in_pieces
from sghmc.gradients import Oracle
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.samplers import Kernel, LazyRows, Sampler, Traits
from sghmc.samplers.lazy_rows import (
    COPIES,
    ParameterTable,
    PriorStep,
    RowIndex,
    RowRange,
    RowStates,
    TableState,
    make_steps,
    num_digits,
    tables_of,
)
from sghmc.samplers.sghmc import SGHMC, SGHMCKernel
from sghmc.samplers.wrappers import KernelWrapper, SamplerWrapper
from sghmc.types import Normals, PyTree, Step, StepInfo

_FLUSHED_ON_CPU, _FLUSHED_ON_ACCELERATOR = 1 << 15, 1 << 24
"""Number of parameters that `flush` updates at once: on a CPU few enough to stay in its cache, on
an accelerator enough to need few launches. Both bound the memory that a flush takes."""


NormalsAt: TypeAlias = Callable[[UInt32[Array, "*slots"]], Float[Array, "*slots"]]
"""A function that returns a step's normals at the given slots."""


class Lazy(SamplerWrapper):
    """SGHMC for parameter tables of which a batch uses few rows; the other rows move when needed.

    A row that no example of a batch uses moves in that step by its prior N(μ, 1/λ) alone. So its
    next k steps are one draw from an exact law (x = θ − μ, v the velocity):

        (x, v) ← Fᵏ(x, v) + N(0, Q_k)

    Every row counts the steps that it has made. The rows that a batch uses first make up their
    skipped steps by this law, then make the step of `sampler` with the batch's gradient. All rows
    make up their skipped steps before anything reads all of them: draws, averages, Gibbs updates
    and adaptations.

    | field | meaning |
    | --- | --- |
    | `sampler` | `SGHMC(…)`: numbers or diagonals, no schedules, never resampled |

    Law: that of `sampler` itself, exactly, whatever the batches. (Not the same numbers: a row has
    fewer normals.) The posterior has a `RowLikelihood` and a `RowPrior`, gradients are those of
    `Minibatch`. It pays where a batch uses a small part of all rows and draws are many steps apart,
    since each draw costs a pass over all parameters.

    >>> import sghmc
    >>> sghmc.Lazy(sghmc.SGHMC(0.1, friction=1.0)).name
    'Lazy(SGHMC)'
    """

    traits: ClassVar[Traits] = Traits(
        "that of `SGHMC`, exactly",
        "as `SGHMC`",
        "large tables of parameters, of which a batch uses few rows",
    )

    sampler: Sampler

    def __check_init__(self):
        sampler = self.sampler
        if type(sampler) is not SGHMC:  # a subclass may step otherwise
            raise TypeError(
                f"Lazy needs SGHMC(…), whose skipped steps have a law, not {sampler!r}."
            )
        if sampler.schedules:
            name = next(iter(sampler.schedules))
            raise ValueError(
                f"Lazy takes many equal steps at once, but {name} follows a schedule: give a "
                f"number, or take SGHMC itself."
            )
        if sampler.resample_every is not None:
            raise ValueError("Lazy never draws fresh momenta: leave resample_every out.")
        if isinstance(sampler.gradient_noise, EmpiricalFisher):
            raise ValueError(
                "Lazy knows its noise before it runs, but EmpiricalFisher estimates it: give "
                "gradient_noise as numbers, or 0."
            )

    @property
    def eager(self) -> Sampler:
        return self.sampler

    def prepare(self, like: PyTree, num_steps: int = 1) -> "LazyKernel":
        inner = self.sampler.prepare(like, num_steps)
        assert isinstance(inner, SGHMCKernel)
        if not all(isinstance(m, matrices.Diagonal) for m in (inner.decay, inner.learning_rate)):
            raise ValueError(
                "Lazy moves rows one by one: give mass, friction and gradient_noise as numbers or "
                "as pytrees like the parameters, not as dense matrices."
            )
        if COPIES * tree.size(like) >= 1 << 32:
            raise ValueError(
                f"Lazy numbers the normals of a step by 32 bits, which {tree.size(like):,} "
                f"parameters exceed: spread them over several tables and runs."
            )
        return LazyKernel(inner, tables_of(like), num_digits(num_steps))


class LazyState(NamedTuple):
    """SGHMC's state, and in `made` the number of steps that each row of each array has made."""

    position: PyTree
    velocity: PyTree
    made: PyTree


class LazyKernel(KernelWrapper, LazyRows):
    """Step the rows that a batch uses; make up skipped steps with `flush`."""

    inner: Kernel
    tables: tuple[ParameterTable, ...] = eqx.field(static=True)
    digits: int = eqx.field(static=True)

    def init(self, normals: Normals, position: PyTree) -> LazyState:
        made = [jnp.zeros(table.num_rows, jnp.int32) for table in self.tables]
        made = jax.tree.unflatten(jax.tree.structure(position), made)
        return LazyState(*self.inner.init(normals, position), made=made)

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> jax.Array:
        """Return the key for every step: which normals are needed depends on the step's batch."""
        return jnp.tile(key, (num_steps, *[1] * (key.ndim - 1)))

    def _normals(self, t: Step, noise: jax.Array) -> NormalsAt:
        return lambda slots: random.normals_at(noise, t, slots, dtype=self._dtype)

    def step(
        self, t: Step, noise: jax.Array, state: LazyState, oracle: Oracle
    ) -> tuple[LazyState, StepInfo]:
        return self.step_by(t, self._normals(t, noise), state, oracle)

    def flush(self, t: Step, noise: jax.Array, state: LazyState, oracle: Oracle) -> LazyState:
        return self.flush_by(t, self._normals(t, noise), state, oracle)

    def step_by(
        self, t: Step, normals: NormalsAt, state: LazyState, oracle: Oracle
    ) -> tuple[LazyState, StepInfo]:
        """Make the step t with normals from the function `normals`."""
        touched = oracle.rows.touched(0)
        used = jax.tree.leaves(touched.rows, is_leaf=lambda leaf: leaf is None)
        chosen = [
            RowRange(jnp.int32(0), table.num_rows) if numbers is None else RowIndex(numbers)
            for numbers, table in zip(used, self.tables, strict=True)
        ]
        parts, structure = self._parts(state), jax.tree.structure(state.position)
        rows = self._rows(chosen, parts, structure, oracle)
        # Arrays that every example uses move in every step and are never behind.
        behind = [i for i, numbers in enumerate(used) if numbers is not None]
        for i, each in zip(behind, self._caught_up(t, normals, rows, behind), strict=True):
            rows[i] = each
        taken = [
            each.position.reshape(each.chosen.shape(table)).astype(part.position.dtype)
            for each, table, part in zip(rows, self.tables, parts, strict=True)
        ]
        potential, grad = touched.evaluate(jax.tree.unflatten(structure, taken))
        each = zip(self.tables, rows, parts, jax.tree.leaves(grad), strict=True)
        moved = [self._moved(normals, *of_table) for of_table in each]
        return self._state(moved, structure), StepInfo(potential)

    def flush_by(self, t: Step, normals: NormalsAt, state: LazyState, oracle: Oracle) -> LazyState:
        """Make up all skipped steps, with normals of step t from the function `normals`."""
        most = _FLUSHED_ON_ACCELERATOR if runtime.has_accelerator() else _FLUSHED_ON_CPU
        parts, structure = self._parts(state), jax.tree.structure(state.position)
        for i, table in enumerate(self.tables):
            length = min(table.num_rows, max(1, most // max(1, table.width)))

            def flushed(k, part, i=i, table=table, length=length):
                # The last range overlaps the one before, whose rows skip no steps and stay equal.
                chosen = [RowRange(jnp.int32(0), 1)] * len(parts)
                chosen[i] = RowRange(jnp.minimum(k * length, table.num_rows - length), length)
                every = [*parts[:i], part, *parts[i + 1 :]]
                rows = self._rows(chosen, every, structure, oracle)
                (rows,) = self._caught_up(t + 1, normals, rows, [i])
                return TableState(
                    *map(chosen[i].put, part, (rows.position, rows.velocity, rows.made))
                )

            parts[i] = lax.fori_loop(0, -(-table.num_rows // length), flushed, parts[i])
        return self._state(parts, structure)

    def _rows(self, chosen, parts, structure, oracle: Oracle) -> list[RowStates]:
        """Gather the chosen rows of every table with the coefficients of their steps."""
        like = [
            jax.ShapeDtypeStruct(rows.shape(table), self._dtype)
            for rows, table in zip(chosen, self.tables, strict=True)
        ]
        numbers = jax.tree.unflatten(structure, [rows.numbers for rows in chosen])
        law = oracle.rows.prior(numbers, jax.tree.unflatten(structure, like))
        mean, precision = (jax.tree.leaves(each) for each in law)
        return [
            self._row(i, *of_table)
            for i, of_table in enumerate(zip(chosen, parts, mean, precision, strict=True))
        ]

    def _row(self, i: int, chosen, part: TableState, mean, precision) -> RowStates:
        table = self.tables[i]
        position, velocity = (chosen.of(each).astype(self._dtype) for each in part[:2])
        decay, rate, subtracted = (
            chosen.of(table.by_row(each.values[i])) for each in self._diagonals
        )
        # Variance of the injected noise: from α and η, which saves a gather compared with C and M.
        variance = rate * (2 * self._temperature * decay - rate * subtracted)
        mean, precision = (table.columns(each) for each in (mean, precision))
        prior = PriorStep(decay, rate * precision, jnp.sqrt(jnp.maximum(variance, 0)), mean)
        return RowStates(chosen, position, velocity, chosen.of(part.made), rate, prior)

    def _caught_up(
        self, count: Step, normals: NormalsAt, rows: list[RowStates], tables: list[int]
    ) -> list[RowStates]:
        """Make up the skipped steps of rows of some tables, so that each has made `count` steps."""

        def make(slots, made, position, velocity, *prior):
            pair = normals(slots + np.uint32(1)), normals(slots + np.uint32(2))
            now = make_steps(count - made, PriorStep(*prior), position, velocity, pair, self.digits)
            # No row is ahead, so this is `count`; but by depending on `made` it is written after
            # `made` was read, else the compiler copies the counts of all rows.
            return *now, jnp.maximum(made, count)

        groups = [
            (
                self.tables[i].slots(rows[i].chosen.numbers),
                rows[i].made[:, None],
                rows[i].position,
                rows[i].velocity,
                *rows[i].prior,
            )
            for i in tables
        ]
        return [
            rows[i]._replace(position=position, velocity=velocity, made=made[:, 0])
            for i, (position, velocity, made) in zip(tables, in_pieces(make, groups), strict=True)
        ]

    def _moved(
        self, normals: NormalsAt, table: ParameterTable, rows: RowStates, part: TableState, grad
    ) -> TableState:
        """Make one step of the rows that a batch uses, by its gradient and by their prior."""
        chosen, position, velocity, made, rate, prior = rows
        own = velocity - prior.decay * velocity - prior.stiffness * (position - prior.mean)
        own = own + prior.spread * normals(table.slots(chosen.numbers))
        velocities, velocity = chosen.put_sum(part.velocity, own, -rate * grad.reshape(own.shape))
        positions = chosen.put(part.position, position + velocity)
        return TableState(positions, velocities, chosen.put(part.made, made + 1))

    @property
    def _diagonals(self) -> tuple[matrices.Diagonal, ...]:
        """Return α, η and V̂ of every entry."""
        inner = self.inner
        assert isinstance(inner, SGHMCKernel)
        assert isinstance(inner.decay, matrices.Diagonal)
        assert isinstance(inner.learning_rate, matrices.Diagonal)
        assert isinstance(inner.noise, matrices.DiagonalPencil)
        return inner.decay, inner.learning_rate, inner.noise.second

    @property
    def _temperature(self) -> jax.Array:
        assert isinstance(self.inner, SGHMCKernel)
        return value_at(self.inner.temperature, 0)

    @property
    def _dtype(self):
        """Return the type of settings and of all arithmetic: single precision at least."""
        return self._temperature.dtype

    def _parts(self, state: LazyState) -> list[TableState]:
        leaves = zip(*map(jax.tree.leaves, state), strict=True)
        return [
            TableState(table.by_row(position), table.by_row(velocity), made)
            for table, (position, velocity, made) in zip(self.tables, leaves, strict=True)
        ]

    def _state(self, parts: list[TableState], structure) -> LazyState:
        """Assemble the state from the parts of its tables, its arrays as vectors."""
        columns = ([jnp.ravel(leaf) for leaf in leaves] for leaves in zip(*parts, strict=True))
        return LazyState(*(jax.tree.unflatten(structure, leaves) for leaves in columns))

    def map_parameters(self, state: LazyState, shape: Callable[[PyTree], PyTree]) -> LazyState:
        return LazyState(shape(state.position), shape(state.velocity), state.made)

    def with_mass(self, state: LazyState, mass: PyTree) -> tuple[Self, LazyState]:
        kernel, moved = super().with_mass(state, mass)
        return kernel, LazyState(*moved, made=state.made)
