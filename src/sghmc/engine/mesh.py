"""A run over the axes of a mesh of devices.

| axis | what it spreads | what goes from device to device |
| --- | --- | --- |
| `chain` | chains: each device runs the loop on its own | nothing |
| `data` | rows: a device sums over its own (`posterior.sharded`) | the sums, and their gradients |
| `model` | parameters, by rules or along their first axis | what the model's own products need |

The loop runs inside `jax.shard_map` over chains and rows; along `model` the compiler spreads what
is still one program. Where rules spread parameters over `data`, the compiler has that axis, too:
each device evaluates its part of a batch, and parameters come together where they are needed.
Between calls, arrays have the chain axis first.
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
from sghmc.engine.chain import RunSpec
from sghmc.engine.devices import (
    AXES,
    CHAIN,
    DATA,
    MODEL,
    Placement,
    check_mesh,
    device_batches,
    for_compiler,
    put,
    same_devices,
    shardings,
    used_axes,
)
from sghmc.engine.layout import Batches, InitialPositions, Layout, LoopState, repeated
from sghmc.engine.loop import InitialState
from sghmc.engine.options import RunOptions
from sghmc.gradients import Gradient
from sghmc.posterior.posterior import AbstractPosterior, RowPosterior, StackedPosterior, pad_rows
from sghmc.posterior.sharded import CompilerShardedPosterior, ManuallyShardedPosterior
from sghmc.posterior.target import Target
from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True)
class OverMesh(Placement):
    """Runs the loop over a mesh; arrays have the chain axis first, of one chain too."""

    mesh: Mesh
    rules: tuple[tuple[str, P], ...] | None = None

    @property
    def has_spread_rows(self) -> bool:
        """Tell whether the compiler spreads batches, since parameters lie along their axis."""
        specs = [spec for _, spec in self.rules or ()]
        return self.size(DATA) > 1 and DATA in used_axes(specs)

    @property
    def manual(self) -> frozenset[str]:
        """Axes that `shard_map` spreads over; the compiler has the others."""
        axes = (CHAIN,) if self.has_spread_rows else (CHAIN, DATA)
        return frozenset(axis for axis in axes if self.size(axis) > 1)

    def shardings(self, like: PyTree) -> tuple[NamedSharding, ...] | None:
        """Return how one chain's parameters are spread; None where they lie on one device."""
        return shardings(self.rules, like, self.mesh)

    def size(self, axis: str | None) -> int:
        return 1 if axis is None else self.mesh.shape.get(axis, 1)

    def spec(self, *axes: str | None) -> P:
        return P(*(axis if self.size(axis) > 1 else None for axis in axes))

    # Arrays to devices

    def place_spec(self, spec):
        table = _table(spec)
        if table is not None and table.num_rows % self.size(DATA):
            whole = table.num_rows + -table.num_rows % self.size(DATA)
            spec = eqx.tree_at(lambda p: p.target, spec, pad_rows(table, whole))
        arrays, rest = eqx.partition(spec, eqx.is_array)
        return eqx.combine(self._put(arrays, self._specs(spec, self._own_spec)), rest)

    def fetch_state(self, layout, carry):
        return layout.to_loop(devices.raveled(layout, runtime.fetch(carry)))

    def saved_like(self, layout, carry):
        return jax.eval_shape(lambda carry: layout.to_loop(devices.raveled(layout, carry)), carry)

    def place_state(self, layout, saved):
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
        """Put arrays at their places; one that several functions hold, once."""
        placed: dict[tuple[int, P], jax.Array] = {}

        def put_once(leaf, spec):
            known = placed.get((id(leaf), spec))
            where = NamedSharding(self.mesh, spec)
            placed[id(leaf), spec] = put(leaf, where) if known is None else known
            return placed[id(leaf), spec]

        return jax.tree.map(put_once, arrays, specs)

    def _specs(self, run: RunSpec, other: Callable[[Any], P]) -> PyTree:
        """Return how the arrays of a run lie; `other` says it of those not named here."""
        arrays = eqx.filter(run, eqx.is_array)
        named: list[tuple[Callable, P]] = [(lambda p: p.keys, self.spec(CHAIN))]
        if run.is_stacked:
            named += [(lambda p: p.target, self.spec(CHAIN))]
            named += [(lambda p: p.estimator, self.spec(CHAIN))]
        elif _table(run) is not None:
            named += [(lambda p: p.target.data, self.spec(DATA))]
        if run.batches is not None:
            chains = [] if run.estimator.is_shared else [CHAIN]
            named += [(lambda p: p.batches.rows, self.spec(*chains, DATA))]
            named += [(lambda p: p.batches.places, self.spec(*chains, None, None, DATA))]
        specs = jax.tree.map(other, arrays)
        for part, spec in named:
            alike = jax.tree.map(lambda _, spec=spec: spec, part(arrays))
            specs = eqx.tree_at(part, specs, alike)
        return specs

    def _own_spec(self, leaf: Any) -> P:
        """Return how an array lies that is already spread over this mesh; others are everywhere."""
        where = leaf.sharding if isinstance(leaf, jax.Array) else None
        if isinstance(where, NamedSharding) and same_devices(where.mesh, self.mesh):
            return where.spec
        return P()

    def _carry_specs(self, layout: Layout, carry: PyTree) -> PyTree:
        """Return how the loop's state lies: by chains, and parts like parameters as these lie."""
        (chain,) = self.spec(CHAIN)
        specs = [P(chain, *where.spec) for where in layout.shardings or ()]

        def of_part(part, is_like):
            return jax.tree.unflatten(layout.treedef, specs) if is_like else P(chain)

        return devices.by_parts(layout, carry, of_part)

    # The loop, on each device for the chains that it has

    def begin(self, spec, positions, *, evaluates):
        placed = self._positions(spec.layout, positions)
        begun = _compiled_initial_states()(self, spec, placed, np.int32(0), evaluates=evaluates)
        return InitialState(begun.carry, *runtime.fetch(begun[1:]))

    def state_like(self, spec):
        like = spec.layout.chains_like
        return eqx.filter_eval_shape(_initial_states, self, spec, like, 0, evaluates=False).carry

    def advance(self, spec, carry, first, count, num_kept, *, capacity):
        fixed = self, spec
        return compiled_draws()(fixed, carry, first, count, num_kept, capacity=capacity)

    def blocking(self, spec, carry, capacity):
        own = dataclasses.replace(spec, layout=self._own_layout(spec))
        return loop.blocking_of(own, carry, capacity)

    def _positions(self, layout: Layout, positions: InitialPositions) -> PyTree:
        """Return the positions of all chains; no device gets more of them than it will need."""
        specs = self._carry_specs(layout, layout.chains_like)
        if positions.init_axis == 0:
            return self._put(positions.init, specs)
        of_chain = jax.tree.map(lambda spec: P(*spec[1:]), specs)
        where = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)
        repeat = jax.jit(lambda init: repeated(init, layout.num_chains), out_shardings=where)
        return repeat(self._put(positions.init, of_chain))

    def on_devices(self, function: Callable, run: RunSpec, chains: PyTree, *others: Any):
        """Run `function(run, chains, *others)` on every device; chains are the first axis."""
        arrays, rest = eqx.partition(run, eqx.is_array)

        def on_device(arrays, chains, others):
            return function(self._own(eqx.combine(arrays, rest)), chains, *others)

        if not self.manual:
            return on_device(arrays, chains, others)
        return jax.shard_map(
            on_device,
            mesh=self.mesh,
            axis_names=self.manual,
            in_specs=(self._manual_specs(run), self.spec(CHAIN), P()),
            out_specs=self.spec(CHAIN),
            check_vma=False,  # what is the same on all devices of an axis is so by construction
        )(arrays, chains, others)

    def _manual_specs(self, run: RunSpec) -> PyTree:
        """Return how `shard_map` cuts a run: what the compiler has is whole to it."""
        specs = self._specs(run, lambda _: P())
        return jax.tree.map(
            lambda spec: P(*(name if name in self.manual else None for name in spec)), specs
        )

    def _own(self, run: RunSpec) -> RunSpec:
        """Return the run as one device has it, from its part of the arrays."""
        target, batches = run.target, run.batches
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
        layout = self._own_layout(run)
        return dataclasses.replace(run, layout=layout, target=target, batches=batches)

    def _own_layout(self, run: RunSpec) -> Layout:
        num_chains = run.layout.num_chains // self.size(CHAIN)
        return dataclasses.replace(run.layout, num_chains=num_chains)

    def kept_there(self, layout: Layout, carry: PyTree) -> PyTree:
        """Tell the compiler that the loop's state stays where it lies."""
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), self._carry_specs(layout, carry)
        )
        return jax.lax.with_sharding_constraint(carry, shardings)


def _initial_states(
    over: OverMesh, run: RunSpec, positions: PyTree, t: Any, *, evaluates: bool
) -> InitialState:
    def of_device(run, positions, t):
        begun = loop.initial_states(run, positions, t, evaluates=evaluates)
        return run.layout.chains_first(begun)

    begun = over.on_devices(of_device, run, positions, t)
    return begun._replace(carry=over.kept_there(run.layout, begun.carry))


@functools.cache
def _compiled_initial_states() -> Any:
    return eqx.filter_jit(_initial_states, **runtime.jit_options("once"))


def _make_draws(
    fixed: tuple[OverMesh, RunSpec], carry: LoopState, first, count, num_kept, *, capacity: int
):
    over, run = fixed

    def of_device(run, carry, *numbers):
        layout = run.layout
        carry = layout.to_loop(carry)
        carry, records = loop.make_draws(run, carry, *numbers, capacity=capacity)
        return layout.chains_first(carry), layout.chains_first(records, leading=1)

    carry, records = over.on_devices(of_device, run, carry, first, count, num_kept)
    return over.kept_there(run.layout, carry), records


@functools.cache
def compiled_draws() -> Any:
    return eqx.filter_jit(_make_draws, donate="all-except-first", **runtime.jit_options("loop"))


def _table(run: RunSpec) -> AbstractPosterior | None:
    """Return the posterior whose rows can be spread: arrays that all chains share; else None."""
    target = run.target
    if run.is_stacked or target.source is not None:
        return None
    return target if isinstance(target, AbstractPosterior) else None


# What a mesh cannot spread is refused


def placement_for(options: RunOptions, target: Target | StackedPosterior) -> OverMesh:
    """Return the placement of a run over its mesh; refuse what that cannot spread."""
    mesh, num_chains = options.mesh, options.num_chains
    check_mesh(mesh, options.sharding)
    if mesh is None:
        raise ValueError(
            f"jax.distributed runs {jax.process_count()} processes, but sample was given no "
            f"mesh: give mesh=jax.make_mesh(({jax.device_count()},), ('chain',)) or the like, "
            f"the same in every process."
        )
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
