"""Bytes of a Zarr (version 3) array that grows by draws, and the file that holds them.

An array has axes (chain, draw, …) and is one file: an index, then draw after draw in the order in
which they come, each with axes (chain, …). In Zarr's terms the file is a shard whose chunks, of
several draws each, are transposed and not compressed. The position of every chunk is known from the
start, so that the index is written once and the file only grows. The number of draws in the file
stands in the array's metadata.
"""

import dataclasses
import hashlib
import math
import os
import pathlib
import stat
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

from sghmc.checkpoint.checkpoint import DamagedError

METADATA = "zarr.json"
# A reader loads about this much to see one draw, or so many draws where these are small.
_CHUNK_BYTES, _CHUNK_DRAWS = 1 << 17, 1 << 12
# The index has room for so many chunks, or for twice the run: a longer run goes on in the file.
_MIN_CHUNKS = 1 << 10
# File systems allow names of 255 bytes; a suffix such as -2 may be added.
_MAX_NAME_BYTES = 200
# A check reads a file piece by piece: it may be larger than memory.
_CHECK_PIECE_BYTES = 1 << 22


def disk_type(dtype: np.dtype) -> np.dtype:
    """Return the type on disk: `dtype`, or that of its bits where Zarr has no name (bfloat16)."""
    return dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")


@dataclasses.dataclass(frozen=True)
class GrowingArray:
    """Layout of an array of up to `max_draws` draws, each with axes `row`, the chain's first."""

    dtype: np.dtype
    row: tuple[int, ...]
    num_chunks: int

    @classmethod
    def of(cls, dtype: np.dtype, row: tuple[int, ...], num_draws: int) -> "GrowingArray":
        """Return the layout for a run of so many draws, with room for a longer one."""
        one = cls(dtype, row, 1)
        needed = math.ceil(num_draws / one.chunk_draws)
        return dataclasses.replace(one, num_chunks=max(_MIN_CHUNKS, 2 * needed))

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.row)

    @property
    def chunk_draws(self) -> int:
        return max(1, min(_CHUNK_BYTES // max(1, self.row_bytes), _CHUNK_DRAWS))

    @property
    def max_draws(self) -> int:
        return self.num_chunks * self.chunk_draws

    @property
    def offset(self) -> int:
        """Position of the first draw: after the index, of two 64-bit numbers for each chunk."""
        return 16 * self.num_chunks

    @property
    def index(self) -> bytes:
        """Position and length of each chunk."""
        length = self.chunk_draws * self.row_bytes
        starts = self.offset + length * np.arange(self.num_chunks, dtype="<u8")
        return np.stack([starts, np.full_like(starts, length)], axis=1).tobytes()

    def file_bytes(self, num_kept: int) -> int:
        """Length of a file with so many draws: to the end of the last chunk, for Zarr's readers."""
        num_chunks = math.ceil(num_kept / self.chunk_draws)
        return self.offset + num_chunks * self.chunk_draws * self.row_bytes

    def metadata(self, num_kept: int, dimensions: Iterable[str]) -> dict[str, Any]:
        """Return the content of the array's `zarr.json` when there are so many draws."""
        chains, *rest = self.row
        others = [max(1, size) for size in rest]  # Zarr allows no chunk without entries
        shard = [chains, self.max_draws, *others]
        chunk = [chains, self.chunk_draws, *others]
        axes = [1, 0, *range(2, len(chunk))]
        codecs = [_codec("transpose", order=axes), _codec("bytes", endian=sys.byteorder)]
        sharding = _codec(
            "sharding_indexed",
            chunk_shape=chunk,
            codecs=codecs,
            index_codecs=[_codec("bytes", endian="little")],
            index_location="start",
        )
        kind = disk_type(self.dtype)
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [chains, num_kept, *rest],
            "data_type": kind.name,
            "chunk_grid": _codec("regular", chunk_shape=shard),
            "chunk_key_encoding": _codec("default", separator="."),
            "fill_value": {"b": False, "c": [0.0, 0.0]}.get(kind.kind, 0),
            "codecs": [sharding],
            "attributes": {} if kind == self.dtype else {"bits_of": self.dtype.name},
            "dimension_names": list(dimensions),
        }


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def group_metadata(members: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """Metadata of a group; with `members`, the metadata of all nodes below it by their paths."""
    found: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    if members is not None:
        found["consolidated_metadata"] = {
            "kind": "inline",
            "must_understand": False,
            # zarr-python finds the members of a group only where they follow one another.
            "metadata": dict(sorted(members.items())),
        }
    return found


def safe_name(name: str) -> str:
    """Return `name`, changed where it could not name an array's folder on every file system.

    >>> [safe_name(name) for name in ("layers[0].bias", "σ²", "../../up", "__x", "..")]
    ['layers[0].bias', 'σ²', '-..-up', '-x', '-']
    """
    name = "".join(c if c.isprintable() and c not in '<>:"/\\|?*' else "-" for c in name)
    name = name.strip(" .")
    name = f"-{name.lstrip('_')}" if name.startswith("__") else name
    return _cut(name, _MAX_NAME_BYTES).rstrip(" .") or "-"


def unique_names(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Make names safe and different, also where a file system does not tell `A` from `a`.

    None of them is among `taken`.
    """
    used, found = set(map(_folded, taken)), []
    for name in map(safe_name, names):
        number, unique = 1, name
        while _folded(unique) in used:
            number += 1
            unique = f"{_cut(name, _MAX_NAME_BYTES - 12)}-{number}"
        used.add(_folded(unique))
        found.append(unique)
    return found


def _cut(name: str, max_bytes: int) -> str:
    return name.encode()[:max_bytes].decode(errors="ignore")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


class DrawFile:
    """The file of one array: draws with axes `row` one after another, from byte `offset` on.

    The file is the array's only shard, in the folder `array` of the store in `folder`. A run
    trusts its contents only after `check`.
    """

    def __init__(
        self, folder: pathlib.Path, array: str, dtype: np.dtype, row: tuple[int, ...], offset: int
    ):
        shard = ".".join(["c", *"0" * (len(row) + 1)])
        self.folder, self.path = folder, folder / array / shard
        self.dtype, self.row, self.offset = dtype, row, offset
        self.row_bytes = dtype.itemsize * math.prod(row)
        self._hash = hashlib.sha256()
        self._file: Any = None

    @property
    def digest(self) -> str:
        """SHA-256 of the draws so far."""
        return self._hash.hexdigest()

    def create(self, head: bytes) -> None:
        """Create the file without draws: `head` fills it up to the offset."""
        self.path.parent.mkdir(parents=True)
        self._file = self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._write(head)

    def check(self, num_kept: int, digest: str) -> None:
        """Raise `DamagedError` where so many draws are not there, or have another hash."""
        for path in (self.path, *self.path.parents):  # a link might lead out of the folder
            if path.is_symlink():
                raise DamagedError(f"{self._name(path)} is a link")
            if path == self.folder:
                break
        try:
            with self._open(os.O_RDONLY, "rb") as file:
                self._hash = self._hash_draws(file, num_kept)
        except OSError as error:
            raise DamagedError(f"{self._name(self.path)} cannot be read ({error})") from error
        if self.digest != digest:
            raise DamagedError(f"{self._name(self.path)} has changed")

    def _hash_draws(self, file: Any, num_kept: int) -> Any:
        status, left = os.fstat(file.fileno()), num_kept * self.row_bytes
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{self._name(self.path)} is not a plain file")
        if status.st_size < self.offset + left:
            raise DamagedError(f"{self._name(self.path)} is cut short")
        found = hashlib.sha256()
        file.seek(self.offset)
        while left:
            piece = file.read(min(left, _CHECK_PIECE_BYTES))
            if not piece:
                raise DamagedError(f"{self._name(self.path)} shrinks while it is read")
            found.update(piece)
            left -= len(piece)
        return found

    def reopen(self, num_kept: int, head: bytes, length: int) -> None:
        """Open the checked file to append after `num_kept` draws, and make it `length` bytes long.

        It has that length at once, because readers of the store read up to there. The next draws
        overwrite what an earlier run left after the last saved draw.
        """
        self.close()
        self._file = self._open(os.O_RDWR)
        self._write(head)
        self._file.truncate(length)
        self._file.seek(self.offset + num_kept * self.row_bytes)

    def append(self, draws: np.ndarray) -> None:
        """Write draws, axes (chain, draw, …), after those that are there."""
        rows = np.ascontiguousarray(np.moveaxis(draws, 0, 1)).reshape(-1).view(np.uint8).data
        self._hash.update(rows)
        self._write(rows)

    def flush(self, length: int) -> None:
        """Bring all draws to the disk, in a file that is `length` bytes long, a hole at its end."""
        self._file.truncate(length)
        os.fsync(self._file.fileno())

    def draws(self, num_kept: int) -> np.ndarray:
        """Map the first draws into memory, axes (chain, draw, …), without reading them."""
        shape = (num_kept, *self.row)
        if 0 in shape:
            rows = np.empty(shape, self.dtype)
        else:
            rows = np.memmap(self.path, disk_type(self.dtype), "r", self.offset, shape)
            rows = rows.view(self.dtype)
        return np.moveaxis(rows, 0, 1)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _name(self, path: pathlib.Path) -> str:
        return path.relative_to(self.folder.parent).as_posix()

    def _open(self, flags: int, mode: str = "r+b") -> Any:
        # Do not follow a link, and do not wait for the other end of a pipe.
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return os.fdopen(os.open(self.path, flags, 0o666), mode, buffering=0)

    def _write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]
