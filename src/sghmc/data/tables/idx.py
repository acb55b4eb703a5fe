"""IDX files, the format of MNIST: a magic number, the axes, then the numbers."""

import gzip
import math
import pathlib
import struct
import zlib

import numpy as np

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | pathlib.Path) -> np.ndarray:
    """The array in an IDX file, gzipped or not.

    The header is checked before anything is allocated: a wrong magic number, a truncated file and
    trailing bytes are errors.
    """
    path = pathlib.Path(path)
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is not a complete gzip file: {error}.") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise ValueError(
            f"{path} is not an IDX file: it starts with {content[:4].hex() or 'nothing'}, not with "
            f"0000, a type and a number of axes."
        )
    dtype, num_axes = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise ValueError(f"{path} is truncated: its header announces {num_axes} axes.")
    shape = struct.unpack(f">{num_axes}I", content[4:start])
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(content) != wanted:
        raise ValueError(
            f"{path} has {len(content)} bytes where its header, for an array of shape {shape}, "
            f"needs {wanted}: it is truncated or damaged."
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
