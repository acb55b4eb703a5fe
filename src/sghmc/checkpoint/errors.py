"""What can go wrong with a checkpoint."""

import contextlib
import pathlib
from collections.abc import Iterator


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read or written, or belongs to another run."""


class CheckpointWarning(UserWarning):
    """A damaged save was passed over."""


class DamagedError(Exception):
    """Files that are not what was written."""


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """Where a disk is full or gone: an error that says what became of earlier work."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"Writing to {folder} failed: {error}. What was saved before is intact: make room and "
            f"call sample again with the same arguments, and it goes on from there."
        ) from error
