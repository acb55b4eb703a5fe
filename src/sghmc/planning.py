"""plan(): the memory and disk that a run will need, before it is run."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.core import runtime
from sghmc.engine import loop
from sghmc.engine.chain import RunSpec
from sghmc.engine.checks import device_room, shown
from sghmc.engine.devices import CHAIN, DATA
from sghmc.engine.driver import capacity_for
from sghmc.engine.layout import LoopState, num_bytes
from sghmc.engine.mesh import OverMesh
from sghmc.engine.options import RunOptions, hold_fixed
from sghmc.engine.program_hash import with_batches
from sghmc.engine.run import checked, prepared
from sghmc.posterior.posterior import StackedPosterior
from sghmc.posterior.target import Target
from sghmc.samplers import Sampler
from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True)
class Plan:
    """Bytes that a run will need, and what there is; `print` shows them as a table.

    `device` is for each device, `temporary` among it None where nothing was compiled. Draws go to
    the machine's memory (`host`) or, with a checkpoint, to its `disk`. What there is is None where
    it is not known; CPUs share the machine's memory.
    """

    device: dict[str, int | None]
    host: dict[str, int]
    disk: dict[str, int]
    device_room: int | None
    host_room: int | None
    disk_room: int | None
    num_devices: int
    has_own_memory: bool

    @property
    def on_device(self) -> int:
        """Bytes that each device needs."""
        return sum(size or 0 for size in self.device.values())

    @property
    def on_host(self) -> int:
        """Bytes that the machine's memory must hold: with those of its CPUs."""
        shared = 0 if self.has_own_memory else self.num_devices * self.on_device
        return sum(self.host.values()) + shared

    @property
    def on_disk(self) -> int:
        return sum(self.disk.values())

    @property
    def fits(self) -> bool:
        """Tell whether there is room for all, as far as it is known."""
        pairs = [(self.on_host, self.host_room), (self.on_disk, self.disk_room)]
        pairs += [(self.on_device, self.device_room)]
        return all(room is None or need <= room for need, room in pairs)

    def __str__(self) -> str:
        lines = [
            f"{'each device':12} {what:36} {_formatted(size)}" for what, size in self.device.items()
        ]
        lines += [f"{'memory':12} {what:36} {_formatted(size)}" for what, size in self.host.items()]
        lines += [f"{'disk':12} {what:36} {_formatted(size)}" for what, size in self.disk.items()]
        own = self.device_room if self.has_own_memory else None
        for where, need, room in (
            ("each device", self.on_device, own),
            ("memory", self.on_host, self.host_room),
            ("disk", self.on_disk, self.disk_room),
        ):
            if room is not None:
                lines.append(f"{where:12} {'in all, of ' + shown(room):36} {_formatted(need)}")
        verdict = "It fits." if self.fits else "It does not fit."
        return "\n".join([*lines, verdict])


def _formatted(size: int | None) -> str:
    return f"{'not compiled' if size is None else shown(size):>12}"


def plan(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler,
    init: PyTree,
    *,
    compiles: bool = True,
    trainable: PyTree | None = None,
    **options: Any,
) -> Plan:
    """Return the memory and disk that `sample` with the same arguments would need.

    Nothing of the run is made, but gradients are prepared: `ControlVariate` finds its center.
    With `compiles`, the loop of a run on one device is compiled, and XLA says what its temporary
    buffers take; without, and over a mesh, they are left out.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> needed = sghmc.plan(
    ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(1000),
    ...     num_samples=500, num_chains=4,
    ... )
    >>> needed.fits, needed.device["states of chains"], needed.host["draws"] > 4 * 500 * 4000
    (True, 32032, True)
    """
    given = RunOptions(**options)
    if trainable is not None:
        target, init, given = hold_fixed(target, init, trainable, given)
    parts = checked(key, target, sampler, init, given)
    place, spec = parts.place, with_batches(prepared(parts, key, target, given))
    carry = place.state_like(spec)
    record = loop.record_like(spec, place.saved_like(parts.layout, carry))
    capacity, num_parts = capacity_for(record, parts.layout), place.size(CHAIN)
    num_chains = given.num_chains // num_parts
    rest = num_bytes(carry._replace(state=None)) // num_parts
    own = isinstance(place, OverMesh)
    device: dict[str, int | None] = {
        "states of chains": num_chains * parts.layout.state_bytes(parts.kernel) + rest,
        "data and other arrays": _held_bytes(spec, place.size(DATA)),
        "draws on their way": capacity * num_bytes(record) // num_parts,
        "temporary": _temporary(spec, carry, capacity) if compiles and not own else None,
    }
    assert given.num_samples is not None, "plan has an argument num_samples"
    draws = {"draws": given.num_samples * num_bytes(record)}
    room, is_saved = device_room(given), given.checkpoint is not None
    return Plan(
        device=device,
        host={} if is_saved else draws,
        disk=draws if is_saved else {},
        device_room=room,
        host_room=runtime.memory_bytes(),
        disk_room=runtime.free_bytes(given.checkpoint.path) if given.checkpoint else None,
        num_devices=1 if given.mesh is None else len(given.mesh.local_devices),
        has_own_memory=room is not None,
    )


def _held_bytes(spec: RunSpec, num_shards: int) -> int:
    """Count the bytes of a run's arrays on each device: rows are spread, others lie as they are."""
    rows = getattr(spec.target, "data", None)
    of_rows = 0 if spec.target.source is not None else num_bytes(rows)
    own = {id(leaf) for leaf in jax.tree.leaves(rows)}
    others = [leaf for leaf in jax.tree.leaves(spec) if id(leaf) not in own]
    here = {
        id(leaf): jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        for leaf in others
        if isinstance(leaf, jax.Array)
    }
    return of_rows // num_shards + num_bytes(list(here.values()))


def _temporary(spec: RunSpec, carry: LoopState, capacity: int) -> int | None:
    """Return the temporary bytes of the compiled loop by XLA's count; nothing is run."""

    def is_shape(leaf):
        return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)

    arrays, rest = eqx.partition((spec, carry), is_shape)
    number = jax.ShapeDtypeStruct((), jnp.int32)

    def draws(spec, carry, *numbers):
        spec, carry = eqx.combine((spec, carry), rest)
        return loop.make_draws(spec, carry, *numbers, capacity=capacity)

    compiled = jax.jit(draws, donate_argnums=1, **runtime.jit_options("loop"))
    found = compiled.lower(*arrays, number, number, number).compile().memory_analysis()
    return None if found is None else int(found.temp_size_in_bytes)
