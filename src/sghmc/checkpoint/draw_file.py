"""One file of draws: appended to, checked, mapped into memory."""

import hashlib
import math
import os
import pathlib
import stat
from typing import Any

import numpy as np

from sghmc.checkpoint.errors import DamagedError
from sghmc.checkpoint.zarr_format import written

_PIECE = 1 << 22
"""Bytes that a check reads at a time."""


class DrawFile:
    """Draws with axes `row` one after another in a file, after `offset` bytes that are not theirs.

    The file is `name`, a path in `folder`. What is in it is believed after `check`.
    """

    def __init__(
        self, folder: pathlib.Path, name: str, dtype: np.dtype, row: tuple[int, ...], offset: int
    ):
        self.folder, self.path = folder, folder / name
        self.dtype, self.row, self.offset = dtype, row, offset
        self.row_bytes = dtype.itemsize * math.prod(row)
        self._hash = hashlib.sha256()
        self._file: Any = None

    @property
    def digest(self) -> str:
        """What the draws so far hash to."""
        return self._hash.hexdigest()

    def begin(self, head: bytes) -> None:
        """A file without draws: `head` fills it to the offset."""
        self.path.parent.mkdir(parents=True)
        self._file = self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._write(head)

    def check(self, num_kept: int, digest: str) -> None:
        """`DamagedError` where so many draws are not there, or hash to something else."""
        self._refuse_links()
        try:
            with self._open(os.O_RDONLY, "rb") as file:
                self._hash = self._hashed(file, num_kept)
        except OSError as error:
            raise DamagedError(f"{self._shown()} cannot be read ({error})") from error
        if self.digest != digest:
            raise DamagedError(f"{self._shown()} has changed")

    def go_on(self, num_kept: int, head: bytes, length: int) -> None:
        """Be ready to write after the draws that were checked, in a file of this length.

        It gets this length at once: whoever reads the store reads so far. What the run left there
        is nobody's, and written over.
        """
        self.close()
        self._file = self._open(os.O_RDWR)
        self._write(head)
        self._file.truncate(length)
        self._file.seek(self._length(num_kept))

    def append(self, leaf: np.ndarray) -> None:
        rows = np.ascontiguousarray(np.moveaxis(leaf, 0, 1)).reshape(-1).view(np.uint8).data
        self._hash.update(rows)
        self._write(rows)

    def flush(self, length: int) -> None:
        """Make all reach the disk, in a file with a hole after it, up to `length`."""
        self._file.truncate(length)
        os.fsync(self._file.fileno())

    def draws(self, num_kept: int) -> np.ndarray:
        """The first draws, axes (chain, draw, …), mapped and not read."""
        shape = (num_kept, *self.row)
        if 0 in shape:
            rows = np.empty(shape, self.dtype)
        else:
            rows = np.memmap(self.path, written(self.dtype), "r", self.offset, shape)
            rows = rows.view(self.dtype)
        return np.moveaxis(rows, 0, 1)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _refuse_links(self) -> None:
        """They might lead out of the folder, or be the folder."""
        for path in (self.path, *self.path.parents):
            if path.is_symlink():
                raise DamagedError(f"{self._shown(path)} is a link")
            if path == self.folder:
                break

    def _shown(self, path: pathlib.Path | None = None) -> str:
        return (path or self.path).relative_to(self.folder.parent).as_posix()

    def _length(self, num_kept: int) -> int:
        return self.offset + num_kept * self.row_bytes

    def _hashed(self, file: Any, num_kept: int) -> Any:
        status, left = os.fstat(file.fileno()), num_kept * self.row_bytes
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{self._shown()} is none")
        if status.st_size < self._length(num_kept):
            raise DamagedError(f"{self._shown()} is cut short")
        found = hashlib.sha256()
        file.seek(self.offset)
        while left:
            piece = file.read(min(left, _PIECE))
            if not piece:
                raise DamagedError(f"{self._shown()} shrinks while it is read")
            found.update(piece)
            left -= len(piece)
        return found

    def _open(self, flags: int, mode: str = "r+b") -> Any:
        # Neither is a link followed, nor is a pipe waited for.
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return os.fdopen(os.open(self.path, flags, 0o666), mode, buffering=0)

    def _write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]
