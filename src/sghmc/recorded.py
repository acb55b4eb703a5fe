"""A run as its checkpoint's folder has it, without the code that made it.

The newest save that is intact counts, and the draws until then. Nothing is changed there, so that
a run may still be writing.
"""

import hashlib
import os
import pathlib

import jax.numpy as jnp
import numpy as np

from sghmc import checkpoint, manifest
from sghmc.draws import CheckpointError, DamagedError
from sghmc.health import Record
from sghmc.manifest import Manifest, Progress
from sghmc.samples import Info, Samples

_CHUNK = 1 << 22
_INFO = "info."


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder says of itself that it is a checkpoint's."""
    return (pathlib.Path(folder) / checkpoint.MARKER).is_file()


def read_run(folder: str | os.PathLike[str]) -> Samples:
    """The draws in a folder of `Checkpoint`, memory-mapped, all numbers by name in `positions`.

    Averages are not among them, nor is the target: `health` leaves out what it needs that for.
    """
    folder = pathlib.Path(folder)
    if not is_run(folder):
        raise CheckpointError(f"{folder} is not the folder of a run: no {checkpoint.MARKER} there.")
    faults = []
    for place in reversed(checkpoint.saves_in(folder)):
        try:
            return _read(folder, manifest.read(place))
        except (DamagedError, KeyError, TypeError, ValueError) as fault:
            faults.append(f"the save after {int(place.name)} draws is damaged: {fault}")
    raise CheckpointError(
        f"No save in {folder} can be read: {'; '.join(faults) or 'there is none yet'}."
    )


def _read(folder: pathlib.Path, found: Manifest) -> Samples:
    progress, arguments = Progress.of(found), found.arguments
    columns = {
        name: _column(folder / "draws" / file, progress.num_kept, progress.draws[file], dtype)
        for file, (name, dtype) in progress.names.items()
    }
    info = {n.removeprefix(_INFO): part for n, part in columns.items() if n.startswith(_INFO)}
    return Samples(
        positions={
            shown: part
            for name, part in columns.items()
            if (shown := _shown_name(name)) is not None
        },
        hyper=None,
        averages={},
        trace=None,
        info=Info(info.pop("potential", None), **info),
        num_steps=progress.done * int(arguments.get("thinning", "1")),
        seconds=progress.seconds,
        startup_seconds=progress.startup_seconds,
        clock=columns["clock"][0],
        origin=Record(arguments, _number(arguments.get("sampler.temperature"))),
    )


def _shown_name(name: str) -> str | None:
    """The name of a parameter or hyperparameter; None for what is neither."""
    if name.startswith("positions"):
        rest = name.removeprefix("positions")
        return rest[1:] if rest.startswith(".") else f"position{rest}"
    return name if name.startswith("hyper") else None


def _number(words: str | None) -> float | None:
    try:
        return float(words or "")
    except ValueError:  # a schedule, or an array
        return None


def _column(path: pathlib.Path, num_kept: int, digest: str, dtype: str) -> np.ndarray:
    """The draws in a file, axes (chain, draw, …), if they hash to `digest`."""
    if path.is_symlink():
        raise DamagedError(f"draws/{path.name} is a link")
    try:
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            shape, _, written = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
            row = shape[1:]
            end = offset + num_kept * written.itemsize * int(np.prod(row))
            if written.hasobject or os.fstat(file.fileno()).st_size < end:
                raise DamagedError(f"draws/{path.name} is cut short")
            file.seek(0)
            if _hash(file, end) != digest:
                raise DamagedError(f"draws/{path.name} has changed")
    except (OSError, ValueError) as error:
        raise DamagedError(f"draws/{path.name} cannot be read ({error})") from error
    if num_kept * int(np.prod(row)) == 0:
        rows = np.empty((num_kept, *row), jnp.dtype(dtype))
    else:
        rows = np.memmap(path, written, "r", offset, (num_kept, *row)).view(jnp.dtype(dtype))
    return np.moveaxis(rows, 0, 1)


def _hash(file, left: int) -> str:
    digest = hashlib.sha256()
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            break
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()
