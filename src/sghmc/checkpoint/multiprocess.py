"""A checkpoint's folder as the processes of one run share it: process 0 writes, all can read."""

import jax
import numpy as np

from sghmc.checkpoint.checkpoint import Folder, Save
from sghmc.checkpoint.draws import CheckpointError
from sghmc.checkpoint.store import Files
from sghmc.core import processes
from sghmc.types import PyTree


class JointFolder(Folder):
    """Process 0 has the folder; the others hear what it finds, and fail where it does."""

    def enter(self):
        processes.on_leader(super().enter)

    def check(self):
        processes.on_leader(super().check)

    def store(self, nothing, num_draws):
        if processes.is_leader():
            self.files = _Written(self.path / "draws", nothing, num_draws)
        else:
            self.files = _Seen(self.path / "draws", nothing, num_draws)
        return self.files

    @property
    def has_saves(self):
        return bool(processes.broadcast(processes.is_leader() and super().has_saves))

    def resume(self, like, is_kept):
        save: Save | None = processes.on_leader(lambda: Folder.resume(self, like, is_kept))
        assert self.files is not None
        is_found, done, num_kept = processes.broadcast(
            [save is not None, 0 if save is None else save.done, self.files.num_kept]
        )
        if not is_found:
            return None
        self.files.num_kept = int(num_kept)
        if save is None:
            save = Save(int(done), _zeros(like), 0.0, 0.0)
        times = processes.broadcast([save.seconds, save.startup_seconds])
        save.seconds, save.startup_seconds = map(float, times)
        save.carry = processes.broadcast_tree(save.carry)
        return save

    def save(self, save):
        processes.on_leader(lambda: Folder.save(self, save))

    def is_due(self, done):
        return bool(processes.broadcast(super().is_due(done)))


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)


class _Written(Files):
    """Draws in files that other processes wait for."""

    def draws(self):
        mapped = super().draws()
        processes.broadcast(self.num_kept)
        return mapped


class _Seen(Files):
    """Draws in files that another process writes."""

    def append(self, rows):
        self.num_kept += jax.tree.leaves(rows)[0].shape[1]

    def draws(self):
        processes.broadcast(self.num_kept)
        try:
            return super().draws()
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}, which process 0 writes to, cannot be read here: {error}. Give a "
                f"folder that all processes see."
            ) from error
