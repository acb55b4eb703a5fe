"""A run as its checkpoint's folder has it, without the code that made it.

The newest save that is intact counts, and the draws until then. Nothing is changed there, so that
a run may still be writing.
"""

import os
import pathlib

import numpy as np

from sghmc.checkpoint import folder as folders
from sghmc.checkpoint import manifest
from sghmc.checkpoint.errors import CheckpointError, DamagedError
from sghmc.checkpoint.manifest import Manifest, Progress, Stored
from sghmc.checkpoint.store import column_of, stored_as, variable
from sghmc.results.info import Info
from sghmc.results.origin import SavedOrigin
from sghmc.results.samples import Samples

_INFO = "info."


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder says of itself that it is a checkpoint's."""
    return (pathlib.Path(folder) / folders.MARKER).is_file()


def read_run(folder: str | os.PathLike[str]) -> Samples:
    """The draws in a folder of `Checkpoint`, memory-mapped, all numbers by name in `positions`.

    Averages are not among them, nor is the target: `health` leaves out what it needs that for.
    """
    folder = pathlib.Path(folder)
    if not is_run(folder):
        raise CheckpointError(f"{folder} is not the folder of a run: no {folders.MARKER} there.")
    faults = []
    for place in reversed(folders.saves_in(folder)):
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
        stored.name: _checked(folder / "draws", path, stored, progress.num_kept)
        for path, stored in progress.draws.items()
    }
    info = {n.removeprefix(_INFO): part for n, part in columns.items() if n.startswith(_INFO)}
    return Samples(
        positions={
            shown: part for name, part in columns.items() if (shown := variable(name)) is not None
        },
        hyper=None,
        averages={},
        trace=None,
        info=Info(info.pop("potential", None), **info),
        num_steps=progress.done * int(arguments.get("thinning", "1")),
        seconds=progress.seconds,
        startup_seconds=progress.startup_seconds,
        clock=columns["clock"][0],
        origin=SavedOrigin(arguments, _number(arguments.get("sampler.temperature"))),
    )


def _checked(folder: pathlib.Path, path: str, stored: Stored, num_kept: int) -> np.ndarray:
    """An array of draws, axes (chain, draw, …), if it is what was stored."""
    column = column_of(folder, path, stored)
    column.check(num_kept, stored.digest)
    return stored_as(stored.name, column.draws(num_kept))


def _number(words: str | None) -> float | None:
    try:
        return float(words or "")
    except ValueError:  # a schedule, or an array
        return None
