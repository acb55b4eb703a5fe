"""Whole numbers as jax holds them, by default in 32 bits: refused where they would wrap around."""

import jax
import numpy as np


def check_fit(
    values: np.ndarray, dtype: np.dtype, name: str, error: type[ValueError] = ValueError
) -> None:
    """Refuse whole numbers that `dtype` cannot hold.

    >>> check_fit(np.array([3_000_000_000]), np.dtype("int32"), "The data")
    Traceback (most recent call last):
    ValueError: The data hold 3000000000, which int32 cannot: give floating point numbers or codes \
from 0, or let jax hold 64 bits by jax.config.update("jax_enable_x64", True).
    """
    if values.dtype.kind not in "iu" or np.can_cast(values.dtype, dtype) or values.size == 0:
        return
    limits = np.iinfo(dtype)
    for extreme in (values.min(), values.max()):
        if not limits.min <= int(extreme) <= limits.max:
            raise error(
                f"{name} hold {extreme}, which {dtype} cannot: give floating point numbers or "
                f'codes from 0, or let jax hold 64 bits by jax.config.update("jax_enable_x64", '
                f"True)."
            )


def held(values: np.ndarray, name: str, error: type[ValueError] = ValueError) -> np.ndarray:
    """An array with the type that jax gives it, if its whole numbers fit."""
    dtype = held_type(values.dtype)
    check_fit(values, dtype, name, error)
    return values.astype(dtype, copy=False)


def held_type(dtype: np.dtype) -> np.dtype:
    """The type that jax gives to arrays of this one."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))
