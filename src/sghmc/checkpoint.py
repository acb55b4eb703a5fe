"""Stop and resume: a run's state saved in a folder, and found there again.

    sghmc-checkpoint    says what the folder is; locked while a run writes
    draws/              a .npy file for each array, appended to: `draws.Files`
    saves/<draws>/      the state after so many draws, through orbax, and a manifest
    tuning/             what "auto" chose, likewise
    report.html         the page of `sghmc report`, if it was asked for

A save is written beside the others, flushed to the disk, and renamed into its place. Its manifest
has the checksum of every file and of the draws until then. Files are read without pickle, only
where they are expected, and only with the shapes that the run expects.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import fingerprint
from sghmc.draws import CheckpointError, DamagedError, Files, writing
from sghmc.types import PyTree

MARKER = "sghmc-checkpoint"
_NAMES = {MARKER, "draws", "saves", "tuning", "report.html"}
_MAGIC = "sghmc checkpoint, format 1"
_MANIFEST, _STATE = "manifest.json", "state"
_LARGEST_MANIFEST = 1 << 26
_UNFINISHED = "unfinished"
_DEFAULT_SECONDS = 60.0
_WITHOUT_EFFECT = ("checkpoint", "progress", "throw")
"""Arguments on which draws do not depend."""


class CheckpointWarning(UserWarning):
    """A damaged save was passed over."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where `sample` saves its state and its draws, and how often.

    | field | meaning |
    | --- | --- |
    | `path` | a folder for this run alone; it is made where there is none |
    | `every` | save after so many draws, burn-in included |
    | `seconds` | or after so many seconds; without either, after 60 |
    | `num_saves` | how many of the last saves stay |

    Called again with the same arguments, `sample` goes on where it was stopped, and returns bit for
    bit what it would have returned. Draws go to files as they come and are memory-mapped when they
    are looked at, so that memory does not grow with their number.

    >>> import sghmc
    >>> sghmc.Checkpoint("runs/first", every=100)
    Checkpoint(path='runs/first', every=100, seconds=None, num_saves=3)
    """

    path: str | os.PathLike[str]
    every: int | None = None
    seconds: float | None = None
    num_saves: int = 3

    def __post_init__(self):
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"path must name a folder, but is {self.path!r}.")
        for name in ("every", "num_saves"):
            number = getattr(self, name)
            is_whole = isinstance(number, int | np.integer) and number >= 1
            if not is_whole and (name, number) != ("every", None):
                raise ValueError(f"{name} must be a whole number from 1, but is {number!r}.")
        if self.every is not None and self.seconds is not None:
            raise ValueError("Give every=… draws or seconds=…, not both.")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, but is {self.seconds!r}.")
        if self.every is None and self.seconds is None:
            object.__setattr__(self, "seconds", _DEFAULT_SECONDS)

    @contextlib.contextmanager
    def open(self, arguments: Mapping[str, Any]) -> Iterator["Folder"]:
        """The folder, for this process alone, to be used by a run with these arguments."""
        named = {name: value for name, value in arguments.items() if name not in _WITHOUT_EFFECT}
        folder = Folder(self, fingerprint.describe(named))
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


class Folder:
    """A checkpoint's folder in use."""

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
        names = set(os.listdir(self.path))
        if names and (MARKER not in names or names - _NAMES):
            other = sorted(names - _NAMES or names)[0]
            raise CheckpointError(
                f"{self.path} holds {other!r}, which is no part of a checkpoint: give the run a "
                f"folder of its own."
            )
        with writing(self.path):
            self.lock = _locked(self.path / MARKER)
            for name in ("draws", "saves"):
                (self.path / name).mkdir(exist_ok=True)
        for place in (self.path, self.path / "saves"):
            shutil.rmtree(place / _UNFINISHED, ignore_errors=True)

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
                return self._check_arguments(read_manifest(place)["arguments"])

    def store(self, nothing: PyTree, num_draws: int) -> Files:
        """Where the draws go; `nothing` is what no draws look like."""
        self.files = Files(self.path / "draws", nothing, num_draws)
        return self.files

    def resume(self, like: PyTree) -> Save | None:
        """The newest intact save, with its draws; None where there is none yet.

        `like` has the structure, shapes and dtypes of the state.
        """
        assert self.files is not None
        faults: list[str] = []
        places = self._places()
        for place in reversed(places):
            try:
                save = self._resume_from(place, like)
            except DamagedError as fault:
                faults.append(f"the save after {int(place.name)} draws is damaged: {fault}")
                continue
            if faults:
                warnings.warn(
                    f"In {self.path} {'; '.join(faults)}. The run goes on from {save.done} draws.",
                    CheckpointWarning,
                    stacklevel=4,
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

    def _resume_from(self, place: pathlib.Path, like: PyTree) -> Save:
        assert self.files is not None
        manifest = read_manifest(place)
        self._check_arguments(manifest["arguments"])
        state = manifest["content"]
        arrays = _read_arrays(place, manifest, _named(like))
        self.files.go_on(state["num_kept"], state["draws"])
        # Copies: the loop writes over its arguments.
        leaves = [jnp.array(arrays[name]) for name in _named(like)]
        return Save(
            state["done"],
            jax.tree.unflatten(jax.tree.structure(like), leaves),
            state["seconds"],
            state["startup_seconds"],
        )

    def save(self, save: Save) -> None:
        assert self.files is not None
        content = {
            "done": save.done,
            "seconds": save.seconds,
            "startup_seconds": save.startup_seconds,
            "num_kept": self.files.num_kept,
            "draws": self.files.extent(),
            "names": self.files.content(),
        }
        saves = self.path / "saves"
        arrays = _named(jax.device_get(save.carry))
        with writing(self.path):
            self._write(saves / f"{save.done:012d}", arrays, content)
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

    def read_tuning(self, largest: int) -> tuple[Any, dict[str, np.ndarray]] | None:
        """Text and arrays of at most `largest` numbers each, as written; None if not yet."""
        place = self.path / "tuning"
        if not place.is_dir():
            return None
        try:
            manifest = read_manifest(place)
            self._check_arguments(manifest["arguments"])
            return manifest["content"], _read_arrays(place, manifest, None, largest)
        except DamagedError as fault:
            warnings.warn(
                f"In {self.path} the result of tuning is damaged: {fault}. It is tuned anew.",
                CheckpointWarning,
                stacklevel=4,
            )
            shutil.rmtree(place)
            return None

    def write_tuning(self, content: Any, arrays: dict[str, np.ndarray]) -> None:
        with writing(self.path):
            self._write(self.path / "tuning", arrays, content)

    # Both

    def _places(self) -> list[pathlib.Path]:
        return saves_in(self.path)

    def _check_arguments(self, then: Mapping[str, str]) -> None:
        found = fingerprint.differences(then, self.arguments)
        if found:
            raise CheckpointError(
                f"{self.path} belongs to a run with other arguments: {'; '.join(found)}. Call "
                f"sample with those of then, or give another folder."
            )

    def _write(self, place: pathlib.Path, arrays: dict[str, np.ndarray], content: Any) -> None:
        """A folder with arrays and a manifest: whole and on the disk, or not there."""
        unfinished = place.parent / _UNFINISHED
        try:
            _write_arrays(unfinished / _STATE, arrays)
            manifest = {
                "arguments": self.arguments,
                "content": content,
                "arrays": {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()},
                "files": {name: _checksum(unfinished / name) for name in _files_in(unfinished)},
            }
            _write_manifest(unfinished, manifest)
            for folder in (*_folders_in(unfinished), unfinished):
                _flush(folder)
            os.rename(unfinished, place)
            _flush(place.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def saves_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders of saves, oldest first."""
    entries = os.scandir(folder / "saves")
    names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    return [folder / "saves" / name for name in sorted(names) if re.fullmatch(r"\d{12}", name)]


def _named(tree: PyTree) -> dict[str, Any]:
    return {f"{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _write_arrays(place: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    import orbax.checkpoint

    # orbax refuses arrays without entries; their shapes are all there is to know of them.
    full = {name: np.asarray(array) for name, array in arrays.items() if np.size(array)}
    try:
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(place, full)
    except OSError:
        raise
    except Exception as error:  # tensorstore reports a full disk as its own kind of error
        raise OSError(str(error)) from error


def _read_arrays(
    place: pathlib.Path,
    manifest: Mapping[str, Any],
    like: Mapping[str, Any] | None,
    largest: int | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of a save, which must be those of `like`, or have at most `largest` numbers."""
    import orbax.checkpoint

    _check_files(place, manifest["files"])
    if like is None:
        like = {
            name: jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))
            for name, (dtype, shape) in manifest["arrays"].items()
        }
    full = {name: leaf for name, leaf in like.items() if leaf.size}
    if largest is not None and any(leaf.size > largest for leaf in full.values()):
        raise DamagedError("it has larger arrays than this run makes")
    if not all(re.fullmatch(r"\d{4}", name) for name in like):
        raise DamagedError("it has arrays of other names than this run")
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        try:
            found = checkpointer.metadata(place / _STATE).item_metadata
            found = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in found.items()}
            # Before anything is read, and so before room is made for it.
            if found != {name: (leaf.shape, leaf.dtype) for name, leaf in full.items()}:
                raise DamagedError("it has arrays of other shapes than this run")
            arrays = checkpointer.restore(place / _STATE, full)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise DamagedError(f"orbax cannot read it ({error})") from error
    empty = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in like.items() if not leaf.size}
    return empty | arrays


def _write_manifest(folder: pathlib.Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest, indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with open(folder / _MANIFEST, "w", encoding="utf-8") as file:
        file.write(f"{_MAGIC}\n{digest}\n{text}")
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_MANIFEST:
            raise DamagedError("its manifest is none of ours")
        magic, digest, text = path.read_text(encoding="utf-8").split("\n", 2)
    except (OSError, ValueError) as error:
        raise DamagedError(f"its manifest cannot be read ({error})") from error
    if magic != _MAGIC:
        raise DamagedError(f"its manifest begins with {magic[:40]!r}, not with {_MAGIC!r}")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise DamagedError("its manifest has changed")
    return json.loads(text)


def _check_files(folder: pathlib.Path, checksums: Mapping[str, Any]) -> None:
    """All files of a save as its manifest has them, none missing and none more."""
    names = set(_files_in(folder)) - {_MANIFEST}
    for name in sorted(names ^ set(checksums)):
        raise DamagedError(f"{name} is {'missing' if name in checksums else 'not its own'}")
    for name in sorted(names):
        if _checksum(folder / name) != checksums[name]:
            raise DamagedError(f"{name} has changed")


def _files_in(folder: pathlib.Path) -> list[str]:
    """The files below a folder, by their paths from there; links are refused."""
    found = []
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if (pathlib.Path(root) / name).is_symlink():
                raise DamagedError(f"{name} is a link")
        found += [(pathlib.Path(root) / name).relative_to(folder).as_posix() for name in names]
    return found


def _folders_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return [pathlib.Path(root) / name for root, folders, _ in os.walk(folder) for name in folders]


def _checksum(path: pathlib.Path) -> str:
    """The hash of a file, once it has reached the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: pathlib.Path) -> None:
    """Make names in a folder reach the disk; some systems cannot, and do it themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _locked(path: pathlib.Path) -> Any:
    """An open file that no other run can have; a process that is killed gives it back."""
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    try:
        import fcntl
    except ImportError:  # Windows: two runs in one folder are then the user's care
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise CheckpointError(
            f"Another run is writing to {path.parent}: wait for it, or give another folder."
        ) from None
    return file
