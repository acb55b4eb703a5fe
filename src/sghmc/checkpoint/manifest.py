"""A save on the disk: its arrays, through orbax, and a manifest that describes and protects them.

A manifest is text from a file. It is trusted only where it has the form of one that was written
here: every field is there and of its type, and every name could be a name. The hashes in it are
compared with the files that are in the folder, and no path is taken from it.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint.checkpoint import CheckpointError, DamagedError
from sghmc.checkpoint.zarr import safe_name
from sghmc.core.checks import require

# The groups of arrays in a store of draws.
GROUPS = ("posterior", "sample_stats", "run")
# Name of a save that is still being written.
UNFINISHED = "unfinished"
_FILE = "manifest.json"
_STATE = "state"
_FORMAT = "sghmc checkpoint, format "
_MAGIC = f"{_FORMAT}4"
# A manifest of ours has a few thousand bytes; a larger file is not read.
_MAX_MANIFEST_BYTES = 1 << 26
_HASH = re.compile(r"[0-9a-f]{64}")
_ARRAY_NAME = re.compile(r"\d{4}")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of a save, stored beside its arrays.

    | field | meaning |
    | --- | --- |
    | `arguments` | those of the run, as text |
    | `content` | what is saved besides arrays |
    | `arrays` | dtype and shape of each array |
    | `files` | the hash of every file beside the manifest |
    """

    arguments: dict[str, str]
    content: Any
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    files: dict[str, str]


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array of draws in its file: its name in the run, the first draw's position, and a hash.

    `row` is the shape of a draw, the chain axis first.
    """

    name: str
    dtype: str
    row: tuple[int, ...]
    offset: int
    digest: str


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """Content of a run's save: how far the run was, burn-in included, and its arrays of draws.

    `draws` has the arrays by their paths in the store. `sizes` is for streams: pairs of a draw and
    the number of rows that the stream had from that draw on.
    """

    done: int
    seconds: float
    startup_seconds: float
    num_kept: int
    draws: dict[str, StoredArray]
    sizes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> "RunProgress":
        progress = cls(**_fields(manifest.content, _PROGRESS, "content"))
        if progress.num_kept > progress.done:
            raise DamagedError("its manifest contradicts itself")
        return progress


def write_save(
    place: pathlib.Path, arguments: dict[str, str], arrays: dict[str, np.ndarray], content: Any
) -> None:
    """Write a folder with arrays and a manifest: after a crash it is whole, or not there.

    It is written beside its place, flushed to the disk, and renamed.
    """
    unfinished = place.parent / UNFINISHED
    try:
        write_state(unfinished, arrays)
        whole = Manifest(
            arguments=arguments,
            content=content,
            arrays={name: (str(a.dtype), a.shape) for name, a in arrays.items()},
            files={name: checksum(unfinished / name) for name in files_in(unfinished)},
        )
        write(unfinished, whole)
        for folder, _, _ in os.walk(unfinished):
            flush(folder)
        os.rename(unfinished, place)
        flush(place.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write(folder: pathlib.Path, manifest: Manifest) -> None:
    text = json.dumps(dataclasses.asdict(manifest), indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with open(folder / _FILE, "w", encoding="utf-8") as file:
        file.write(f"{_MAGIC}\n{digest}\n{text}")
        file.flush()
        os.fsync(file.fileno())


def read(folder: pathlib.Path) -> Manifest:
    """Read the manifest in a folder; `DamagedError` where there is none that could be ours.

    A save of another format is not damaged: it is refused with a `CheckpointError`.
    """
    path = folder / _FILE
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_MANIFEST_BYTES:
            raise DamagedError("its manifest is none of ours")
        magic, digest, text = path.read_text(encoding="utf-8").split("\n", 2)
    except (OSError, ValueError) as error:
        raise DamagedError(f"its manifest cannot be read ({error})") from error
    if magic.startswith(_FORMAT) and magic != _MAGIC:
        raise CheckpointError(
            f"{folder} was written by another version of sghmc: it has format "
            f"{magic.removeprefix(_FORMAT)[:10]}, and this version reads format "
            f"{_MAGIC.removeprefix(_FORMAT)}. Go on with the version that wrote it, or give "
            f"another folder."
        )
    if magic != _MAGIC:
        raise DamagedError(f"its manifest begins with {magic[:40]!r}, not with {_MAGIC!r}")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise DamagedError("its manifest has changed")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"its manifest cannot be read ({error})") from error
    return Manifest(**_fields(found, _MANIFEST, "whole"))


def check_files(folder: pathlib.Path, manifest: Manifest) -> None:
    """Check that a save has exactly the files of its manifest, with the hashes there."""
    names = set(files_in(folder)) - {_FILE}
    for name in sorted(names ^ set(manifest.files)):
        raise DamagedError(f"{name} is {'missing' if name in manifest.files else 'not its own'}")
    for name in sorted(names):
        if checksum(folder / name) != manifest.files[name]:
            raise DamagedError(f"{name} has changed")


def files_in(folder: pathlib.Path) -> list[str]:
    """List the files below a folder by their paths from there; refuse links and devices."""
    found = []
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            mode = (pathlib.Path(root) / name).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise DamagedError(f"{name} is a {'link' if stat.S_ISLNK(mode) else 'device'}")
        found += [(pathlib.Path(root) / name).relative_to(folder).as_posix() for name in names]
    return found


def checksum(path: pathlib.Path) -> str:
    """Bring a file to the disk and return its SHA-256."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(folder: str | pathlib.Path) -> None:
    """Bring the names in a folder to the disk; some systems do it themselves, and refuse."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# Parsers of a manifest's fields: each raises ValueError or the like for what it does not trust.


def _fields(found: Any, parsers: Mapping[str, Callable[[Any], Any]], name: str) -> dict[str, Any]:
    """Parse the fields of a part of a manifest, each with its parser."""
    if not isinstance(found, dict) or set(found) != set(parsers):
        names = sorted(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise DamagedError(
            f"its manifest's {name} has {names} in place of the fields {sorted(parsers)}"
        )
    parsed = {}
    for field, parse in parsers.items():
        try:
            parsed[field] = parse(found[field])
        except (ValueError, TypeError, AttributeError) as error:
            text = repr(found[field])
            text = text if len(text) < 60 else f"{text[:60]}…"
            raise DamagedError(f"its manifest has {text} for {field}") from error
    return parsed


def _trust(condition: bool) -> None:
    if not condition:
        raise ValueError


def _text(value: Any) -> str:
    _trust(isinstance(value, str))
    return value


def _count(value: Any) -> int:
    _trust(type(value) is int and value >= 0)
    return value


def _seconds(value: Any) -> float:
    _trust(type(value) in (int, float) and math.isfinite(value) and value >= 0)
    return float(value)


def _named(pattern: str | re.Pattern, parse: Callable[[Any], Any]) -> Callable[[Any], dict]:
    """Return a parser of dictionaries whose names match `pattern`."""

    def parse_all(value: Any) -> dict[str, Any]:
        _trust(all(re.fullmatch(pattern, name) for name in value))
        return {name: parse(entry) for name, entry in value.items()}

    return parse_all


def _hash(value: Any) -> str:
    _trust(_HASH.fullmatch(value) is not None)
    return value


def _array(value: Any) -> tuple[str, tuple[int, ...]]:
    dtype, shape = value
    return _text(dtype), tuple(map(_count, shape))


def _dtype(value: Any) -> str:
    found = jnp.dtype(_text(value))
    _trust(found.name == value and (found.kind == "b" or jnp.issubdtype(found, jnp.number)))
    return value


def _row(value: Any) -> tuple[int, ...]:
    _trust(len(value) > 0)
    return tuple(map(_count, value))


def _draws(value: Any) -> dict[str, StoredArray]:
    for path in value:
        group, _, name = path.partition("/")
        _trust(group in GROUPS and safe_name(name) == name)
    return {path: StoredArray(**_fields(entry, _STORED, "draws")) for path, entry in value.items()}


def _sizes(value: Any) -> tuple[tuple[int, int], ...]:
    sizes = tuple((_count(draw), _count(size)) for draw, size in value)
    _trust(all(size > 0 for _, size in sizes))
    _trust(all(one[0] <= next_one[0] for one, next_one in itertools.pairwise(sizes)))
    return sizes


_ANYTHING = re.compile(".*", re.DOTALL)
_MANIFEST: dict[str, Callable[[Any], Any]] = {
    "arguments": _named(_ANYTHING, _text),
    "content": lambda value: value,
    "arrays": _named(_ARRAY_NAME, _array),
    "files": _named(_ANYTHING, _hash),
}
_STORED: dict[str, Callable[[Any], Any]] = {
    "name": _text,
    "dtype": _dtype,
    "row": _row,
    "offset": _count,
    "digest": _hash,
}
_PROGRESS: dict[str, Callable[[Any], Any]] = {
    "done": _count,
    "seconds": _seconds,
    "startup_seconds": _seconds,
    "num_kept": _count,
    "draws": _draws,
    "sizes": _sizes,
}


# The arrays of a save, through orbax.


def _checkpointer() -> Any:
    orbax = require("orbax.checkpoint", extra="checkpoint")
    options = orbax.options.MultiprocessingOptions()
    if jax.process_count() > 1:  # only this process writes or reads: it waits for no other
        options = orbax.options.MultiprocessingOptions(
            primary_host=jax.process_index(),
            active_processes={jax.process_index()},
            barrier_sync_key_prefix="sghmc",
        )
    return orbax.StandardCheckpointer(multiprocessing_options=options)


def write_state(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    # orbax refuses arrays without entries; the manifest has their shapes, and nothing else is lost.
    full = {name: np.asarray(array) for name, array in arrays.items() if np.size(array)}
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(folder / _STATE, full)
    except OSError:
        raise
    except Exception as error:  # tensorstore reports a full disk as its own kind of error
        raise OSError(str(error)) from error


def arrays_like(found: Manifest, max_entries: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and dtypes of a manifest's arrays, if they have at most so many entries."""
    if sum(math.prod(shape) for _, shape in found.arrays.values()) > max_entries:
        raise DamagedError("it has larger arrays than this run makes")
    try:
        return {
            name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for name, (dtype, shape) in found.arrays.items()
        }
    except TypeError as error:
        raise DamagedError(f"it has arrays of an unknown type ({error})") from error


def read_state(
    folder: pathlib.Path, found: Manifest, like: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Read the arrays of a save, which must have the names, shapes and dtypes of `like`."""
    check_files(folder, found)
    full = {name: leaf for name, leaf in like.items() if leaf.size}
    with _checkpointer() as checkpointer:
        try:
            # Before anything is read: tensorstore allocates a chunk as large as its header says,
            # and a process without that much memory ends there.
            there = checkpointer.metadata(folder / _STATE).item_metadata
            shapes = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in there.items()}
            if shapes != {name: (leaf.shape, leaf.dtype) for name, leaf in full.items()}:
                raise DamagedError("it has arrays of other shapes than this run")
            if any(
                np.greater(leaf.storage.chunk_shape, leaf.shape).any() for leaf in there.values()
            ):
                raise DamagedError("it has chunks of arrays that are larger than the arrays")
            arrays = checkpointer.restore(folder / _STATE, full)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise DamagedError(f"orbax cannot read it ({error})") from error
    empty = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in like.items() if not leaf.size}
    return empty | arrays
