"""Computations in double precision, whatever the user's program has chosen."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """64 bits, and numbers of different precision may meet."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def widened(leaf: Any) -> Any:
    """A leaf of a pytree in double precision, if it is an array of real numbers."""
    is_float = isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
    return np.asarray(leaf, np.float64) if is_float else leaf
