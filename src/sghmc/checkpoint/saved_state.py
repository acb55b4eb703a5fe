"""The arrays of a save, through orbax: room is made for those that a run expects, no others."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint import manifest
from sghmc.checkpoint.errors import DamagedError
from sghmc.checkpoint.manifest import Manifest
from sghmc.core.optional import require

_FOLDER = "state"


def _checkpointer() -> Any:
    orbax = require("orbax.checkpoint", extra="checkpoint")
    options = orbax.options.MultiprocessingOptions()
    if jax.process_count() > 1:  # of which only this one writes or reads: it waits for no other
        options = orbax.options.MultiprocessingOptions(
            primary_host=jax.process_index(),
            active_processes={jax.process_index()},
            barrier_sync_key_prefix="sghmc",
        )
    return orbax.StandardCheckpointer(multiprocessing_options=options)


def write(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    # orbax refuses arrays without entries; their shapes are all there is to know of them.
    full = {name: np.asarray(array) for name, array in arrays.items() if np.size(array)}
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(folder / _FOLDER, full)
    except OSError:
        raise
    except Exception as error:  # tensorstore reports a full disk as its own kind of error
        raise OSError(str(error)) from error


def said(found: Manifest, most: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays that a manifest speaks of, if they have at most so many numbers together."""
    if sum(math.prod(shape) for _, shape in found.arrays.values()) > most:
        raise DamagedError("it has larger arrays than this run makes")
    try:
        return {
            name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for name, (dtype, shape) in found.arrays.items()
        }
    except TypeError as error:
        raise DamagedError(f"it has arrays of a type that is none ({error})") from error


def read(folder: pathlib.Path, found: Manifest, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a save, which must be those of `like`."""
    manifest.check_files(folder, found)
    full = {name: leaf for name, leaf in like.items() if leaf.size}
    with _checkpointer() as checkpointer:
        try:
            # Before anything is read, and so before room is made for it: a piece of an array is
            # as large as its header says, and a process without that much memory ends there.
            there = checkpointer.metadata(folder / _FOLDER).item_metadata
            shapes = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in there.items()}
            if shapes != {name: (leaf.shape, leaf.dtype) for name, leaf in full.items()}:
                raise DamagedError("it has arrays of other shapes than this run")
            if any(
                np.greater(leaf.storage.chunk_shape, leaf.shape).any() for leaf in there.values()
            ):
                raise DamagedError("it has pieces of arrays that are larger than the arrays")
            arrays = checkpointer.restore(folder / _FOLDER, full)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise DamagedError(f"orbax cannot read it ({error})") from error
    empty = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in like.items() if not leaf.size}
    return empty | arrays
