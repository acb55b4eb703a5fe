"""A run over the axes of a mesh of devices.

| axis | what it spreads | what goes from device to device |
| --- | --- | --- |
| `chain` | chains: each device runs the loop on its own | nothing |
| `data` | rows: a device sums over its own (`posterior.sharded`) | the sums, and their gradients |
| `model` | parameters, by rules or along their first axis | what the model's own products need |

The loop runs inside `jax.shard_map` over chains and rows; along `model` the compiler spreads what
is still one program. Where rules spread parameters over `data`, the compiler has that axis, too:
each device looks at its part of a batch, and parameters come together where they are needed.
Between calls, arrays have the chain axis first.

Which devices a run has: what a mesh cannot spread is refused here.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sghmc.core import runtime
from sghmc.engine import devices, loop
from sghmc.engine import init as beginning
from sghmc.engine.chain import Batches, LoopState, RunSpec
from sghmc.engine.devices import (
    AXES,
    CHAIN,
    DATA,
    MODEL,
    OneDevice,
    Placement,
    check_mesh,
    device_batches,
    for_compiler,
    put,
    same_devices,
    shardings,
    used_axes,
)
from sghmc.engine.init import InitialPositions, InitialState, repeated
from sghmc.engine.layout import Layout
from sghmc.engine.options import RunOptions
from sghmc.gradients import Gradient
from sghmc.posterior.posterior import AbstractPosterior, RowPosterior, StackedPosterior, pad_rows
from sghmc.posterior.sharded import CompilerShardedPosterior, ManuallyShardedPosterior
from sghmc.posterior.target import Target
from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True)
class OverMesh(Placement):
    """Arrays have the chain axis first, of one chain too."""

    mesh: Mesh
    rules: tuple[tuple[str, P], ...] | None = None

    @property
    def has_spread_rows(self) -> bool:
        """Whether the compiler spreads batches, since parameters lie along their axis."""
        specs = [spec for _, spec in self.rules or ()]
        return self.size(DATA) > 1 and DATA in used_axes(specs)

    @property
    def manual(self) -> frozenset[str]:
        """The axes that `shard_map` spreads over; the compiler has the others."""
        axes = (CHAIN,) if self.has_spread_rows else (CHAIN, DATA)
        return frozenset(axis for axis in axes if self.size(axis) > 1)

    def layout(self, like, num_chains):
        return Layout.of(like, num_chains, shardings(self.rules, like, self.mesh))

    def size(self, axis: str | None) -> int:
        return 1 if axis is None else self.mesh.shape.get(axis, 1)

    def spec(self, *axes: str | None) -> P:
        return P(*(axis if self.size(axis) > 1 else None for axis in axes))

    # Arrays to devices

    def place_program(self, program):
        table = _table(program)
        if table is not None and table.num_rows % self.size(DATA):
            whole = table.num_rows + -table.num_rows % self.size(DATA)
            program = eqx.tree_at(lambda p: p.target, program, pad_rows(table, whole))
        arrays, rest = eqx.partition(program, eqx.is_array)
        return eqx.combine(self._put(arrays, self._specs(program, self._own_spec)), rest)

    def fetch_carry(self, layout, carry):
        return layout.to_loop(devices.raveled(layout, runtime.fetch(carry)))

    def fetched_like(self, layout, carry):
        return jax.eval_shape(lambda carry: layout.to_loop(devices.raveled(layout, carry)), carry)

    def place_carry(self, layout, saved):
        turned = devices.in_shape(layout, layout.chains_first(jax.tree.map(np.asarray, saved)))
        return self._put(turned, self._carry_specs(layout, turned))

    def fetch_records(self, layout, records):
        return runtime.fetch(records)

    def batches(self, numbers, first, take):
        lead = [CHAIN] * (numbers.ndim - 3)
        by_number = NamedSharding(self.mesh, self.spec(*lead, None, None, DATA))
        by_device = NamedSharding(self.mesh, self.spec(*lead, DATA))
        sizes = [self.size(axis) for axis in (*lead, DATA)]
        return device_batches(numbers, first, take, by_number, by_device, sizes)

    def _put(self, arrays: PyTree, specs: PyTree) -> PyTree:
        """Arrays at their places; one that several functions hold, once."""
        placed: dict[tuple[int, P], jax.Array] = {}

        def put_once(leaf, spec):
            known = placed.get((id(leaf), spec))
            where = NamedSharding(self.mesh, spec)
            placed[id(leaf), spec] = put(leaf, where) if known is None else known
            return placed[id(leaf), spec]

        return jax.tree.map(put_once, arrays, specs)

    def _specs(self, program: RunSpec, other: Callable[[Any], P]) -> PyTree:
        """How the arrays of a program lie; of those not named here `other` says it."""
        arrays = eqx.filter(program, eqx.is_array)
        named: list[tuple[Callable, P]] = [(lambda p: p.keys, self.spec(CHAIN))]
        if program.is_stacked:
            named += [(lambda p: p.target, self.spec(CHAIN))]
            named += [(lambda p: p.estimator, self.spec(CHAIN))]
        elif _table(program) is not None:
            named += [(lambda p: p.target.data, self.spec(DATA))]
        if program.batches is not None:
            chains = [] if program.estimator.is_shared else [CHAIN]
            named += [(lambda p: p.batches.rows, self.spec(*chains, DATA))]
            named += [(lambda p: p.batches.places, self.spec(*chains, None, None, DATA))]
        specs = jax.tree.map(other, arrays)
        for part, spec in named:
            alike = jax.tree.map(lambda _, spec=spec: spec, part(arrays))
            specs = eqx.tree_at(part, specs, alike)
        return specs

    def _own_spec(self, leaf: Any) -> P:
        """How an array lies that somebody has spread over this mesh; others are everywhere."""
        where = leaf.sharding if isinstance(leaf, jax.Array) else None
        if isinstance(where, NamedSharding) and same_devices(where.mesh, self.mesh):
            return where.spec
        return P()

    def _carry_specs(self, layout: Layout, carry: PyTree) -> PyTree:
        """By chains; and what has the structure and shapes of parameters, as these lie."""
        (chain,) = self.spec(CHAIN)
        specs = [P(chain, *where.spec) for where in layout.shardings or ()]

        def of_part(part, is_like):
            return jax.tree.unflatten(layout.treedef, specs) if is_like else P(chain)

        return devices.by_parts(layout, carry, of_part)

    # The loop, on each device for the chains that it has

    def begin(self, program, start, *, looks):
        positions = self._positions(program.layout, start)
        begun = _compiled_beginning()(self, program, positions, np.int32(0), looks=looks)
        return InitialState(begun.carry, *runtime.fetch(begun[1:]))

    def carry_like(self, program):
        start = program.layout.chains_like
        return eqx.filter_eval_shape(_beginning, self, program, start, 0, looks=False).carry

    def advance(self, program, carry, first, count, num_kept, *, capacity):
        fixed = self, program
        return compiled_draws()(fixed, carry, first, count, num_kept, capacity=capacity)

    def plan(self, program, carry, capacity):
        own = dataclasses.replace(program, layout=self._own_layout(program))
        return super().plan(own, carry, capacity)

    def _positions(self, layout: Layout, start: InitialPositions) -> PyTree:
        """Where all chains start; no device has more of it than it will need."""
        specs = self._carry_specs(layout, layout.chains_like)
        if start.init_axis == 0:
            return self._put(start.init, specs)
        of_chain = jax.tree.map(lambda spec: P(*spec[1:]), specs)
        where = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)
        repeat = jax.jit(lambda init: repeated(init, layout.num_chains), out_shardings=where)
        return repeat(self._put(start.init, of_chain))

    def on_devices(self, function: Callable, program: RunSpec, chains: PyTree, *others: Any):
        """`function(program, chains, *others)` on every device; chains are the first axis."""
        arrays, rest = eqx.partition(program, eqx.is_array)

        def on_device(arrays, chains, others):
            return function(self._own(eqx.combine(arrays, rest)), chains, *others)

        if not self.manual:
            return on_device(arrays, chains, others)
        return jax.shard_map(
            on_device,
            mesh=self.mesh,
            axis_names=self.manual,
            in_specs=(self._manual_specs(program), self.spec(CHAIN), P()),
            out_specs=self.spec(CHAIN),
            check_vma=False,  # what is the same on all devices of an axis is so by construction
        )(arrays, chains, others)

    def _manual_specs(self, program: RunSpec) -> PyTree:
        """How `shard_map` cuts a program: what the compiler has is whole to it."""
        specs = self._specs(program, lambda _: P())
        return jax.tree.map(
            lambda spec: P(*(name if name in self.manual else None for name in spec)), specs
        )

    def _own(self, program: RunSpec) -> RunSpec:
        """A device's own program, from its part of the arrays."""
        target, batches = program.target, program.batches
        if DATA in self.manual:
            assert isinstance(target, AbstractPosterior)
            target = ManuallyShardedPosterior(target, DATA, self.size(DATA))
        elif self.has_spread_rows and isinstance(target, RowPosterior):
            rows = self.spec(DATA)  # inside of shard_map the devices are known
            where = rows if self.manual else NamedSharding(self.mesh, rows)
            target = CompilerShardedPosterior.of(target, where, self.size(DATA))
        if batches is not None:
            *lead, _, _ = batches.places.shape
            num_axes = len(lead)  # the mesh's own of the rows, too: one for chains, one for data
            rows = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[num_axes:]), batches.rows)
            batches = Batches(rows, batches.places.reshape(*lead, -1), batches.first)
        layout = self._own_layout(program)
        return dataclasses.replace(program, layout=layout, target=target, batches=batches)

    def _own_layout(self, program: RunSpec) -> Layout:
        num_chains = program.layout.num_chains // self.size(CHAIN)
        return dataclasses.replace(program.layout, num_chains=num_chains)

    def kept_there(self, layout: Layout, carry: PyTree) -> PyTree:
        """The carry, with the compiler told that it stays where it lies."""
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), self._carry_specs(layout, carry)
        )
        return jax.lax.with_sharding_constraint(carry, shardings)


def _beginning(
    over: OverMesh, program: RunSpec, positions: PyTree, t, *, looks: bool
) -> InitialState:
    def of_device(program, positions, t):
        return program.layout.chains_first(beginning.beginning(program, positions, t, looks=looks))

    begun = over.on_devices(of_device, program, positions, t)
    return begun._replace(carry=over.kept_there(program.layout, begun.carry))


@functools.cache
def _compiled_beginning() -> Any:
    return eqx.filter_jit(_beginning, **runtime.jit_options("once"))


def _make_draws(
    fixed: tuple[OverMesh, RunSpec], carry: LoopState, first, count, num_kept, *, capacity: int
):
    over, program = fixed

    def of_device(program, carry, *numbers):
        layout = program.layout
        carry = layout.to_loop(carry)
        carry, records = loop.make_draws(program, carry, *numbers, capacity=capacity)
        return layout.chains_first(carry), layout.chains_first(records, leading=1)

    carry, records = over.on_devices(of_device, program, carry, first, count, num_kept)
    return over.kept_there(program.layout, carry), records


@functools.cache
def compiled_draws() -> Any:
    return eqx.filter_jit(_make_draws, donate="all-except-first", **runtime.jit_options("loop"))


def _table(program: RunSpec) -> AbstractPosterior | None:
    """The posterior whose rows can be spread: arrays, of which all chains have the same."""
    target = program.target
    if program.is_stacked or target.source is not None:
        return None
    return target if isinstance(target, AbstractPosterior) else None


# Which devices a run has: what a mesh cannot spread is refused here.


def placement_for(options: RunOptions, target: Target | StackedPosterior) -> Placement:
    """Where a run with these options has its arrays."""
    mesh, num_chains = options.mesh, options.num_chains
    check_mesh(mesh, options.sharding)
    if mesh is None:
        if runtime.is_multiprocess():
            raise ValueError(
                f"jax.distributed runs {jax.process_count()} processes, but sample was given no "
                f"mesh: give mesh=jax.make_mesh(({jax.device_count()},), ('chain',)) or the like, "
                f"the same in every process."
            )
        return OneDevice()
    unknown = [name for name in mesh.axis_names if name not in AXES]
    if unknown:
        raise ValueError(
            f"The mesh has an axis {unknown[0]!r}, but a run is spread over axes among "
            f"{', '.join(map(repr, AXES))}: name its axes by what they should spread."
        )
    left_out = jax.process_count() - len({device.process_index for device in mesh.devices.flat})
    if left_out:
        raise ValueError(
            f"The mesh leaves out the devices of {left_out} of {jax.process_count()} processes: "
            f"make it of all jax.devices()."
        )
    rules = None if options.sharding is None else tuple(options.sharding)
    over = OverMesh(for_compiler(mesh), rules)
    if num_chains % over.size(CHAIN):
        raise ValueError(
            f"num_chains is {num_chains}, which the mesh cannot spread evenly over {CHAIN!r}: "
            f"{over.size(CHAIN)} devices. Take a multiple of that, or a smaller axis."
        )
    _check_data(target, options.gradient, over)
    return over


def _check_data(target: Target | StackedPosterior, gradient: Gradient, over: OverMesh) -> None:
    source, num_shards = target.source, over.size(DATA)
    if source is not None and source.is_sequential and runtime.is_multiprocess():
        raise ValueError(
            f"A stream is read by one process, but the run has {jax.process_count()}: give each "
            f"process a source with random access, such as MemoryMapped."
        )
    if over.has_spread_rows and source is not None:
        raise ValueError(
            f"sharding spreads parameters over {DATA!r}, for which the rows must be arrays, but "
            f"they are read from a source: spread parameters over {MODEL!r} alone, or give arrays."
        )
    if num_shards == 1 or over.has_spread_rows:
        return
    remedy = f"leave the axis {DATA!r}, of {num_shards} devices, out of the mesh"
    if not isinstance(target, AbstractPosterior):
        is_stack = isinstance(target, StackedPosterior)
        what = "posteriors with data of their own" if is_stack else "a Potential"
        raise ValueError(f"A mesh spreads the rows of one Posterior, not {what}: {remedy}.")
    if source is None:
        return
    if source.is_sequential:
        raise ValueError(f"The rows of a stream come in one order, to one reader: {remedy}.")
    size = gradient.batch_rows
    if size is not None and size % num_shards:
        raise ValueError(
            f"batch_size is {size}, but the rows of a source are read in {num_shards} equal parts, "
            f"one for each device along {DATA!r}: take a multiple of {num_shards}, or {remedy}."
        )
