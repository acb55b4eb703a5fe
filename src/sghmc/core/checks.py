"""Checks of single arguments: each error names the argument, what came, and what may come.

Also values of samplers' settings, and checks of integers that jax would wrap around, of matrices
over the parameters, of optional libraries, and of integer codes.
"""

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sghmc.core import matrices, tree
from sghmc.types import PyTree, Schedule


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


# Settings of samplers: a number, or a schedule, which is a function of the step number.

_MAX_SCHEDULE_POINTS = 1 << 20
"""Largest number of evenly spaced steps at which a schedule is checked; most runs are shorter."""


def check_setting(value: Any, name: str, *, positive: bool = False) -> None:
    """Refuse a number that is negative or not finite; schedules are checked by `values_over`."""
    if callable(value):
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number or a schedule (a function of the step number), not {value!r}."
        ) from None
    wanted = "positive" if positive else "zero or more"
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be {wanted} and finite, but is {number:g}.")


def value_at(setting: float | jax.Array | Schedule, t) -> jax.Array:
    """Return the setting at step t."""
    return jnp.asarray(setting(t) if callable(setting) else setting)


def values_over(setting: float | Schedule, num_steps: int, name: str) -> np.ndarray:
    """Check and return the setting's values at (a grid of) the steps 0, …, num_steps − 1.

    A constant has one value: it broadcasts against the others.
    """
    if not callable(setting):
        return np.array([float(setting)])
    count = min(num_steps, _MAX_SCHEDULE_POINTS)
    points = np.unique(np.linspace(0, num_steps - 1, count).astype(int))
    values = np.asarray(jax.vmap(lambda t: jnp.asarray(setting(t), float))(jnp.asarray(points)))
    if values.ndim != 1:
        raise ValueError(f"The schedule of {name} must return a number, not {values.shape[1:]}.")
    bad = ~(np.isfinite(values) & (values >= 0))
    if np.any(bad):
        raise ValueError(
            f"The schedule of {name} must stay finite and not negative, but is "
            f"{values[bad][0]:g} at step {points[bad][0]}."
        )
    return values


def array_setting(setting: float | Schedule, dtype) -> jax.Array | Schedule:
    """Convert a number to an array, so that a new value does not retrace; keep a schedule."""
    return setting if callable(setting) else jnp.asarray(setting, dtype)


def rescale(setting: float | Schedule, factor: float) -> float | Schedule:
    """Return a number or a schedule times a factor."""
    if callable(setting):
        return lambda t: factor * setting(t)
    return factor * setting


def scaled(setting: Any, factor: float) -> Any:
    """Return a setting times a factor: a number, a schedule, or a matrix in any of its forms."""
    if callable(setting):
        return rescale(cast(Schedule, setting), factor)
    return jax.tree.map(lambda leaf: factor * leaf, setting)


# Matrices: a number, a pytree like the parameters (a diagonal), or a dense (d, d) array.

MAX_DENSE_PARAMETERS = 2_000
"""Largest number of parameters of a dense matrix, whose eigenvalues then take seconds."""
_ASYMMETRY_TOLERANCE, _NEGATIVE_TOLERANCE = 1e-5, 1e-6
"""Relative asymmetry and negative eigenvalue that a user's matrix may have: those of rounding to
single precision."""


def check_matrix(value: PyTree, name: str) -> PyTree:
    """Check, on construction, that `value` may be a positive matrix."""
    if value is None or callable(value):
        raise TypeError(
            f"{name} must be a number, a pytree like the parameters or a dense (d, d) matrix, "
            f"not {value!r}."
        )
    for leaf in jax.tree.leaves(value):
        numbers = np.asarray(leaf)
        if not any(jnp.issubdtype(numbers.dtype, kind) for kind in (jnp.floating, jnp.integer)):
            raise TypeError(f"{name} must hold real numbers, but holds {numbers.dtype}.")
        if not np.all(np.isfinite(numbers)):
            raise ValueError(f"{name} must be finite, but holds {numbers[~np.isfinite(numbers)]}.")
        if numbers.ndim == 0 and numbers < 0:
            raise ValueError(f"{name} must not be negative, but is {numbers}.")
    return value


def parse_matrix(value: PyTree, like: PyTree, name: str, *, definite: bool) -> matrices.Matrix:
    """Convert a user's `value` to a checked matrix over the parameters, in double precision."""
    leaves, treedef = jax.tree.flatten(like)
    total = tree.size(like)
    given = jax.tree.leaves(value)
    is_array = len(given) == 1 and jax.tree.structure(value) == jax.tree.structure(0.0)
    array = np.asarray(given[0] if is_array else 0.0, np.float64)
    if array.ndim and not (len(leaves) == 1 and array.shape == leaves[0].shape):
        if array.shape != (total, total):
            raise ValueError(
                f"{name} has shape {array.shape}, but the parameters have {total} entries: give a "
                f"number, a pytree like the parameters, or a dense ({total}, {total}) matrix over "
                f"the raveled parameters."
            )
        _check_size(total, name)
        return _checked_dense(array, name, definite)
    if is_array and array.ndim == 0:
        diagonal = matrices.Diagonal([array], len(leaves))
    elif jax.tree.structure(value) != treedef:
        raise ValueError(
            f"{name} is a pytree {jax.tree.structure(value)}, but the parameters are {treedef}: "
            f"a diagonal needs one entry, a number or an array, for each leaf of the parameters."
        )
    else:
        values = []
        for entry, leaf in zip(given, leaves, strict=True):
            array = np.asarray(entry, np.float64)
            if array.ndim and array.shape != leaf.shape:
                raise ValueError(
                    f"{name} has a leaf of shape {array.shape} where the parameters have "
                    f"{leaf.shape}: give a number or an array of the same shape."
                )
            values.append(array.reshape(-1) if array.ndim else array)
        diagonal = matrices.Diagonal(values)
    lowest = min((float(np.min(value)) for value in diagonal.given if value.size), default=1.0)
    if lowest < 0 or (definite and lowest == 0):
        wanted = "positive" if definite else "not negative"
        raise ValueError(f"Every entry of {name} must be {wanted}, but the smallest is {lowest:g}.")
    return diagonal


def parse_factor(value: PyTree, like: PyTree, name: str) -> matrices.Matrix:
    """Convert a user's `value` to an invertible matrix, which need not be symmetric."""
    total = tree.size(like)
    if isinstance(value, matrices.LowRankFactor):
        if len(value.left) != total:
            raise ValueError(
                f"{name} is a matrix over {len(value.left)} parameters, but there are {total}."
            )
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), value)
    is_array = jax.tree.structure(value) == jax.tree.structure(0.0)
    if not is_array or np.shape(value) != (total, total) or total == 1:
        return parse_matrix(value, like, name, definite=True)
    _check_size(total, name)
    array = np.asarray(value, np.float64)
    singular = np.linalg.svd(array, compute_uv=False)
    if singular[-1] < singular[0] * np.finfo(float).eps:
        raise ValueError(
            f"{name} must be invertible, but its singular values reach from {singular[-1]:g} to "
            f"{singular[0]:g}."
        )
    return matrices.Dense(array)


def _check_size(total: int, name: str) -> None:
    if total > MAX_DENSE_PARAMETERS:
        raise ValueError(
            f"{name} is a dense matrix over {total:,} parameters: to factor one of more than "
            f"{MAX_DENSE_PARAMETERS:,} takes minutes, and every step as many products as it has "
            f"entries. Give a number, or a diagonal as a pytree like the parameters."
        )


def _checked_dense(array: Float[np.ndarray, "d d"], name: str, definite: bool) -> matrices.Dense:
    scale = float(np.max(np.abs(array))) or 1.0
    asymmetry = float(np.max(np.abs(array - array.T)))
    if asymmetry > _ASYMMETRY_TOLERANCE * scale:
        raise ValueError(
            f"{name} must be symmetric, but its entries differ from their mirror images by up to "
            f"{asymmetry:g}: use (A + A.T) / 2 if that is what you mean."
        )
    array = (array + array.T) / 2
    lowest = float(np.linalg.eigvalsh(array)[0])
    if lowest < -_NEGATIVE_TOLERANCE * scale or (definite and lowest <= 0):
        wanted = "positive definite" if definite else "positive semi-definite"
        raise ValueError(f"{name} must be {wanted}, but its smallest eigenvalue is {lowest:g}.")
    return matrices.Dense(array)


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


def take_rows(table: jax.Array, codes: jax.Array | np.ndarray) -> jax.Array:
    # Codes were checked when the data came in, so bounds are not checked again.
    return table.at[codes].get(mode="promise_in_bounds")
