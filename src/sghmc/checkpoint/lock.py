"""A folder is written to by one run at a time."""

import pathlib
from typing import Any

from sghmc.checkpoint.errors import CheckpointError


def locked(path: pathlib.Path) -> Any:
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
