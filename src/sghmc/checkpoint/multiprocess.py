"""A checkpoint's folder as the processes of one run share it: process 0 writes, all can read."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from sghmc.checkpoint import fingerprint
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.checkpoint.errors import CheckpointError
from sghmc.checkpoint.folder import Folder, Save
from sghmc.checkpoint.memory import length
from sghmc.checkpoint.store import Files
from sghmc.core import processes
from sghmc.types import PyTree


@contextlib.contextmanager
def open_joint_folder(
    checkpoint: Checkpoint, identity: Mapping[str, Any]
) -> Iterator["JointFolder"]:
    """The folder, for all processes of a run of this identity."""
    own = Folder(checkpoint, fingerprint.describe(identity))
    try:
        processes.on_leader(own.enter)
        yield JointFolder(own)
    finally:
        own.close()


class JointFolder:
    """Process 0 has the folder; the others hear what it finds, and fail where it does."""

    def __init__(self, own: Folder):
        self.own = own

    def check(self) -> None:
        processes.on_leader(self.own.check)

    def identify(self, computed: dict[str, Any]) -> None:
        processes.on_leader(lambda: self.own.identify(computed))

    @property
    def has_saves(self) -> bool:
        return bool(processes.broadcast(processes.is_leader() and self.own.has_saves))

    def store(self, nothing: PyTree, num_draws: int) -> "JointFiles":
        return JointFiles(self.own.store(nothing, num_draws))

    def resume(self, like: PyTree, is_kept: np.ndarray) -> Save | None:
        save: Save | None = processes.on_leader(lambda: self.own.resume(like, is_kept))
        assert self.own.files is not None
        is_found, done, num_kept = processes.broadcast(
            [save is not None, 0 if save is None else save.done, self.own.files.num_kept]
        )
        if not is_found:
            return None
        self.own.files.num_kept = int(num_kept)
        if save is None:
            save = Save(int(done), _zeros(like), 0.0, 0.0)
        times = processes.broadcast([save.seconds, save.startup_seconds])
        save.seconds, save.startup_seconds = map(float, times)
        save.carry = processes.broadcast_tree(save.carry)
        return save

    def save(self, save: Save) -> None:
        processes.on_leader(lambda: self.own.save(save))

    def left(self, done: int) -> int:
        return self.own.left(done)

    def is_due(self, done: int) -> bool:
        return bool(processes.broadcast(self.own.is_due(done)))


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)


class JointFiles:
    """Draws in files that process 0 writes, and that the others read once it has written them."""

    def __init__(self, own: Files):
        self.own = own

    @property
    def num_kept(self) -> int:
        return self.own.num_kept

    def append(self, rows: PyTree) -> None:
        if processes.is_leader():
            self.own.append(rows)
        else:
            self.own.num_kept += length(rows)

    def draws(self) -> PyTree:
        if processes.is_leader():
            mapped = self.own.draws()
            processes.broadcast(self.num_kept)
            return mapped
        processes.broadcast(self.num_kept)
        try:
            return self.own.draws()
        except OSError as error:
            raise CheckpointError(
                f"{self.own.folder}, which process 0 writes to, cannot be read here: {error}. Give "
                f"a folder that all processes see."
            ) from error
