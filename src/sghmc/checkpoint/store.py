"""Stores that gather a run's draws: in memory, or on the disk as a Zarr store that ArviZ opens.

    draws/zarr.json                  the metadata of all nodes below
    draws/posterior/<name>/          an array: zarr.json, and its draws in one file
    draws/sample_stats/<name>/       likewise; names are those of `Samples.to_arviz`
    draws/run/<name>/                what ArviZ has no group for: trace, clock, bits of bfloat16

Each save rewrites the number of draws in every `zarr.json`. These files are for other programs: a
run goes on from the manifest of a save, and never reads them.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from sghmc.checkpoint import manifest, zarr
from sghmc.checkpoint.checkpoint import CheckpointError, DamagedError, writing
from sghmc.checkpoint.manifest import GROUPS, StoredArray
from sghmc.checkpoint.zarr import DrawFile, GrowingArray
from sghmc.core import files, runtime
from sghmc.results.summaries import path_name
from sghmc.types import PyTree


class RamStore:
    """Draws in memory, allocated for all `num_draws` when the first come, or as they come.

    `nothing` is the pytree of no draws. Arrays keep the order of axes that the loop has, so that
    rows are copied and not transposed. A thread copies them while the next draws are made.
    """

    def __init__(self, nothing: PyTree, num_draws: int, *, grows: bool = False):
        self.num_kept, self.num_draws, self._grows = 0, num_draws, grows
        self._whole = nothing
        self._background = _Background()

    def append(self, rows: PyTree) -> None:
        stop = self.num_kept + num_rows(rows)
        if stop > num_rows(self._whole):
            room = min(self.num_draws, 2 * stop) if self._grows else self.num_draws
            before = self.draws()
            self._whole = jax.tree.map(lambda leaf: self._allocate(leaf, room), rows)
            jax.tree.map(
                lambda new, old: np.copyto(new[:, : self.num_kept], old), self._whole, before
            )
        parts = jax.tree.map(lambda whole: whole[:, self.num_kept : stop], self._whole)
        self._background.run(jax.tree.map, np.copyto, parts, rows)
        self.num_kept = stop

    def draws(self) -> PyTree:
        self._background.wait()
        return jax.tree.map(lambda whole: whole[:, : self.num_kept], self._whole)

    def _allocate(self, leaf: np.ndarray, num_draws: int) -> np.ndarray:
        shape = (leaf.shape[0], num_draws, *leaf.shape[2:])
        outermost_first = sorted(range(leaf.ndim), key=lambda axis: -leaf.strides[axis])
        whole = np.empty([shape[axis] for axis in outermost_first], leaf.dtype)
        return whole.transpose(np.argsort(outermost_first))


def num_rows(rows: PyTree) -> int:
    """Count the draws in a pytree of arrays with axes (chain, draw, …)."""
    return jax.tree.leaves(rows)[0].shape[1]


class _Background:
    """A thread that runs one function at a time while the caller goes on."""

    def __init__(self):
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "sghmc-draws")
        self._pending: concurrent.futures.Future | None = None

    def run(self, function: Callable, *arguments: Any) -> None:
        self.wait()  # so that no more than these arguments are held
        self._pending = self._thread.submit(function, *arguments)

    def wait(self) -> None:
        """Wait until the function has returned, or raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self._thread.shutdown()


_STATISTICS = {
    "info.potential": "potential",
    "info.is_finite": "diverging",
    "info.kinetic_temperature": "kinetic_temperature",
    "info.acceptance": "acceptance_rate",
}
# ArviZ's `diverging` is the opposite of our `is_finite`.
_NEGATED = "info.is_finite"
# Name of the first axis where it does not count chains.
_FIRST_AXES = {"clock": "host"}
# Names in a group that arrays cannot have.
_TAKEN_NAMES = (zarr.METADATA, "chain", "draw", "host")


class _Column(NamedTuple):
    """One array of the run: its name there, its path in the store, its layout and its file."""

    name: str
    path: str
    array: GrowingArray
    file: DrawFile

    def stored(self, digest: str) -> StoredArray:
        array = self.array
        return StoredArray(self.name, str(array.dtype), array.row, array.offset, digest)

    def check_room(self, num_draws: int) -> None:
        if num_draws > self.array.max_draws:
            raise CheckpointError(
                f"{self.path} in {self.file.folder} has room for {self.array.max_draws} draws, but "
                f"the run shall have {num_draws}: go on in another folder, from init=samples.last."
            )

    def metadata(self, num_kept: int) -> dict[str, Any]:
        variable = self.path.partition("/")[2]
        others = [f"{variable}_dim_{i}" for i in range(len(self.array.row) - 1)]
        first = _FIRST_AXES.get(self.name, "chain")
        return self.array.metadata(num_kept, [first, "draw", *others])


class DiskStore:
    """Draws in a folder, one file for each array, memory-mapped when they are read.

    A thread appends to the files while the next draws are made. In a run of several processes,
    process 0 writes, and the others read what it has written.
    """

    def __init__(
        self, folder: pathlib.Path, nothing: PyTree, num_draws: int, *, grows: bool = False
    ):
        self.folder, self.num_draws, self.num_kept = folder, num_draws, 0
        self._grows = grows
        leaves, self._treedef = jax.tree.flatten_with_path(nothing)
        names = [path_name("", path) for path, _ in leaves]
        arrays = [
            GrowingArray.of(leaf.dtype, (leaf.shape[0], *leaf.shape[2:]), num_draws)
            for _, leaf in leaves
        ]
        self._columns = [
            self._column(name, path, array)
            for name, path, array in zip(names, _paths(names, arrays), arrays, strict=True)
        ]
        self._background = _Background()

    def _column(self, name: str, path: str, array: GrowingArray) -> _Column:
        file = DrawFile(self.folder, path, array.dtype, array.row, array.offset)
        return _Column(name, path, array, file)

    def create(self) -> None:
        """Create files without draws, in place of those of a run that was never saved."""
        with writing(self.folder):
            shutil.rmtree(self.folder)
            for column in self._columns:
                column.file.create(column.array.index)
            self.publish()
            for folder, _, _ in os.walk(self.folder):
                manifest.flush(folder)
            manifest.flush(self.folder.parent)

    def reopen(self, num_kept: int, stored: Mapping[str, StoredArray]) -> None:
        """Go on after the draws that a manifest lists; `DamagedError` if they are not there."""
        if set(stored) != {column.path for column in self._columns}:
            raise CheckpointError(
                f"{self.folder.parent} belongs to a run that kept other parts of a draw: "
                f"{', '.join(sorted(stored))}. Call sample with the keep and trace of then, or "
                f"give another folder."
            )
        for i, (name, path, mine, _) in enumerate(self._columns):
            # The layout of then, which another number of draws may have made.
            array = dataclasses.replace(mine, num_chunks=stored[path].offset // 16)
            column, digest = self._column(name, path, array), stored[path].digest
            if stored[path] != column.stored(digest):
                raise DamagedError(f"its draws of {name} are not those of this run")
            column.check_room(num_kept if self._grows else self.num_draws)
            column.file.check(num_kept, digest)
            self._columns[i] = column
        if num_kept > self.num_draws:
            raise CheckpointError(
                f"{self.folder.parent} has {num_kept} draws of each chain, more than the "
                f"{self.num_draws} asked for: give num_samples={num_kept}, or another folder."
            )
        self.num_kept = num_kept
        try:
            self.publish()  # before draws go that a reader might look for
            with writing(self.folder):
                for _, _, array, file in self._columns:
                    file.reopen(num_kept, array.index, array.file_bytes(num_kept))
        except CheckpointError:
            if num_kept < self.num_draws:  # a finished run can be read from a read-only disk
                raise

    def append(self, rows: PyTree) -> None:
        for column in self._columns:
            column.check_room(self.num_kept + num_rows(rows))
        if runtime.is_leader():
            self._wait()
            self._background.run(self._write, jax.tree.leaves(rows))
        self.num_kept += num_rows(rows)

    def _write(self, leaves: list[np.ndarray]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.file.append(as_stored(column.name, leaf))

    def _wait(self) -> None:
        """Wait until all draws are written, or raise the error of the thread that writes."""
        with writing(self.folder):
            self._background.wait()

    def stored(self) -> dict[str, StoredArray]:
        """Bring all draws to the disk, and describe each array for a manifest."""
        self._wait()
        with writing(self.folder):
            for column in self._columns:
                column.file.flush(column.array.file_bytes(self.num_kept))
        return {column.path: column.stored(column.file.digest) for column in self._columns}

    def publish(self) -> None:
        """Write the number of draws into the metadata, where readers of the store find it."""
        groups = sorted({column.path.partition("/")[0] for column in self._columns})
        nodes = {name: zarr.group_metadata() for name in groups}
        nodes |= {column.path: column.metadata(self.num_kept) for column in self._columns}
        with writing(self.folder):
            for path, node in nodes.items():
                files.write(self.folder / path / zarr.METADATA, json.dumps(node))
            files.write(self.folder / zarr.METADATA, json.dumps(zarr.group_metadata(nodes)))

    def draws(self) -> PyTree:
        self._wait()
        if runtime.is_multiprocess():
            runtime.broadcast(self.num_kept)  # the others wait here until process 0 has written
        try:
            mapped = [as_stored(c.name, c.file.draws(self.num_kept)) for c in self._columns]
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}, which process 0 writes to, cannot be read here: {error}. Give a "
                f"folder that all processes can read."
            ) from error
        return jax.tree.unflatten(self._treedef, mapped)

    def close(self) -> None:
        self._background.close()
        for column in self._columns:
            column.file.close()


def as_stored(name: str, draws: np.ndarray) -> np.ndarray:
    """Convert draws to what the store holds of them, or back."""
    return ~draws if name == _NEGATED else draws


def _paths(names: list[str], arrays: list[GrowingArray]) -> list[str]:
    """Return the path in the store of each array of a run: its group, and a name unique there."""
    places = []
    for name, array in zip(names, arrays, strict=True):
        variable = arviz_name(name)
        # Bits that ArviZ would take for numbers do not belong into its posterior.
        is_number = zarr.disk_type(array.dtype) == array.dtype
        if name in _STATISTICS:
            places.append(("sample_stats", _STATISTICS[name]))
        else:
            group = "posterior" if variable is not None and is_number else "run"
            places.append((group, variable or name))
    unique = {
        group: iter(zarr.unique_names([name for g, name in places if g == group], _TAKEN_NAMES))
        for group in GROUPS
    }
    return [f"{group}/{next(unique[group])}" for group, _ in places]


def arviz_name(name: str) -> str | None:
    """Return the name that `Samples.to_arviz` gives a parameter or hyperparameter; else None.

    >>> [arviz_name(name) for name in ("positions", "positions[0].w", "positions.w", "trace.w")]
    ['position', 'position[0].w', 'w', None]
    """
    if name.startswith("positions"):
        rest = name.removeprefix("positions")
        return rest[1:] if rest.startswith(".") else f"position{rest}"
    return name if name.startswith("hyper") else None
