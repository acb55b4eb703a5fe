"""Checks of single arguments: each error names the argument, what came, and what may come.

Also checks of integers that jax would wrap around, of optional libraries, and of integer codes.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_count(
    value: Any, name: str, lowest: int = 1, *, or_none: str | None = None, reason: str = ""
) -> None:
    """Check that `value` is a whole number from `lowest` on.

    `or_none` says what None means, where that may be given; `reason`, why `lowest`.

    >>> check_count(0, "every")
    Traceback (most recent call last):
    ValueError: every must be a whole number from 1, but is 0.
    """
    if value is None and or_none is not None:
        return
    if isinstance(value, int | np.integer) and type(value) is not bool and value >= lowest:
        return
    wanted = f"a whole number from {lowest}{reason and f', {reason}'}"
    if or_none is not None:
        wanted = f"None{or_none and f', {or_none},'} or {wanted}"
    raise ValueError(f"{name} must be {wanted}, but is {value!r}.")


def check_choice(value: Any, name: str, choices: Sequence[Any]) -> None:
    """Check that `value` is one of the `choices`.

    >>> check_choice("start", "observe", ("end", "middle"))
    Traceback (most recent call last):
    ValueError: observe must be "end" or "middle", but is 'start'.
    """
    # By type too: 1 is not True.
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return
    *others, last = (f'"{each}"' if isinstance(each, str) else str(each) for each in choices)
    raise ValueError(f"{name} must be {', '.join(others)} or {last}, but is {value!r}.")


# Integers: jax stores them in 32 bits by default, where larger ones would wrap around.


def check_fit(
    values: np.ndarray, dtype: np.dtype, name: str, error: type[ValueError] = ValueError
) -> None:
    """Check that `dtype` can hold whole numbers, which would otherwise wrap around.

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


def check_numbers(dtype: Any, name: str, error: type[Exception] = TypeError) -> None:
    """Check that a dtype is one of numbers, or of booleans, that jax can compute with.

    >>> check_numbers(np.dtype("U2"), "The data")
    Traceback (most recent call last):
    TypeError: The data must hold numbers of at most 64 bits, not <U2.
    """
    is_number = dtype == np.bool_ or jnp.issubdtype(dtype, np.number)
    if not is_number or dtype.kind == "m" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise error(f"{name} must hold numbers of at most 64 bits, not {dtype}.")


def held(values: np.ndarray, name: str, error: type[ValueError] = ValueError) -> np.ndarray:
    """Convert an array to the dtype that jax gives it; raise if its whole numbers do not fit."""
    dtype = held_type(values.dtype)
    check_fit(values, dtype, name, error)
    return values.astype(dtype, copy=False)


def as_array(values: Any, name: str) -> jax.Array:
    """Convert numbers to an array of jax; raise if jax cannot hold them."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} have masked entries: fill them, or leave out their rows.")
    array = values if isinstance(values, jax.Array) else np.asarray(values)
    check_numbers(array.dtype, name)
    if isinstance(array, np.ndarray):
        array = held(array, name)
    # Python's own numbers stay of weak type.
    return jnp.asarray(values if isinstance(values, complex | float | int) else array)


def held_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype that jax gives to arrays of this one."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


# Optional libraries, each of which belongs to an extra.


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module of an optional library; if that is missing, raise an error with its extra.

    >>> require("json", extra="data").loads("1")
    1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != library:
            raise  # the library is installed, but something that it imports is missing
        raise ModuleNotFoundError(
            f"This needs {library}, which is not installed: pip install 'sghmc-jax[{extra}]'.",
            name=error.name,
        ) from error


# Codes: whole numbers 0, 1, … that name classes, users or items.


def checked_codes(codes, num_codes: int, name: str) -> np.ndarray:
    """Return `codes` as a vector, checked to be integers from 0 to `num_codes` − 1."""
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
    # Codes were checked when the data came in, so bounds are not checked again.
    return table.at[codes].get(mode="promise_in_bounds")
