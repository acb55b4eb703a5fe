"""Where downloads and compiled programs are kept from one run to the next."""

import os
import pathlib
import sys

import jax
from jax.experimental.compilation_cache import compilation_cache

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
