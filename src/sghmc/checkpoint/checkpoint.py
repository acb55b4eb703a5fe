"""The user's side of a checkpoint: where and how often a run is saved, and what can go wrong."""

import contextlib
import dataclasses
import errno
import os
import pathlib
from collections.abc import Iterator

from sghmc.core.checks import check_count

# A crash costs at most this much work, unless the user asks for another interval.
_DEFAULT_SECONDS = 60.0
# Errors of folders that no room would make writable.
_NOT_WRITABLE = (
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.ENOTDIR),
)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Settings of a run that is saved: in which folder, and how often.

    | field | meaning |
    | --- | --- |
    | `path` | a folder for this run alone; it is made where there is none |
    | `every` | save after so many draws, burn-in included |
    | `seconds` | or after so many seconds; without either, after 60 |
    | `num_saves` | how many of the last saves stay |

    Called again with the same arguments, `sample` goes on where it was stopped, and returns bit for
    bit what it would have returned. Draws are appended to files as they come and memory-mapped when
    they are read, so that memory does not grow with their number.

    These files are a Zarr store, `path/draws`, with groups posterior and sample_stats as
    `Samples.to_arviz` has them. After `pip install zarr` ArviZ 1 opens it, and 0.23 by way of
    xarray. While the run goes on it can be opened, too, with the draws up to the last save:

        arviz.from_zarr("runs/first/draws")
        arviz.InferenceData.from_datatree(xarray.open_datatree("runs/first/draws", engine="zarr"))

    >>> import sghmc
    >>> sghmc.Checkpoint("runs/first", every=100)
    Checkpoint(path='runs/first', every=100, seconds=None, num_saves=3)
    """

    path: str | os.PathLike[str]
    every: int | None = None
    seconds: float | None = None
    num_saves: int = 3

    def __post_init__(self):
        if not isinstance(self.path, str | os.PathLike) or "\0" in os.fspath(self.path):
            raise TypeError(f"path must name a folder, but is {self.path!r}.")
        check_count(self.every, "every", or_none="")
        check_count(self.num_saves, "num_saves")
        if self.every is not None and self.seconds is not None:
            raise ValueError("Give every=… draws or seconds=…, not both.")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, but is {self.seconds!r}.")
        if self.every is None and self.seconds is None:
            object.__setattr__(self, "seconds", _DEFAULT_SECONDS)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read or written, or belongs to another run."""


class CheckpointWarning(UserWarning):
    """A damaged save was passed over."""


class DamagedError(Exception):
    """Files that differ from what was written: the next older save may still be intact."""


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """Turn a failed write, such as on a full disk, into an error that says what was kept."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_WRITABLE:
            raise CheckpointError(
                f"{folder} cannot be written to: {error}. Give a folder that this process may "
                f"write to, or bring this one there."
            ) from error
        raise CheckpointError(
            f"Writing to {folder} failed: {error}. What was saved before is intact: make room and "
            f"call sample again with the same arguments, and it goes on from there."
        ) from error
