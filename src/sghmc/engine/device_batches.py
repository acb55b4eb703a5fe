"""Rows that are read from a source, for every device of a mesh its own."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Int32

from sghmc.engine.program import Batches
from sghmc.posterior.source import increasing, inverse
from sghmc.types import PyTree


def device_batches(
    numbers: Int32[np.ndarray, "*chain step gradient row"],
    first: int,
    take: Callable[[np.ndarray], PyTree],
    by_number: NamedSharding,
    by_device: NamedSharding,
    sizes: Sequence[int],
) -> Batches:
    """Rows by their numbers, for steps from `first` on.

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
    """Rows in the order of their numbers, and where among them each number's is."""
    order = increasing(numbers.reshape(-1))
    rows = take(numbers.reshape(-1)[order])
    return rows, inverse(order).reshape(numbers.shape).astype(np.int32)
