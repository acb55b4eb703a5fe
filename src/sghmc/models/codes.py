"""Codes: whole numbers 0, 1, … that name classes, users or items."""

import jax
import numpy as np


def checked_codes(codes, num_codes: int, name: str) -> np.ndarray:
    """A vector of codes from 0 to `num_codes` − 1, or an error that names it."""
    codes = np.asarray(codes)
    if codes.ndim != 1 or codes.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be a vector of whole numbers, but is {codes.dtype} of {codes.shape}."
        )
    if codes.size and (codes.min() < 0 or codes.max() >= num_codes):
        raise ValueError(
            f"{name} must be codes from 0 to {num_codes - 1}, but they range from {codes.min()} to "
            f"{codes.max()}."
        )
    return codes


def take_rows(table: jax.Array, codes: jax.Array) -> jax.Array:
    # Codes are checked where data come in: no bounds need to be looked at here.
    return table.at[codes].get(mode="promise_in_bounds")
