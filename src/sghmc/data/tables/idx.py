"""IDX files, the format of MNIST: a magic number, the axes, then the numbers."""

import gzip
import math
import pathlib
import struct
import zlib
from typing import IO

import numpy as np

from sghmc.data.tables.archives import check_unpacked

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | pathlib.Path) -> np.ndarray:
    """The array in an IDX file, gzipped or not.

    The header is checked before anything is allocated: a wrong magic number, a truncated file and
    trailing bytes are errors.
    """
    path = pathlib.Path(path)
    try:
        with _opened(path) as file:
            return _read(file, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a complete gzip file: {error}.") from error


def _opened(path: pathlib.Path) -> IO[bytes] | gzip.GzipFile:
    with open(path, "rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if is_packed else open(path, "rb")


def _read(file: IO[bytes] | gzip.GzipFile, path: pathlib.Path) -> np.ndarray:
    first = file.read(4)
    if len(first) < 4 or first[:2] != b"\0\0" or first[2] not in _TYPES:
        raise ValueError(
            f"{path} is not an IDX file: it starts with {first.hex() or 'nothing'}, not with "
            f"0000, a type and a number of axes."
        )
    dtype, num_axes = np.dtype(_TYPES[first[2]]), first[3]
    axes = file.read(4 * num_axes)
    if len(axes) < 4 * num_axes:
        raise ValueError(f"{path} is truncated: its header announces {num_axes} axes.")
    shape = struct.unpack(f">{num_axes}I", axes)
    size = math.prod(shape) * dtype.itemsize
    check_unpacked(str(path), path.stat().st_size, size)
    content = file.read(size + 1)
    if len(content) != size:
        found = "more" if len(content) > size else f"{len(content)}"
        raise ValueError(
            f"{path} has {found} bytes after its header, which for an array of shape {shape} "
            f"announces {size}: it is truncated or damaged."
        )
    return np.frombuffer(content, dtype).reshape(shape)
