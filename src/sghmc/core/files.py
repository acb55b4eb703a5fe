"""Atomic writes, the cache folder, and results as JSON.

A draft is written beside its target, flushed to the disk, and renamed. So a full disk or a killed
process never leaves half a file under the target's name, and the folder may be a mount point.
Drafts get the permissions that the umask leaves, and no link is followed. A process locks its
drafts and scratch folders; those of killed processes are unlocked, and the next one removes them.
"""

import contextlib
import functools
import json
import os
import pathlib
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_SUFFIX = ".unfinished"


def is_draft(name: str) -> bool:
    """Return whether a name is that of a draft, which a killed process may have left."""
    return name.startswith(".") and name.endswith(_SUFFIX)


def check_plain(path: pathlib.Path, error: type[ValueError] = ValueError) -> None:
    """Refuse a pipe or a device, on which a reader might wait without end."""
    if os.path.exists(path) and not path.is_file() and not path.is_dir():
        raise error(f"{path} is a pipe or a device, not a file: write its content to a file.")


def write(path: pathlib.Path, content: bytes | str) -> None:
    with draft(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def draft(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Open a context with an empty file, which replaces `path` if the block ends without error.

    The file is created at once, so an unwritable folder is an error before any work is done.
    """
    with _made(path.parent):
        create = functools.partial(pathlib.Path.touch, exist_ok=False)
        unfinished, remove = _own(path.parent, ".", _SUFFIX, create)
        try:
            yield unfinished
            _flush(unfinished)
            os.replace(unfinished, path)
        finally:
            remove()


@contextlib.contextmanager
def drafts(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Open a context with a scratch folder, whose files move to `folder` if the block succeeds."""
    with _made(folder):
        scratch, remove = scratch_folder(folder, ".", _SUFFIX)
        try:
            yield scratch
            files = sorted(scratch.iterdir())
            for file in files:
                _flush(file)
            for file in files:
                os.replace(file, folder / file.name)
        finally:
            remove()


def scratch_folder(
    parent: pathlib.Path, prefix: str, suffix: str = ""
) -> tuple[pathlib.Path, Callable[[], None]]:
    """Create a folder for this process alone; return it, and the function that removes it."""
    return _own(parent, prefix, suffix, functools.partial(pathlib.Path.mkdir, mode=0o700))


def _own(
    parent: pathlib.Path, prefix: str, suffix: str, create: Callable[[pathlib.Path], None]
) -> tuple[pathlib.Path, Callable[[], None]]:
    """Create and lock a file or folder, and remove those that killed processes left there."""
    for other in parent.glob(f"{prefix}*{suffix}"):
        if (handle := _lock(other, waits=False)) is not None:
            if os.fstat(handle).st_uid == os.getuid():
                _remove(other)
            os.close(handle)
    while True:
        path = parent / f"{prefix}{secrets.token_hex(8)}{suffix}"
        create(path)
        handle = _lock(path, waits=True)
        if path.exists():  # else another process removed it before it was locked
            break

    def remove() -> None:
        _remove(path)
        if handle is not None:
            os.close(handle)

    return path, remove


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(path: pathlib.Path, *, waits: bool) -> int | None:
    """Lock a file or folder until its handle is closed; None where that cannot be."""
    with contextlib.suppress(ImportError, OSError):  # Windows, or another process has it
        import fcntl

        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError:
            os.close(handle)
            raise
        return handle


@contextlib.contextmanager
def _made(folder: pathlib.Path) -> Iterator[None]:
    """Create the folder and its parents, and remove those that are still empty afterwards."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder to write to.")
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a folder that is not empty stays
            for each in missing:
                each.rmdir()


def _flush(file: pathlib.Path) -> None:
    with open(file, "r+b") as opened:
        os.fsync(opened.fileno())


# The cache folder, for downloads and compiled programs.

_MIN_CACHED_COMPILE_SECONDS = 0.2
"""Shortest compilation whose program is stored in the cache."""


def cache_folder() -> pathlib.Path:
    """Return the folder `sghmc` below the platform's cache folder; it need not exist yet.

    | platform | parent |
    | --- | --- |
    | any, where `XDG_CACHE_HOME` is set | that folder |
    | macOS | `~/Library/Caches` |
    | Windows | `%LOCALAPPDATA%` |
    | others | `~/.cache` |

    Raises `RuntimeError` if the user has no home folder.
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

    Programs that took 0.2 s or more to compile are stored, and found again by everything that they
    depend on: model, shapes, compiled-in settings, versions and kind of device. Call it before
    `sample`; programs compiled before the call are not stored. Without `path`, the folder is the
    one that jax is configured to use, or else the platform's cache folder. Returns the folder;
    raises `OSError` if it cannot be written to.

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
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_CACHED_COMPILE_SECONDS)
    compilation_cache.reset_cache()  # jax fixes the folder at the first compilation
    return folder


# Results on disk, as JSON.

_MAX_JSON_BYTES = 1 << 28
"""Largest file of results that is read; that of a figure with all its points has megabytes."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
    check_plain(path)
    size = path.stat().st_size
    if size > _MAX_JSON_BYTES:
        raise ValueError(
            f"{path} is broken: it has {size:,} bytes, but results have at most "
            f"{_MAX_JSON_BYTES:,}."
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
