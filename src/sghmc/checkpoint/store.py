"""Draws on the disk: a Zarr store that grows as they come, and that ArviZ opens at any time.

    draws/zarr.json                  all that the files below it say, in one
    draws/posterior/<name>/          an array: zarr.json, and its draws in one file
    draws/sample_stats/<name>/       likewise; names are those of `Samples.to_arviz`
    draws/run/<name>/                what ArviZ has no place for: trace, clock, bits of bfloat16

The number of draws is in each `zarr.json`, which is written anew at a save. These files are for
others: what a run goes on from, and believes, is the manifest of a save.
"""

import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from sghmc.checkpoint import manifest, zarr_format
from sghmc.checkpoint.background import Background
from sghmc.checkpoint.draw_file import DrawFile
from sghmc.checkpoint.errors import CheckpointError, DamagedError, writing
from sghmc.checkpoint.manifest import GROUPS, Stored
from sghmc.checkpoint.memory import length
from sghmc.checkpoint.zarr_format import GrowingArray
from sghmc.core import atomic_file
from sghmc.results.diagnostics import path_name
from sghmc.types import PyTree

_STATISTICS = {
    "info.potential": "potential",
    "info.is_finite": "diverging",
    "info.kinetic_temperature": "kinetic_temperature",
    "info.acceptance": "acceptance_rate",
}
_NEGATED = "info.is_finite"
"""ArviZ asks for the opposite."""
_FIRST_AXES = {"clock": "host"}
"""What the first axis is where it is not that of chains."""
_TAKEN = (zarr_format.METADATA, "chain", "draw", "host")
"""Names in a group that arrays cannot have."""


def variable(name: str) -> str | None:
    """What `Samples.to_arviz` calls a parameter or hyperparameter; None for what is neither.

    >>> [variable(name) for name in ("positions", "positions[0].w", "positions.w", "trace.w")]
    ['position', 'position[0].w', 'w', None]
    """
    if name.startswith("positions"):
        rest = name.removeprefix("positions")
        return rest[1:] if rest.startswith(".") else f"position{rest}"
    return name if name.startswith("hyper") else None


def stored_as(name: str, draws: np.ndarray) -> np.ndarray:
    """Draws as they are in the store, or back."""
    return ~draws if name == _NEGATED else draws


class _Member(NamedTuple):
    """One array of the run: its name there, its path in the store, its file."""

    name: str
    path: str
    array: GrowingArray
    column: DrawFile


class Files:
    """Draws in a folder, a file for each array, memory-mapped when they are looked at.

    Files are only ever appended to, by a thread, while the next draws are made.
    """

    def __init__(self, folder: pathlib.Path, nothing: PyTree, num_draws: int):
        self.folder, self.num_draws = folder, num_draws
        leaves, self._treedef = jax.tree.flatten_with_path(nothing)
        names = [path_name("", path) for path, _ in leaves]
        arrays = [
            GrowingArray(leaf.dtype, (leaf.shape[0], *leaf.shape[2:]), num_draws)
            for _, leaf in leaves
        ]
        self._members = [
            _Member(name, path, array, _column(folder, path, array.dtype, array.row, array.offset))
            for name, path, array in zip(names, _paths(names, arrays), arrays, strict=True)
        ]
        self.num_kept = 0
        self._background = Background()

    def begin(self) -> None:
        with writing(self.folder):
            shutil.rmtree(self.folder)  # what a run left that came to no save
            for member in self._members:
                member.column.begin(member.array.index)
            self.publish()
            for folder, _, _ in os.walk(self.folder):
                manifest.flush(folder)
            manifest.flush(self.folder.parent)

    def go_on(self, num_kept: int, stored: Mapping[str, Stored]) -> None:
        """Go on after the draws that `stored` speaks of; `DamagedError` if they are not there."""
        if set(stored) != {member.path for member in self._members}:
            raise DamagedError(f"it has draws of {sorted(stored)}, not those of this run")
        if not isinstance(num_kept, int) or not 0 <= num_kept <= self.num_draws:
            raise DamagedError(f"it speaks of {num_kept} draws, where the run has {self.num_draws}")
        for member in self._members:
            if stored[member.path] != _described(member, stored[member.path].digest):
                raise DamagedError(f"its draws of {member.name} are not those of this run")
            member.column.check(num_kept, stored[member.path].digest)
        self.num_kept = num_kept
        try:
            self._prepare_to_append()
        except CheckpointError:
            if num_kept < self.num_draws:  # all draws of a finished run can be read at least
                raise

    def _prepare_to_append(self) -> None:
        self.publish()  # before draws go that a reader might look for
        with writing(self.folder):
            atomic_file.remove_drafts(self.folder)
            for _, _, array, column in self._members:
                column.go_on(self.num_kept, array.index, array.whole_chunks(self.num_kept))

    def append(self, rows: PyTree) -> None:
        self._wait()
        self._background.do(self._write, jax.tree.leaves(rows))
        self.num_kept += length(rows)

    def _write(self, leaves: list[np.ndarray]) -> None:
        for member, leaf in zip(self._members, leaves, strict=True):
            member.column.append(stored_as(member.name, leaf))

    def _wait(self) -> None:
        """Until all that was appended is written; raises what went wrong there."""
        with writing(self.folder):
            self._background.wait()

    def stored(self) -> dict[str, Stored]:
        """What there is of each array so far, once all of it has reached the disk."""
        self._wait()
        with writing(self.folder):
            for member in self._members:
                member.column.flush(member.array.whole_chunks(self.num_kept))
        return {member.path: _described(member, member.column.digest) for member in self._members}

    def publish(self) -> None:
        """Let readers of the store see the draws that `stored` has brought to the disk."""
        groups = sorted({member.path.partition("/")[0] for member in self._members})
        nodes = {name: zarr_format.group() for name in groups}
        nodes |= {member.path: _metadata(member, self.num_kept) for member in self._members}
        with writing(self.folder):
            for path, node in nodes.items():
                atomic_file.write(self.folder / path / zarr_format.METADATA, json.dumps(node))
            whole = json.dumps(zarr_format.group(nodes))
            atomic_file.write(self.folder / zarr_format.METADATA, whole)

    def draws(self) -> PyTree:
        self._wait()
        return jax.tree.unflatten(
            self._treedef,
            [
                stored_as(member.name, member.column.draws(self.num_kept))
                for member in self._members
            ],
        )

    def close(self) -> None:
        self._background.close()
        for member in self._members:
            member.column.close()


def column_of(folder: pathlib.Path, path: str, stored: Stored) -> DrawFile:
    """The file of an array of which a manifest speaks, in a folder of draws."""
    dtype = jax.numpy.dtype(stored.dtype)  # jax knows bfloat16 by name, and numpy alone does not
    return _column(folder, path, dtype, stored.row, stored.offset)


def _column(
    folder: pathlib.Path, path: str, dtype: np.dtype, row: tuple[int, ...], offset: int
) -> DrawFile:
    return DrawFile(folder, f"{path}/{zarr_format.file_name(row)}", dtype, row, offset)


def _paths(names: list[str], arrays: list[GrowingArray]) -> list[str]:
    """Where arrays of these names lie in the store."""
    places = [_group_and_name(name, array.dtype) for name, array in zip(names, arrays, strict=True)]
    unique = {
        group: iter(zarr_format.unique_names([name for g, name in places if g == group], _TAKEN))
        for group in GROUPS
    }
    return [f"{group}/{next(unique[group])}" for group, _ in places]


def _group_and_name(name: str, dtype: np.dtype) -> tuple[str, str]:
    if name in _STATISTICS:
        return "sample_stats", _STATISTICS[name]
    shown = variable(name)
    # Bits that ArviZ would take for numbers are no part of its posterior.
    is_number = zarr_format.written(dtype) == dtype
    return ("run" if shown is None or not is_number else "posterior"), shown or name


def _described(member: _Member, digest: str) -> Stored:
    array = member.array
    return Stored(member.name, str(array.dtype), array.row, array.offset, digest)


def _metadata(member: _Member, num_kept: int) -> dict[str, Any]:
    variable = member.path.partition("/")[2]
    others = [f"{variable}_dim_{i}" for i in range(len(member.array.row) - 1)]
    dimensions = [_FIRST_AXES.get(member.name, "chain"), "draw", *others]
    return member.array.metadata(num_kept, dimensions)
