"""Devices of a run: rules that spread parameters, the interface of a placement, and conversions.

`driver` has the placement of a run on one device, `mesh` that over several.
"""

import abc
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Integer

from sghmc.core import runtime
from sghmc.engine import loop
from sghmc.engine.chain import Blocking, RunSpec
from sghmc.engine.layout import Batches, DrawRecord, InitialPositions, Layout, LoopState
from sghmc.posterior.sources import increasing, inverse
from sghmc.types import PyTree

CHAIN, DATA, MODEL = AXES = ("chain", "data", "model")
"""Axes that a mesh may have, named by what is spread over them."""

Rules: TypeAlias = Sequence[tuple[str, P]]
"""Pairs of a pattern, searched for in a parameter's path, and how such parameters are cut."""

_MAX_SHOWN = 8
"""Paths of parameters that an error lists."""


def check_mesh(mesh: Any, rules: Any) -> None:
    """Check that a mesh, if there is any, is one, and that rules are rules for it."""
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh must be a jax.sharding.Mesh, such as jax.make_mesh((4,), ('chain',)), not "
            f"{mesh!r}."
        )
    if rules is not None:
        _check_rules(rules, mesh)


def _check_rules(rules: Any, mesh: Mesh | None) -> None:
    if mesh is None:
        raise ValueError(
            "sharding has rules for the devices of a mesh, but mesh is not given: give, say, "
            'mesh=jax.make_mesh((4,), ("model",)).'
        )
    example = 'such as ("attention/.*/weight", jax.sharding.PartitionSpec(None, "model"))'
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        raise TypeError(f"sharding must be a list of rules {example}, not {rules!r}.")
    for rule in rules:
        is_pair = isinstance(rule, tuple) and len(rule) == 2
        if not is_pair or not isinstance(rule[0], str) or not isinstance(rule[1], P):
            raise TypeError(f"A rule of sharding is a pattern and a spec, {example}, not {rule!r}.")
        try:
            re.compile(rule[0])
        except re.error as error:
            raise ValueError(
                f"The pattern {rule[0]!r} of sharding is no regular expression: {error}."
            ) from error
        _check_axes(rule[0], rule[1], mesh)


def _check_axes(pattern: str, spec: P, mesh: Mesh) -> None:
    names = used_axes([spec])
    for name in names:
        if name == CHAIN or name not in mesh.axis_names:
            allowed = [axis for axis in mesh.axis_names if axis != CHAIN]
            raise ValueError(
                f"The rule {pattern!r} of sharding spreads parameters over {name!r}, but the axes "
                f"of this mesh for them are {allowed}; chains are spread over {CHAIN!r} by "
                f"themselves."
            )
    if len(set(names)) < len(names):
        raise ValueError(f"The rule {pattern!r} of sharding names an axis twice: {spec}.")


def used_axes(specs: Sequence[P]) -> list[str]:
    """Return the names of axes in specs, one after another."""
    entries = [entry for spec in specs for entry in spec]
    tuples = [entry if isinstance(entry, tuple) else (entry,) for entry in entries]
    return [name for each in tuples for name in each if isinstance(name, str)]


def matched(rules: Rules, params: PyTree, mesh: Mesh | AbstractMesh) -> list[P]:
    """Return how each array of `params` is cut: by the first rule that matches its path.

    A path is written `layers/0/weight`. What no rule is found in is an error; a single number,
    which cannot be cut, needs none.
    """
    found: dict[str, P | None] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        specs = (spec for pattern, spec in rules if re.search(pattern, name))
        found[name] = spec = P() if leaf.size == 1 else next(specs, None)
        if spec is not None:
            _check_fit(name, leaf.shape, spec, mesh)
    left = [name for name, spec in found.items() if spec is None]
    if left:
        shown = ", ".join(left[:_MAX_SHOWN])
        more = f" and {len(left) - _MAX_SHOWN} more" if len(left) > _MAX_SHOWN else ""
        raise ValueError(
            f"No rule of sharding is found in the path of {shown}{more}: add rules for them, or "
            f'("", PartitionSpec()) as the last one, by which each device has the whole of what is '
            f"left."
        )
    return list(found.values())  # pyright: ignore[reportReturnType]


def _check_fit(name: str, shape: tuple[int, ...], spec: P, mesh: Mesh | AbstractMesh) -> None:
    if len(spec) > len(shape):
        raise ValueError(
            f"{name} has shape {shape}, but its rule of sharding, {spec}, speaks of {len(spec)} "
            f"axes: give it a rule of its own, before that one."
        )
    for size, entry in zip(shape, spec, strict=False):
        parts = _num_parts(entry, mesh)
        if size % parts:
            raise ValueError(
                f"{name} has shape {shape}, whose axis of {size} cannot be cut into {parts} equal "
                f"parts as its rule of sharding, {spec}, says: cut another axis, make it a "
                f"multiple of {parts}, or keep it whole by a rule of its own before that one, "
                f'("{name}", PartitionSpec()).'
            )


def _num_parts(entry, mesh: Mesh | AbstractMesh) -> int:
    parts = 1
    for name in used_axes([P(entry)]):
        parts *= mesh.shape[name]
    return parts


def first_axes(params: PyTree, mesh: Mesh | AbstractMesh) -> list[P]:
    """Return how arrays are cut without rules: along the first axis, where that can be cut."""
    parts = mesh.shape.get(MODEL, 1)

    def spec(leaf) -> P:
        can_be_cut = parts > 1 and leaf.ndim > 0 and leaf.shape[0] % parts == 0
        return P(MODEL) if can_be_cut else P()

    return [spec(leaf) for leaf in jax.tree.leaves(params)]


def placed(rules: Rules, params: PyTree, mesh: Mesh) -> PyTree:
    """Put parameters where rules say."""
    leaves, treedef = jax.tree.flatten(params)
    mesh = for_compiler(mesh)
    pairs = zip(leaves, matched(rules, params, mesh), strict=True)
    return jax.tree.unflatten(
        treedef, [put(leaf, NamedSharding(mesh, spec)) for leaf, spec in pairs]
    )


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Put an array at its place; no device gets more of it than it needs."""
    is_everywhere = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if is_everywhere or not runtime.is_multiprocess():
        return jax.device_put(leaf, sharding)
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def same_devices(mesh: Mesh | AbstractMesh, other: Mesh) -> bool:
    """Tell whether two meshes differ at most in what the compiler may do along their axes."""
    return isinstance(mesh, Mesh) and for_compiler(mesh) == for_compiler(other)


def for_compiler(mesh: Mesh) -> Mesh:
    """Return a mesh along whose axes the compiler may spread what it is not told about."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def shardings(rules: Rules | None, params: PyTree, mesh: Mesh) -> tuple[NamedSharding, ...] | None:
    """Return shardings of one chain's parameters; None where every device has all of them."""
    specs = first_axes(params, mesh) if rules is None else matched(rules, params, mesh)
    if all(mesh.shape[name] == 1 for name in used_axes(specs)):
        return None
    return tuple(NamedSharding(mesh, spec) for spec in specs)


# A placement brings a run's arrays to devices and back


class Placement(abc.ABC):
    """Brings a run's arrays to devices and back, and runs the loop there.

    A state is saved as the loop has it, whatever devices it was on: a run may go on elsewhere.
    """

    def size(self, axis: str | None) -> int:
        """Return the number of devices along an axis."""
        return 1

    @abc.abstractmethod
    def place_spec(self, spec: RunSpec) -> RunSpec:
        """Return the run with its arrays where they belong."""

    @abc.abstractmethod
    def begin(
        self, spec: RunSpec, positions: InitialPositions, *, evaluates: bool
    ) -> loop.InitialState:
        """Compute `loop.initial_states` where the arrays lie."""

    @abc.abstractmethod
    def state_like(self, spec: RunSpec) -> LoopState:
        """Return the loop's state that `begin` returns, by shapes and dtypes."""

    @abc.abstractmethod
    def advance(
        self,
        spec: RunSpec,
        carry: LoopState,
        first: Any,
        count: Any,
        num_kept: Any,
        *,
        capacity: int,
    ) -> tuple[LoopState, DrawRecord | None]:
        """Run `loop.make_draws`, compiled, where the arrays lie; the state's memory is reused."""

    @abc.abstractmethod
    def blocking(self, spec: RunSpec, carry: LoopState, capacity: int) -> Blocking:
        """Return how the loop is cut on each device."""

    @abc.abstractmethod
    def fetch_state(self, layout: Layout, carry: PyTree) -> PyTree:
        """Return the loop's state, or parts of it, as it is saved."""

    @abc.abstractmethod
    def saved_like(self, layout: Layout, carry: PyTree) -> PyTree:
        """Return what `fetch_state` returns, by shapes and dtypes."""

    @abc.abstractmethod
    def place_state(self, layout: Layout, saved: PyTree) -> LoopState:
        """Return a saved state of the loop, back in its place."""

    @abc.abstractmethod
    def fetch_records(self, layout: Layout, records: DrawRecord | None) -> DrawRecord:
        """Return records on the host, axes (chain, draw, …)."""


# The loop's state where parameters lie on several devices, in their own shapes

_Shape = Callable[[jax.ShapeDtypeStruct], tuple[int, ...]]


def by_parts(layout: Layout, chains: PyTree, of_part: Callable[[Any, bool], PyTree]) -> PyTree:
    """Return `of_part(part, is_like)` of each part; one that is like parameters is one part.

    Arrays have the chain axis first, and maybe others after it.
    """
    return _by_parts(layout, chains, of_part, lambda leaf: leaf.shape)


def raveled(layout: Layout, carry: PyTree) -> PyTree:
    """Return the loop's state as it is saved: raveled, as a run on one device has it."""
    return _turned(layout, carry, lambda leaf: leaf.shape, lambda leaf: (leaf.size,))


def in_shape(layout: Layout, carry: PyTree) -> PyTree:
    """Return a saved state of the loop with parameters in their shapes."""
    return _turned(layout, carry, lambda leaf: (leaf.size,), lambda leaf: leaf.shape)


def _turned(layout: Layout, carry: PyTree, old: _Shape, new: _Shape) -> PyTree:
    if layout.shardings is None or not isinstance(carry, LoopState):
        return carry

    def turn(leaf, like):
        lead = leaf.shape[: leaf.ndim - len(old(like))]
        return leaf.reshape(*lead, *new(like))

    def of_part(part, is_like):
        return jax.tree.map(turn, part, layout.like) if is_like else part

    return carry._replace(state=_by_parts(layout, carry.state, of_part, old))


def _by_parts(layout: Layout, chains: PyTree, of_part: Callable, shape: _Shape) -> PyTree:
    def is_like(part):
        if layout.shardings is None or jax.tree.structure(part) != layout.treedef:
            return False
        pairs = zip(jax.tree.leaves(part), map(shape, layout.leaves), strict=True)
        # More axes than a parameter has: a number of each chain is not a vector that long.
        return all(
            leaf.ndim > len(end) and leaf.shape[leaf.ndim - len(end) :] == end
            for leaf, end in pairs
        )

    return jax.tree.map(lambda part: of_part(part, is_like(part)), chains, is_leaf=is_like)


# Rows that are read from a source, for every device of a mesh its own


def device_batches(
    numbers: Integer[np.ndarray, "*chain step gradient row"],
    first: int,
    take: Callable[[np.ndarray], PyTree],
    by_number: NamedSharding,
    by_device: NamedSharding,
    sizes: Sequence[int],
) -> Batches:
    """Take rows by their numbers, for steps from `first` on.

    Numbers lie on the devices as `by_number` says; rows have an axis in front for each axis of the
    mesh that they are spread over, of `sizes` devices, by which they lie as `by_device` says. Each
    process takes those that its devices want.
    """
    wanted = by_number.addressable_devices_indices_map(numbers.shape)
    parts = {
        name: _taken(numbers[index], take)
        for name, index in {str(index): index for index in wanted.values()}.items()
    }
    own = [parts[str(index)] for index in wanted.values()]

    def whole(sharding, shape, leaves):
        arrays = [jax.device_put(x, device) for x, device in zip(leaves, wanted, strict=True)]
        return jax.make_array_from_single_device_arrays(shape, sharding, arrays)

    def rows(*leaves):
        alone = [leaf.reshape(*[1] * len(sizes), *leaf.shape) for leaf in leaves]
        return whole(by_device, (*sizes, *leaves[0].shape), alone)

    places = whole(by_number, numbers.shape, [places for _, places in own])
    return Batches(
        jax.tree.map(rows, *(rows for rows, _ in own)), places, jnp.asarray(first, jnp.int32)
    )


def _taken(numbers: np.ndarray, take: Callable[[np.ndarray], PyTree]) -> tuple[PyTree, np.ndarray]:
    """Take rows in the order of their numbers; return them and where each number's row is."""
    order = increasing(numbers.reshape(-1))
    rows = take(numbers.reshape(-1)[order])
    return rows, inverse(order).reshape(numbers.shape).astype(np.int32)
