"""Files that are there whole or not at all.

A draft is written beside its place, flushed to the disk, and renamed. So a reader, a full disk or a
killed process never leaves half a file under its name, and the place may be a mount point. Drafts
get the permissions that the umask leaves, and no link is followed.

Where downloads and compiled programs are kept from one run to the next.

Results on disk, as JSON.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_SUFFIX = ".unfinished"


def is_draft(name: str) -> bool:
    """Whether a name is that of a draft, which a killed process may have left."""
    return name.startswith(".") and name.endswith(_SUFFIX)


def remove_drafts(folder: pathlib.Path) -> None:
    """Remove what killed processes left below a folder that nobody else writes to."""
    for path in folder.rglob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


def write(path: pathlib.Path, content: bytes | str) -> None:
    with draft(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def draft(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty file to write to, which takes the place of `path` when the block ends well.

    It is made at once: a folder that cannot be written to is an error before any work is done.
    """
    with _made(path.parent):
        unfinished = _draft_in(path.parent)
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield unfinished
            _flush(unfinished)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def drafts(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A scratch folder inside `folder`; its files move there together when the block ends well."""
    with _made(folder):
        scratch = _draft_in(folder)
        scratch.mkdir()
        try:
            yield scratch
            files = sorted(scratch.iterdir())
            for file in files:
                _flush(file)
            for file in files:
                os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _made(folder: pathlib.Path) -> Iterator[None]:
    """The folder and those above it; what had to be made goes again if nothing is put there."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder to write to.")
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: the work was done
            for each in missing:
                each.rmdir()


def _draft_in(folder: pathlib.Path) -> pathlib.Path:
    return folder / f".{secrets.token_hex(8)}{_SUFFIX}"


def _flush(file: pathlib.Path) -> None:
    with open(file, "r+b") as opened:
        os.fsync(opened.fileno())


# Where downloads and compiled programs are kept from one run to the next.

_SHORTEST = 0.2
"""Seconds of compilation that are worth a file."""


def cache_folder() -> pathlib.Path:
    """The folder `sghmc` where the platform keeps caches; it need not exist yet.

    | platform | parent |
    | --- | --- |
    | any, where `XDG_CACHE_HOME` is set | that folder |
    | macOS | `~/Library/Caches` |
    | Windows | `%LOCALAPPDATA%` |
    | others | `~/.cache` |

    `RuntimeError` where there is no home.
    """
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        parent = pathlib.Path(chosen)
    elif sys.platform == "darwin":
        parent = pathlib.Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        parent = pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home())
    else:
        parent = pathlib.Path.home() / ".cache"
    return parent / "sghmc"


def cache(path: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Keep compiled programs in a folder, so that the next process need not compile them again.

    Programs that took 0.2 s or more are kept there, and found again by all that they depend on:
    model, shapes, settings that are compiled in, versions and kind of device. Call it before
    `sample`; what was compiled before stays out. Without `path`, where jax was told to keep them,
    or in the platform's folder for caches. It returns the folder; `OSError` if nothing can be
    written there.

    >>> import sghmc
    >>> folder = sghmc.cache("/tmp/programs")  # doctest: +SKIP
    """
    known = jax.config.values["jax_compilation_cache_dir"]
    if path is None and known is not None:
        return pathlib.Path(known)
    folder = cache_folder() / f"jax-{jax.__version__}" if path is None else pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"Compiled programs cannot be kept in {folder}: it is read-only.")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    compilation_cache.reset_cache()  # a process that has compiled has settled for its folder
    return folder


# Results on disk, as JSON.

_MOST_BYTES = 1 << 28
"""Of a file of results: the largest, of a figure with all its points, has a few megabytes."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(
            f"{path} is broken: it has {size:,} bytes, where results have at most {_MOST_BYTES:,}."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is broken: it is nested too deeply.") from None
    except ValueError as error:  # neither JSON nor text
        raise ValueError(f"{path} is broken: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is broken: it does not hold named results.")
    return content


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
