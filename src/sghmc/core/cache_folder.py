"""Where downloads and compiled programs are kept from one run to the next."""

import os
import pathlib
import sys


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
