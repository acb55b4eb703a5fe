"""The keys of a run: every chain has one for each of its streams of random numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, UInt32

from sghmc.core import random

MOTION, GRADIENT, GIBBS, INIT = range(4)
"""The streams: a sampler's steps, its gradients, Gibbs updates, and momenta before step 0."""
NUM_STREAMS = INIT + 1


def chain_keys(key: jax.Array, num_chains: int) -> UInt32[Array, "chain stream 3"]:
    """Keys of three words; a chain's do not depend on how many chains there are."""
    words = random.words(key)
    is_known = not isinstance(words, Tracer)
    words = np.asarray(words) if is_known else words
    chains = _folded(words[:, None], num_chains)
    x, y = _folded([word[:, None] for word in chains], NUM_STREAMS)
    # A few operations, not worth a compiler's time; nor is their way to a device.
    parts = [x, y, random.parity(x, y)]
    return jax.device_put(np.stack(parts, axis=-1)) if is_known else jnp.stack(parts, axis=-1)


def with_shared_gradients(
    keys: UInt32[Array, "chain stream 3"],
) -> UInt32[Array, "chain stream 3"]:
    """The same keys, but for gradients, where all chains have that of the first."""
    return keys.at[:, GRADIENT].set(keys[0, GRADIENT])


def _folded(keys: Any, count: int) -> tuple[Any, Any]:
    """The words of `random.fold` of each key and 0, …, count − 1, along a last axis."""
    numbers = np.arange(count, dtype=np.uint32).reshape(*[1] * (keys[0].ndim - 1), count)
    return random.threefry(keys, np.zeros_like(numbers), numbers)
