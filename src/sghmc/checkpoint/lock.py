"""A folder is written to by one run at a time."""

import pathlib
from typing import Any

from sghmc.checkpoint.errors import CheckpointError


def locked(path: pathlib.Path) -> Any:
    """An open file that no other run can have; a process that is killed gives it back."""
    file = _opened(path)
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


def _opened(path: pathlib.Path) -> Any:
    try:
        return open(path, "a", encoding="utf-8")
    except OSError:
        # A finished run has nothing to write: its folder may be one that cannot be written to.
        if not path.exists():
            raise
        return open(path, encoding="utf-8")
