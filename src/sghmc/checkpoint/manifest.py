"""The manifest of a save: what the save holds, in words and checksums.

It is text from a file, and believed only where it has the form of one that was written here: each
field there and of its type, each name a name. What it says of files is held against those that are
in the folder, and no path is taken from it.
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
import stat
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from sghmc.checkpoint.errors import DamagedError
from sghmc.checkpoint.zarr_format import safe_name

_FILE = "manifest.json"
_FORMAT = "sghmc checkpoint, format "
_MAGIC = f"{_FORMAT}3"
_LARGEST = 1 << 26
"""Bytes of a manifest that is read: one of ours has a few thousand."""
_HASH = re.compile(r"[0-9a-f]{64}")
_ARRAY = re.compile(r"\d{4}")
GROUPS = ("posterior", "sample_stats", "run")
"""The folders of arrays among the draws."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a save says of itself.

    | field | meaning |
    | --- | --- |
    | `arguments` | those of the run, in words |
    | `content` | what is saved besides arrays |
    | `arrays` | dtype and shape of each array |
    | `files` | the hash of every file beside the manifest |
    """

    arguments: dict[str, str]
    content: Any
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    files: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array of draws in its file: name in the run, what a draw is, where they begin, their hash.

    `row` is the shape of a draw, the chains first.
    """

    name: str
    dtype: str
    row: tuple[int, ...]
    offset: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Progress:
    """The content of a run's save: how far it was, burn-in included, and what there is of draws.

    `draws` has the arrays by their paths in the folder of draws; `sizes`, where the data are a
    stream, from which draw on it had how many rows.
    """

    done: int
    seconds: float
    startup_seconds: float
    num_kept: int
    draws: dict[str, Stored]
    sizes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> "Progress":
        progress = cls(**_fields(manifest.content, _PROGRESS, "content"))
        if progress.num_kept > progress.done:
            raise DamagedError("its manifest contradicts itself")
        return progress


def write(folder: pathlib.Path, manifest: Manifest) -> None:
    text = json.dumps(dataclasses.asdict(manifest), indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with open(folder / _FILE, "w", encoding="utf-8") as file:
        file.write(f"{_MAGIC}\n{digest}\n{text}")
        file.flush()
        os.fsync(file.fileno())


def read(folder: pathlib.Path) -> Manifest:
    """The manifest in a folder; `DamagedError` where there is none that could be ours."""
    path = folder / _FILE
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise DamagedError("its manifest is none of ours")
        magic, digest, text = path.read_text(encoding="utf-8").split("\n", 2)
    except (OSError, ValueError) as error:
        raise DamagedError(f"its manifest cannot be read ({error})") from error
    if magic.startswith(_FORMAT) and magic != _MAGIC:
        raise DamagedError(
            f"it was written by another version of sghmc, whose saves have format "
            f"{magic.removeprefix(_FORMAT)[:10]} and not {_MAGIC.removeprefix(_FORMAT)} as here; "
            f"that version can go on with it"
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
    """All files of a save as its manifest has them, none missing and none more."""
    names = set(files_in(folder)) - {_FILE}
    for name in sorted(names ^ set(manifest.files)):
        raise DamagedError(f"{name} is {'missing' if name in manifest.files else 'not its own'}")
    for name in sorted(names):
        if checksum(folder / name) != manifest.files[name]:
            raise DamagedError(f"{name} has changed")


def files_in(folder: pathlib.Path) -> list[str]:
    """The files below a folder, by their paths from there; links and devices are refused."""
    found = []
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = pathlib.Path(root) / name
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise DamagedError(f"{name} is a {'link' if stat.S_ISLNK(mode) else 'device'}")
        found += [(pathlib.Path(root) / name).relative_to(folder).as_posix() for name in names]
    return found


def checksum(path: pathlib.Path) -> str:
    """The hash of a file, once it has reached the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(folder: str | pathlib.Path) -> None:
    """Make names in a folder reach the disk; some systems cannot, and do it themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# What is believed


def _fields(found: Any, parsers: Mapping[str, Callable[[Any], Any]], name: str) -> dict[str, Any]:
    """The fields of a part of a manifest, each through its parser."""
    if not isinstance(found, dict) or set(found) != set(parsers):
        shown = sorted(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise DamagedError(
            f"its manifest's {name} has {shown} in place of the fields {sorted(parsers)}"
        )
    return {field: _parsed(field, parse, found[field]) for field, parse in parsers.items()}


def _parsed(field: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except (ValueError, TypeError, AttributeError) as error:
        shown = repr(value)
        shown = shown if len(shown) < 60 else f"{shown[:60]}…"
        raise DamagedError(f"its manifest has {shown} for {field}") from error


def _believe(is_so: bool) -> None:
    if not is_so:
        raise ValueError


def _text(value: Any) -> str:
    _believe(isinstance(value, str))
    return value


def _count(value: Any) -> int:
    _believe(type(value) is int and value >= 0)
    return value


def _seconds(value: Any) -> float:
    _believe(type(value) in (int, float) and math.isfinite(value) and value >= 0)
    return float(value)


def _named(pattern: str | re.Pattern, parse: Callable[[Any], Any]) -> Callable[[Any], dict]:
    """A parser of dictionaries with names of this form."""

    def parse_all(value: Any) -> dict[str, Any]:
        _believe(all(re.fullmatch(pattern, name) for name in value))
        return {name: parse(entry) for name, entry in value.items()}

    return parse_all


def _hash(value: Any) -> str:
    _believe(_HASH.fullmatch(value) is not None)
    return value


def _array(value: Any) -> tuple[str, tuple[int, ...]]:
    dtype, shape = value
    return _text(dtype), tuple(map(_count, shape))


def _dtype(value: Any) -> str:
    found = jnp.dtype(_text(value))
    _believe(found.name == value and (found.kind == "b" or jnp.issubdtype(found, jnp.number)))
    return value


def _row(value: Any) -> tuple[int, ...]:
    _believe(len(value) > 0)
    return tuple(map(_count, value))


def _draws(value: Any) -> dict[str, Stored]:
    for path in value:
        group, _, name = path.partition("/")
        _believe(group in GROUPS and safe_name(name) == name)
    return {path: Stored(**_fields(entry, _STORED, "draws")) for path, entry in value.items()}


def _sizes(value: Any) -> tuple[tuple[int, int], ...]:
    sizes = tuple((_count(draw), _count(size)) for draw, size in value)
    _believe(all(size > 0 for _, size in sizes))
    _believe(all(one[0] <= next_one[0] for one, next_one in itertools.pairwise(sizes)))
    return sizes


_ANYTHING = re.compile(".*", re.DOTALL)
_MANIFEST: dict[str, Callable[[Any], Any]] = {
    "arguments": _named(_ANYTHING, _text),
    "content": lambda value: value,
    "arrays": _named(_ARRAY, _array),
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
