"""Stop and resume: the folder in which a run saves its state and its draws.

    sghmc-checkpoint    marks the folder; locked while a run writes
    draws/              a Zarr store, each array a file that is appended to: see `store`
    saves/<draws>/      the state after so many draws, through orbax, and a manifest
    tuning/             the settings that "auto" chose, likewise
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
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint import fingerprint, manifest
from sghmc.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    DamagedError,
    writing,
)
from sghmc.checkpoint.manifest import UNFINISHED, Manifest, RunProgress
from sghmc.checkpoint.store import DiskStore, arviz_name, as_stored
from sghmc.checkpoint.zarr import DrawFile
from sghmc.core import files, runtime
from sghmc.core.checks import require
from sghmc.results.prediction import SavedOrigin
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info
from sghmc.types import PyTree

T = TypeVar("T")

# This file marks a folder as a checkpoint's.
_MARKER = "sghmc-checkpoint"
_NAMES = {_MARKER, "draws", "saves", "tuning", "report.html"}
# Name of the run's traced program among its arguments: functions, and the values that they use.
_COMPUTED = "what the run computes"


@dataclasses.dataclass
class Save:
    """The state of a run after `done` draws, burn-in included.

    `sizes` is for streams: pairs of a draw and the number of rows from that draw on.
    """

    done: int
    state: PyTree
    seconds: float
    startup_seconds: float
    sizes: Sequence[tuple[int, int]] = ()


@contextlib.contextmanager
def open_folder(checkpoint: Checkpoint, identity: Mapping[str, Any]) -> Iterator["RunFolder"]:
    """Open and lock a checkpoint's folder for a run of this identity."""
    require("orbax.checkpoint", extra="checkpoint")  # before the work, not at its first save
    folder = RunFolder(checkpoint, fingerprint.describe(identity))
    try:
        runtime.on_leader(folder.enter)
        yield folder
    finally:
        folder.close()


class RunFolder:
    """A checkpoint's folder in use; `arguments` are those of its run, as text.

    In a run of several processes, process 0 reads and writes. It tells the others what it found,
    and where it fails, all fail.
    """

    store: DiskStore

    def __init__(self, settings: Checkpoint, arguments: dict[str, str]):
        self.settings, self.arguments = settings, arguments
        self.path = pathlib.Path(settings.path).absolute()
        self.saved_at = time.monotonic()
        self._lock: int | None = None

    def enter(self) -> None:
        """Create the folder where there is none, refuse any other kind of folder, and lock it."""
        if os.path.exists(self.path) and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file: a checkpoint needs a folder.")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        _check_contents(self.path)
        with writing(self.path):
            self._lock = _locked(self.path / _MARKER)
            for name in ("draws", "saves"):
                (self.path / name).mkdir(exist_ok=True)
            for unfinished in (self.path / UNFINISHED, self.path / "saves" / UNFINISHED):
                if unfinished.is_symlink():  # it may lead out of the folder
                    unfinished.unlink()
                else:
                    shutil.rmtree(unfinished, ignore_errors=True)

    def close(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        if self._lock is not None:
            os.close(self._lock)

    def check(self) -> None:
        """Refuse other arguments than the saved ones, before any work is done."""
        runtime.on_leader(self._check_newest)

    def identify(self, computed: dict[str, Any]) -> None:
        """Add what the run computes to its arguments, and check that, too."""
        self.arguments |= fingerprint.describe({_COMPUTED: computed})
        self.check()

    def _check_newest(self) -> None:
        for place in reversed(_saves_in(self.path)):
            with contextlib.suppress(DamagedError):
                return self._check_arguments(manifest.read(place).arguments)

    def _check_arguments(self, then: Mapping[str, str]) -> None:
        if _COMPUTED not in self.arguments:  # not yet known
            then = {name: text for name, text in then.items() if not name.startswith(_COMPUTED)}
        now = self.arguments
        if ("num_samples" in then) != ("num_samples" in now):  # another difference decides that
            then, now = ({**each, "num_samples": ""} for each in (then, now))
        found = fingerprint.differences(then, now)
        if found:
            raise CheckpointError(
                f"{self.path} belongs to a run with other arguments: {'; '.join(found)}. Call "
                f"sample with those of then, or give another folder."
            )

    @property
    def has_saves(self) -> bool:
        return bool(runtime.broadcast(runtime.is_leader() and bool(_saves_in(self.path))))

    def open_store(self, nothing: PyTree, num_draws: int, *, grows: bool) -> DiskStore:
        """Return the store for the run's draws; `nothing` is the pytree of no draws."""
        self.store = DiskStore(self.path / "draws", nothing, num_draws, grows=grows)
        return self.store

    def resume(self, like: PyTree, is_kept: np.ndarray) -> Save | None:
        """Return the newest intact save and open its draws; None where there is no save yet.

        `like` has the structure, shapes and dtypes of the state; `is_kept` tells for every draw of
        the run whether it is kept.
        """
        save: Save | None = runtime.on_leader(lambda: self._newest_intact(like, is_kept))
        if not runtime.is_multiprocess():
            return save
        done = -1 if save is None else save.done
        done, num_kept = map(int, runtime.broadcast([done, self.store.num_kept]))
        if done < 0:
            return None
        self.store.num_kept = num_kept
        if save is None:
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
            save = Save(done, zeros, 0.0, 0.0)
        times = runtime.broadcast([save.seconds, save.startup_seconds])
        save.seconds, save.startup_seconds = map(float, times)
        save.state = runtime.broadcast_tree(save.state)
        return save

    def _newest_intact(self, like: PyTree, is_kept: np.ndarray) -> Save | None:
        damages: list[str] = []
        places = _saves_in(self.path)
        for place in reversed(places):
            try:
                save = self._read(place, like, is_kept)
            except DamagedError as error:
                damages.append(f"the save after {int(place.name)} draws is damaged: {error}")
                continue
            if damages:
                warnings.warn(
                    f"In {self.path} {'; '.join(damages)}. The run goes on from {save.done} draws.",
                    CheckpointWarning,
                    stacklevel=8,
                )
            for later in places[places.index(place) + 1 :]:
                shutil.rmtree(later)
            return save
        if damages:
            raise CheckpointError(
                f"No save in {self.path} can be used: {'; '.join(damages)}. Nothing was changed "
                f"there: bring the files back, or give another folder to begin anew."
            )
        self.store.create()
        return None

    def _read(self, place: pathlib.Path, like: PyTree, is_kept: np.ndarray) -> Save:
        found = manifest.read(place)
        self._check_arguments(found.arguments)
        progress = RunProgress.of(found)
        done, num_kept = progress.done, progress.num_kept
        is_longer = num_kept > np.count_nonzero(is_kept)  # then the store refuses it
        if not is_longer and (done > len(is_kept) or num_kept != np.count_nonzero(is_kept[:done])):
            raise DamagedError(f"it speaks of {num_kept} draws kept of {done}, unlike this run")
        arrays = manifest.read_state(place, found, _numbered(like))
        self.store.reopen(num_kept, progress.draws)
        # Copies, because the loop overwrites its arguments.
        leaves = [jnp.array(arrays[name]) for name in _numbered(like)]
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return Save(done, state, progress.seconds, progress.startup_seconds, progress.sizes)

    def save(self, save: Save) -> None:
        """Write a save, publish the draws until then, and remove the oldest saves."""
        runtime.on_leader(lambda: self._write(save))

    def _write(self, save: Save) -> None:
        progress = RunProgress(
            done=save.done,
            seconds=save.seconds,
            startup_seconds=save.startup_seconds,
            num_kept=self.store.num_kept,
            draws=self.store.stored(),
            sizes=tuple(save.sizes),
        )
        place = self.path / "saves" / f"{save.done:012d}"
        arrays = _numbered(jax.device_get(save.state))
        with writing(self.path):
            manifest.write_save(place, self.arguments, arrays, dataclasses.asdict(progress))
            self.store.publish()
            for old in _saves_in(self.path)[: -self.settings.num_saves]:
                shutil.rmtree(old)
        self.saved_at = time.monotonic()

    def draws_until_check(self, done: int) -> int:
        """Return how many draws may be made before `is_due` must be asked again."""
        every = self.settings.every
        return sys.maxsize if every is None else every - done % every

    def is_due(self, done: int) -> bool:
        """Return whether a save is due after `done` draws."""
        every, seconds = self.settings.every, self.settings.seconds
        if every is not None:
            return done % every == 0
        assert seconds is not None
        # By the clock of process 0, since all must save together.
        return bool(runtime.broadcast(time.monotonic() - self.saved_at >= seconds))

    def read_tuning(
        self, decode: Callable[[Any, dict[str, np.ndarray]], T], max_entries: int
    ) -> T | None:
        """Decode the settings that "auto" chose, of at most so many entries; None without any."""
        place = self.path / "tuning"
        if not place.is_dir():
            return None
        try:
            found = manifest.read(place)
            self._check_arguments(found.arguments)
            like = manifest.arrays_like(found, max_entries)
            return decode(found.content, manifest.read_state(place, found, like))
        except DamagedError as error:
            warnings.warn(
                f"In {self.path} the result of tuning is damaged: {error}. It is tuned anew.",
                CheckpointWarning,
                stacklevel=5,
            )
            shutil.rmtree(place)
            return None

    def write_tuning(self, content: Any, arrays: dict[str, np.ndarray]) -> None:
        with writing(self.path):
            manifest.write_save(self.path / "tuning", self.arguments, arrays, content)


def _saves_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """List the folders of saves, oldest first."""
    entries = os.scandir(folder / "saves")
    names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    return [folder / "saves" / name for name in sorted(names) if re.fullmatch(r"\d{12}", name)]


def _numbered(tree: PyTree) -> dict[str, Any]:
    """Name the leaves of a state by their order: parameters' names may be any text."""
    return {f"{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _check_contents(folder: pathlib.Path) -> None:
    """Refuse a folder that holds anything but a checkpoint, or links out of it."""
    # A draft is a report in the making, or one whose writer was killed.
    names = {name for name in os.listdir(folder) if not files.is_draft(name)}
    if names and (_MARKER not in names or names - _NAMES):
        other = sorted(names - _NAMES or names)[0]
        raise CheckpointError(
            f"{folder} holds {other!r}, which is no part of a checkpoint: give the run a folder of "
            f"its own."
        )
    for name in names:
        files.check_plain(folder / name)
    links = sorted(name for name in names if (folder / name).is_symlink())
    if links:
        raise CheckpointError(
            f"{folder / links[0]} is a link, and might lead to another run's files: give the run a "
            f"folder of its own, or bring the files there."
        )


def _locked(path: pathlib.Path) -> int:
    """Open a file that no other run can open so; the lock of a killed process is released."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        # A finished run has nothing to write: its folder may be on a read-only disk.
        if not path.exists():
            raise
        handle = os.open(path, os.O_RDONLY)
    try:
        import fcntl
    except ImportError:  # Windows: nothing keeps two runs out of one folder
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise CheckpointError(
            f"Another run is writing to {path.parent}: wait for it, or give another folder."
        ) from None
    return handle


# A run as its folder has it, without the code that made it.


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Check whether a folder is marked as a checkpoint's."""
    return (pathlib.Path(folder) / _MARKER).is_file()


def read_run(folder: str | os.PathLike[str]) -> Samples:
    """Read the draws in a folder of `Checkpoint`, memory-mapped, all of them in `positions`.

    They are the draws up to the newest intact save. Nothing is changed in the folder, so that a run
    may still be writing. Averages and the target are not there: `health` leaves out the checks that
    need them.
    """
    folder = pathlib.Path(folder)
    if not is_run(folder):
        raise CheckpointError(f"{folder} is not the folder of a run: no {_MARKER} there.")
    damages = []
    for place in reversed(_saves_in(folder)):
        try:
            return _samples(folder / "draws", manifest.read(place))
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            damages.append(f"the save after {int(place.name)} draws is damaged: {error}")
    raise CheckpointError(
        f"No save in {folder} can be read: {'; '.join(damages) or 'there is none yet'}."
    )


def _samples(folder: pathlib.Path, found: Manifest) -> Samples:
    progress, arguments, columns = RunProgress.of(found), found.arguments, {}
    for path, stored in progress.draws.items():
        dtype = jnp.dtype(stored.dtype)  # jax knows bfloat16 by name, numpy alone does not
        file = DrawFile(folder, path, dtype, stored.row, stored.offset)
        file.check(progress.num_kept, stored.digest)
        columns[stored.name] = as_stored(stored.name, file.draws(progress.num_kept))
    info = {n.removeprefix("info."): part for n, part in columns.items() if n.startswith("info.")}
    try:
        temperature = float(arguments.get("sampler.temperature", ""))
    except ValueError:  # a schedule, or an array
        temperature = None
    return Samples(
        positions={
            shown: part for name, part in columns.items() if (shown := arviz_name(name)) is not None
        },
        hyper=None,
        averages={},
        trace=None,
        info=Info(info.pop("potential", None), **info),
        num_steps=progress.done * int(arguments.get("thinning", "1")),
        seconds=progress.seconds,
        startup_seconds=progress.startup_seconds,
        clock=columns["clock"][0],
        origin=SavedOrigin(arguments, temperature),
    )
