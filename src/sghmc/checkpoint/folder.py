"""Stop and resume: a run's state saved in a folder, and found there again.

    sghmc-checkpoint    says what the folder is; locked while a run writes
    draws/              a Zarr store, each array a file that is appended to: `store`
    saves/<draws>/      the state after so many draws, through orbax, and a manifest
    tuning/             what "auto" chose, likewise
    report.html         the page of `sghmc report`, if it was asked for

A save is written beside the others, flushed to the disk, and renamed into its place. Its manifest
has the checksum of every file and of the draws until then. Files are read without pickle, only
where they are expected, and only with the shapes that the run expects.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint import fingerprint, manifest, saved_state
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.checkpoint.errors import CheckpointError, CheckpointWarning, DamagedError, writing
from sghmc.checkpoint.lock import locked
from sghmc.checkpoint.manifest import Manifest, Progress
from sghmc.checkpoint.memory import Store
from sghmc.checkpoint.store import Files
from sghmc.core import atomic_file
from sghmc.core.optional import require
from sghmc.types import PyTree

T = TypeVar("T")

MARKER = "sghmc-checkpoint"
"""The file that says what the folder is."""
_NAMES = {MARKER, "draws", "saves", "tuning", "report.html"}
_UNFINISHED = "unfinished"
"""The name of a save that is still being written."""
_COMPUTED = "what the run computes"
"""How a run's steps are called among its arguments: functions, and the values that they use."""


@contextlib.contextmanager
def open_folder(checkpoint: Checkpoint, identity: Mapping[str, Any]) -> Iterator["Folder"]:
    """The folder, for this process alone, to be used by a run of this identity."""
    require("orbax.checkpoint", extra="checkpoint")  # before the work, not at its first save
    folder = Folder(checkpoint, fingerprint.describe(identity))
    try:
        folder.enter()
        yield folder
    finally:
        folder.close()


@dataclasses.dataclass
class Save:
    """The state of a run after `done` draws, burn-in included."""

    done: int
    carry: PyTree
    seconds: float
    startup_seconds: float
    sizes: Sequence[tuple[int, int]] = ()
    """From which draw on a stream had how many rows, where the data are one."""


class RunFolder(Protocol):
    """What a run asks of its folder, which one process has or several share."""

    def check(self) -> None: ...

    def identify(self, computed: dict[str, Any]) -> None: ...

    @property
    def has_saves(self) -> bool: ...

    def store(self, nothing: PyTree, num_draws: int) -> Store: ...

    def resume(self, like: PyTree, is_kept: np.ndarray) -> Save | None: ...

    def save(self, save: Save) -> None: ...

    def left(self, done: int) -> int: ...

    def is_due(self, done: int) -> bool: ...


class Folder:
    """A checkpoint's folder in use; `arguments` are those of its run, in words."""

    def __init__(self, settings: Checkpoint, arguments: dict[str, str]):
        self.settings, self.arguments = settings, arguments
        self.path = pathlib.Path(settings.path).absolute()
        self.lock: Any = None
        self.files: Files | None = None
        self.saved_at = time.monotonic()

    def enter(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file: a checkpoint needs a folder.")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        # A report that is just being written, or whose writer was killed, is no other's file.
        names = {name for name in os.listdir(self.path) if not atomic_file.is_draft(name)}
        if names and (MARKER not in names or names - _NAMES):
            other = sorted(names - _NAMES or names)[0]
            raise CheckpointError(
                f"{self.path} holds {other!r}, which is no part of a checkpoint: give the run a "
                f"folder of its own."
            )
        links = sorted(name for name in names if (self.path / name).is_symlink())
        if links:
            raise CheckpointError(
                f"{self.path / links[0]} is a link, and might lead to another run's files: give "
                f"the run a folder of its own, or bring the files there."
            )
        with writing(self.path):
            self.lock = locked(self.path / MARKER)
            for name in ("draws", "saves"):
                (self.path / name).mkdir(exist_ok=True)
            for place in (self.path, self.path / "saves"):
                _remove(place / _UNFINISHED)

    def close(self) -> None:
        if self.files is not None:
            self.files.close()
        if self.lock is not None:
            self.lock.close()

    # Draws and states

    def check(self) -> None:
        """Refuse other arguments than the saved ones, before any work is done."""
        for place in reversed(self._places()):
            with contextlib.suppress(DamagedError):
                return self._check_arguments(manifest.read(place).arguments)

    def identify(self, computed: dict[str, Any]) -> None:
        """Add what the run computes to what it is known by, and check that, too."""
        described = fingerprint.describe({_COMPUTED: computed})
        self.arguments |= described
        self.check()

    @property
    def has_saves(self) -> bool:
        return bool(self._places())

    def store(self, nothing: PyTree, num_draws: int) -> Files:
        """Where the draws go; `nothing` is what no draws look like."""
        self.files = Files(self.path / "draws", nothing, num_draws)
        return self.files

    def resume(self, like: PyTree, is_kept: np.ndarray) -> Save | None:
        """The newest intact save, with its draws; None where there is none yet.

        `like` has the structure, shapes and dtypes of the state; `is_kept` says of every draw of
        the run whether it is kept.
        """
        assert self.files is not None
        faults: list[str] = []
        places = self._places()
        for place in reversed(places):
            try:
                save = self._resume_from(place, like, is_kept)
            except DamagedError as fault:
                faults.append(f"the save after {int(place.name)} draws is damaged: {fault}")
                continue
            if faults:
                warnings.warn(
                    f"In {self.path} {'; '.join(faults)}. The run goes on from {save.done} draws.",
                    CheckpointWarning,
                    stacklevel=6,
                )
            for later in places[places.index(place) + 1 :]:
                shutil.rmtree(later)
            return save
        if faults:
            raise CheckpointError(
                f"No save in {self.path} can be used: {'; '.join(faults)}. Nothing was changed "
                f"there: bring the files back, or give another folder to begin anew."
            )
        self.files.begin()
        return None

    def _resume_from(self, place: pathlib.Path, like: PyTree, is_kept: np.ndarray) -> Save:
        assert self.files is not None
        found = manifest.read(place)
        self._check_arguments(found.arguments)
        progress = Progress.of(found)
        done, num_kept = progress.done, progress.num_kept
        if not done <= len(is_kept) or num_kept != np.count_nonzero(is_kept[:done]):
            raise DamagedError(f"it speaks of {num_kept} draws kept of {done}, unlike this run")
        arrays = saved_state.read(place, found, _named(like))
        self.files.go_on(num_kept, progress.draws)
        # Copies: the loop writes over its arguments.
        leaves = [jnp.array(arrays[name]) for name in _named(like)]
        carry = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return Save(done, carry, progress.seconds, progress.startup_seconds, progress.sizes)

    def save(self, save: Save) -> None:
        assert self.files is not None
        progress = Progress(
            done=save.done,
            seconds=save.seconds,
            startup_seconds=save.startup_seconds,
            num_kept=self.files.num_kept,
            draws=self.files.stored(),
            sizes=tuple(save.sizes),
        )
        saves = self.path / "saves"
        arrays = _named(jax.device_get(save.carry))
        with writing(self.path):
            _write(
                saves / f"{save.done:012d}", self.arguments, arrays, dataclasses.asdict(progress)
            )
            self.files.publish()
            for old in self._places()[: -self.settings.num_saves]:
                shutil.rmtree(old)
        self.saved_at = time.monotonic()

    def left(self, done: int) -> int:
        """How many draws may be made before the next look at whether a save is due."""
        every = self.settings.every
        return sys.maxsize if every is None else every - done % every

    def is_due(self, done: int) -> bool:
        if self.settings.every is not None:
            return done % self.settings.every == 0
        assert self.settings.seconds is not None
        return time.monotonic() - self.saved_at >= self.settings.seconds

    # What "auto" chose

    def read_tuning(self, decode: Callable[[Any, dict[str, np.ndarray]], T], most: int) -> T | None:
        """What `decode` makes of text and arrays, of at most so many numbers; None if not yet."""
        place = self.path / "tuning"
        if not place.is_dir():
            return None
        try:
            found = manifest.read(place)
            self._check_arguments(found.arguments)
            return decode(
                found.content, saved_state.read(place, found, saved_state.said(found, most))
            )
        except DamagedError as fault:
            warnings.warn(
                f"In {self.path} the result of tuning is damaged: {fault}. It is tuned anew.",
                CheckpointWarning,
                stacklevel=5,
            )
            shutil.rmtree(place)
            return None

    def write_tuning(self, content: Any, arrays: dict[str, np.ndarray]) -> None:
        with writing(self.path):
            _write(self.path / "tuning", self.arguments, arrays, content)

    # Both

    def _places(self) -> list[pathlib.Path]:
        return saves_in(self.path)

    def _check_arguments(self, then: Mapping[str, str]) -> None:
        if _COMPUTED not in self.arguments:  # not yet known
            then = {name: said for name, said in then.items() if not name.startswith(_COMPUTED)}
        found = fingerprint.differences(then, self.arguments)
        if found:
            raise CheckpointError(
                f"{self.path} belongs to a run with other arguments: {'; '.join(found)}. Call "
                f"sample with those of then, or give another folder."
            )


def saves_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders of saves, oldest first."""
    entries = os.scandir(folder / "saves")
    names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    return [folder / "saves" / name for name in sorted(names) if re.fullmatch(r"\d{12}", name)]


def _named(tree: PyTree) -> dict[str, Any]:
    return {f"{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _remove(path: pathlib.Path) -> None:
    """What a run that was killed left: a folder, and no link out of it."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _write(
    place: pathlib.Path, arguments: dict[str, str], arrays: dict[str, np.ndarray], content: Any
) -> None:
    """A folder with arrays and a manifest: whole and on the disk, or not there."""
    unfinished = place.parent / _UNFINISHED
    try:
        saved_state.write(unfinished, arrays)
        names = manifest.files_in(unfinished)
        whole = Manifest(
            arguments=arguments,
            content=content,
            arrays={name: (str(a.dtype), a.shape) for name, a in arrays.items()},
            files={name: manifest.checksum(unfinished / name) for name in names},
        )
        manifest.write(unfinished, whole)
        for folder, _, _ in os.walk(unfinished):
            manifest.flush(folder)
        os.rename(unfinished, place)
        manifest.flush(place.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
