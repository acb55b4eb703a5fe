"""Computations in double precision, whatever the user's program has chosen."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """64 bits, and numbers of different precision may meet."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield
