"""Arrays as numpy saves them: `.npy`, and `.npz`, a zip file of those. Never pickled ones."""

import io
import math
import mmap
import tokenize
import warnings
from typing import IO, NamedTuple

import numpy as np

from sghmc.data.tables.archives import Archive

_DAMAGE = (
    *(ValueError, LookupError, TypeError, EOFError, Warning),
    *(SyntaxError, tokenize.TokenError, RecursionError, MemoryError),  # of Python's parser
)


class Header(NamedTuple):
    """What a file says of its array, and how many bytes it takes to say so."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype
    length: int


def read_header(file: IO[bytes] | mmap.mmap, size: int, name: str) -> Header:
    """The header at the start of a file of `size` bytes, which must be as long as it says."""
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of crafted text, Python's parser warns
            shape, is_fortran, dtype = read(file)
    except _DAMAGE as error:
        raise ValueError(
            f"{name} is not an .npy file, or its header is damaged: {error}."
        ) from error
    if dtype.hasobject:
        raise ValueError(
            f"{name} holds Python objects: save arrays of numbers or of text (dtype str)."
        )
    length = file.tell()
    needed = length + math.prod(shape) * dtype.itemsize
    if size != needed or min(shape, default=0) < 0:
        raise ValueError(
            f"{name} has {size} bytes where its header, for an array of shape {shape}, needs "
            f"{needed}: it is truncated or damaged."
        )
    return Header(shape, is_fortran, dtype, length)


def read_npz(content: bytes, name: str, most_ratio: int = 200) -> dict[str, np.ndarray]:
    """The arrays in an npz file by name; `most_ratio` is that of `Archive`."""
    with Archive(io.BytesIO(content), name, most_ratio) as archive:
        return {
            member.removesuffix(".npy"): _read_npy(archive.read(member), f"{member} in {name}")
            for member in archive.members
        }


def _read_npy(content: bytes, name: str) -> np.ndarray:
    shape, is_fortran, dtype, length = read_header(io.BytesIO(content), len(content), name)
    if 0 in shape or dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(content, dtype, offset=length).copy()  # to be written to
    return flat.reshape(shape, order="F" if is_fortran else "C")
