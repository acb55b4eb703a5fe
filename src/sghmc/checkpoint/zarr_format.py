"""The bytes of a Zarr (version 3) array that grows by draws, and of the groups around it.

An array has axes (chain, draw, …) and is one file: an index, then draw after draw, each with axes
(chain, …), as they came. To Zarr that is a shard whose chunks, of some draws each, are transposed
and not compressed. Where each of them will lie is known from the start, so that the index is
written once and the file only grows; how many draws are there stands in the array's metadata.
"""

import dataclasses
import math
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

METADATA = "zarr.json"
_CHUNK_BYTES = 1 << 20
"""What a reader must read to see one draw, about."""
_LONGEST_NAME = 200
"""Bytes of a name, so that file systems have it."""


def written(dtype: np.dtype) -> np.dtype:
    """The type itself or, where Zarr has no name for it (bfloat16), that of its bits."""
    return dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")


def file_name(row: tuple[int, ...]) -> str:
    """That of an array's only shard, in its folder."""
    return ".".join(["c", *"0" * (len(row) + 1)])


@dataclasses.dataclass(frozen=True)
class GrowingArray:
    """Up to `num_draws` draws, each with axes `row`, the chain's first."""

    dtype: np.dtype
    row: tuple[int, ...]
    num_draws: int

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.row)

    @property
    def chunk_draws(self) -> int:
        fitting = _CHUNK_BYTES // max(1, self.row_bytes)
        return max(1, min(fitting, self.num_draws))

    @property
    def num_chunks(self) -> int:
        return max(1, math.ceil(self.num_draws / self.chunk_draws))

    @property
    def offset(self) -> int:
        """Where the first draw begins, after the index."""
        return 16 * self.num_chunks

    @property
    def index(self) -> bytes:
        """Offset and length of each chunk."""
        length = self.chunk_draws * self.row_bytes
        starts = self.offset + length * np.arange(self.num_chunks, dtype="<u8")
        return np.stack([starts, np.full_like(starts, length)], axis=1).tobytes()

    def whole_chunks(self, num_kept: int) -> int:
        """The length of a file with so many draws, the last chunk to its end."""
        num_chunks = math.ceil(num_kept / self.chunk_draws)
        return self.offset + num_chunks * self.chunk_draws * self.row_bytes

    def metadata(self, num_kept: int, dimensions: Iterable[str]) -> dict[str, Any]:
        """What the array's `zarr.json` says when there are so many draws."""
        chains, *rest = self.row
        others = [max(1, size) for size in rest]
        shard = [chains, self.num_chunks * self.chunk_draws, *others]
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
        kind = written(self.dtype)
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


def group(members: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """A group's metadata; with `members`, those of all below it by their paths, in one place."""
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
    """A name for an array, and so for a folder on any file system, that is `name` where it can be.

    >>> [safe_name(name) for name in ("layers[0].bias", "σ²", "../../up", "__x", "..")]
    ['layers[0].bias', 'σ²', '-..-up', '-x', '-']
    """
    name = "".join(c if c.isprintable() and c not in '<>:"/\\|?*' else "-" for c in name)
    name = name.strip(" .")
    name = f"-{name.lstrip('_')}" if name.startswith("__") else name
    return _cut(name, _LONGEST_NAME).rstrip(" .") or "-"


def unique_names(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Safe names of which no two are one file, even where `A` and `a` are, and none is `taken`."""
    seen, found = set(map(_folded, taken)), []
    for name in map(safe_name, names):
        number, unique = 1, name
        while _folded(unique) in seen:
            number += 1
            unique = f"{_cut(name, _LONGEST_NAME - 12)}-{number}"
        seen.add(_folded(unique))
        found.append(unique)
    return found


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _cut(name: str, most: int) -> str:
    return name.encode()[:most].decode(errors="ignore")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
