"""Read zip, npz, gzip, bzip2 and IDX files with bounds on their unpacked size, and load MNIST."""

import bz2
import gzip
import hashlib
import io
import lzma
import math
import mmap
import os
import pathlib
import struct
import tokenize
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from typing import IO, NamedTuple, overload

import numpy as np

from sghmc.core import files
from sghmc.core.files import cache_folder, check_plain

_MAX_UNPACKED_BYTES = 4 << 30
_MIN_CHECKED_BYTES = 1 << 26
"""Unpacked size below which the ratio to the packed size is not checked."""


def check_unpacked(name: str, packed: int, size: int, most_ratio: int = 200) -> None:
    """Check that a file does not unpack to far more memory than its size.

    Text packs 5:1 and repetitive columns 100:1; a tighter ratio suggests a zip bomb.
    """
    if size > _MAX_UNPACKED_BYTES or (size > _MIN_CHECKED_BYTES and size > most_ratio * packed):
        raise ValueError(
            f"{name} would unpack from {packed:,} to {size:,} bytes, but at most "
            f"{_MAX_UNPACKED_BYTES:,} bytes and {most_ratio} times the packed size are read: if "
            f"the file is right, unpack it yourself."
        )


_CHUNK_BYTES = 1 << 20
_PACKERS = {b"\x1f\x8b": ("gzip", gzip.open), b"BZh": ("bzip2", bz2.open)}
"""Compressions that are read, by the first bytes of their files."""
_OTHER_PACKERS = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"\x04\x22\x4d\x18": "lz4"}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
"""Errors of the standard library's decompressors."""


@overload
def unpacked(source: bytes, name: str) -> bytes: ...
@overload
def unpacked(source: pathlib.Path | bytes, name: str) -> pathlib.Path | bytes: ...
def unpacked(source: pathlib.Path | bytes, name: str) -> pathlib.Path | bytes:
    """Return the content of a compressed file, or the source itself if it is not compressed.

    No more is unpacked than `check_unpacked` allows, whatever the file says of its size.
    """
    if isinstance(source, pathlib.Path):
        check_plain(source)
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        first, packed = file.read(6), file.seek(0, os.SEEK_END)
        file.seek(0)
        for magic, other in _OTHER_PACKERS.items():
            if first.startswith(magic):
                raise ValueError(
                    f"{name} is compressed by {other}: unpack it yourself, or use gzip."
                )
        for magic, (kind, opened) in _PACKERS.items():
            if first.startswith(magic):
                try:
                    with opened(file) as content:
                        return _read_bounded(content, name, packed)
                except _DAMAGE as error:
                    raise ValueError(f"{name} is not a complete {kind} file: {error}.") from error
    return source


def _read_bounded(file: IO[bytes] | io.BufferedIOBase, name: str, packed: int) -> bytes:
    chunks, size = [], 0
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        check_unpacked(name, packed, size)
        chunks.append(chunk)
    return b"".join(chunks)


class Archive:
    """A zip file whose member names and unpacked sizes are checked.

    Names that are absolute or contain "..", and encrypted members, are errors. So is reading
    members that together unpack to more than 4 GiB or to more than `most_ratio` times their packed
    size.
    """

    def __init__(
        self,
        file: str | pathlib.Path | IO[bytes] | io.BufferedIOBase,
        name: str | None = None,
        most_ratio: int = 200,
    ):
        self.name, self._most_ratio = name or str(file), most_ratio
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise ValueError(
                f"{self.name} is not a complete zip file ({error}): it is truncated or damaged. "
                f"Fetch it again."
            ) from error
        self._packed, self._unpacked = 0, 0
        try:
            self._size = self._zip.fp.seek(0, os.SEEK_END) if self._zip.fp else 0
            for member in self._zip.infolist():
                self._check(member)
            if len(set(self._zip.namelist())) < len(self._zip.namelist()):
                raise ValueError(f"{self.name} has two members of one name: it is not read.")
        except ValueError:
            self._zip.close()
            raise

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_) -> None:
        self._zip.close()

    @property
    def members(self) -> list[str]:
        """The names of the files inside."""
        return [member.filename for member in self._zip.infolist() if not member.is_dir()]

    def read(self, member: str) -> bytes:
        found = self._zip.getinfo(member)
        self._packed += found.compress_size
        self._unpacked += found.file_size
        # Members may overlap, but together they are not larger than the file.
        packed = min(self._packed, self._size)
        check_unpacked(f"{member} in {self.name}", packed, self._unpacked, self._most_ratio)
        try:
            return self._zip.read(member)
        except _DAMAGE as error:
            raise ValueError(
                f"{member} in {self.name} cannot be unpacked ({error}): the zip file is truncated "
                f"or damaged."
            ) from error

    def _check(self, member: zipfile.ZipInfo) -> None:
        # Check orig_filename, too: zipfile cleans .filename, which may hide a bad path.
        for written in (member.filename, member.orig_filename):
            path = written.replace("\\", "/")
            if path.startswith("/") or path[1:2] == ":" or ".." in path.split("/"):
                raise ValueError(
                    f"{self.name} has a member {written!r}, whose path leads out of the archive: "
                    f"it is not read."
                )
        if member.flag_bits & 1:
            raise ValueError(f"{member.filename} in {self.name} is encrypted: unpack it first.")


# Arrays saved by numpy: `.npy`, and `.npz`, a zip file of those; never pickled ones.

_MAX_AXES = 32
"""Largest number of axes that every numpy has."""
_HEADER_ERRORS = (
    *(ValueError, LookupError, TypeError, EOFError, Warning),
    *(SyntaxError, tokenize.TokenError, RecursionError, MemoryError),  # of Python's parser
)


class Header(NamedTuple):
    """The header of an .npy file, and its length in bytes."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype
    length: int


def read_header(file: IO[bytes] | io.BufferedIOBase | mmap.mmap, size: int, name: str) -> Header:
    """Read the header of a file of `size` bytes, and check the size against it."""
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python's parser warns of crafted text
            shape, is_fortran, dtype = read(file)
    except _HEADER_ERRORS as error:
        raise ValueError(
            f"{name} is not an .npy file, or its header is damaged: {error}."
        ) from error
    if dtype.hasobject:
        raise ValueError(
            f"{name} holds Python objects: save arrays of numbers or of text (dtype str)."
        )
    check_shape(shape, dtype, name)
    length = file.tell()
    needed = length + math.prod(shape) * dtype.itemsize
    if size != needed or min(shape, default=0) < 0:
        raise ValueError(
            f"{name} has {size} bytes where its header, for an array of shape {shape}, needs "
            f"{needed}: it is truncated or damaged."
        )
    return Header(shape, is_fortran, dtype, length)


def check_shape(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    """Check that numpy can make an array of the shape and dtype that a header announces."""
    size = math.prod(max(1, length) for length in shape) * dtype.itemsize
    # What is empty needs no bytes in the file, but may be broadcast to as many as it says.
    if len(shape) > _MAX_AXES or not 0 < size < (_MIN_CHECKED_BYTES if 0 in shape else 1 << 63):
        raise ValueError(
            f"{name} announces an array of {len(shape)} axes and entries of {dtype.itemsize} "
            f"bytes, {size:,} bytes in all: there is no such array, and the file is damaged."
        )


def read_npz(content: bytes, name: str, most_ratio: int = 200) -> dict[str, np.ndarray]:
    """Return the arrays in an npz file by name; `most_ratio` is that of `Archive`."""
    with Archive(io.BytesIO(content), name, most_ratio) as archive:
        return {
            member.removesuffix(".npy"): _read_npy(archive.read(member), f"{member} in {name}")
            for member in archive.members
        }


def _read_npy(content: bytes, name: str) -> np.ndarray:
    shape, is_fortran, dtype, length = read_header(io.BytesIO(content), len(content), name)
    if 0 in shape:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(content, dtype, offset=length).copy()  # frombuffer is read-only
    return flat.reshape(shape, order="F" if is_fortran else "C")


# IDX files, the format of MNIST: a magic number, the axes, then the numbers.

_IDX_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | pathlib.Path) -> np.ndarray:
    """Read the array in an IDX file, compressed or not.

    A wrong magic number, a truncated file and trailing bytes are errors.
    """
    path = pathlib.Path(path)
    found = unpacked(path, str(path))
    if isinstance(found, pathlib.Path):
        check_unpacked(str(path), found.stat().st_size, found.stat().st_size)
        found = found.read_bytes()
    return _read_idx(found, path)


def _read_idx(content: bytes, path: pathlib.Path) -> np.ndarray:
    first = content[:4]
    if len(first) < 4 or first[:2] != b"\0\0" or first[2] not in _IDX_DTYPES:
        raise ValueError(
            f"{path} is not an IDX file: it starts with {first.hex() or 'nothing'}, not with "
            f"0000, a type and a number of axes."
        )
    dtype, start = np.dtype(_IDX_DTYPES[first[2]]), 4 + 4 * first[3]
    if len(content) < start:
        raise ValueError(f"{path} is truncated: its header announces {first[3]} axes.")
    shape = struct.unpack_from(f">{first[3]}I", content, 4)
    check_shape(shape, dtype, str(path))
    size, found = math.prod(shape) * dtype.itemsize, len(content) - start
    if found != size:
        raise ValueError(
            f"{path} has {found} bytes after its header, which for an array of shape {shape} "
            f"announces {size}: it is truncated or damaged."
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


# MNIST, from a folder, or downloaded once and compared with its checksums.

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MAX_DOWNLOAD_BYTES = 1 << 26
"""Largest download of a file; the largest unpacks to 47 million bytes."""
# MD5 of the unpacked files, since mirrors may pack them differently.
_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


class Images(NamedTuple):
    """Gray images, one row each, and their labels."""

    x: np.ndarray
    y: np.ndarray


def load_mnist(folder: str | pathlib.Path | None = None) -> tuple[Images, Images]:
    """Load the 60,000 training and 10,000 test digits, pixels 0 to 255.

    They are read from `folder`, else from $SGHMC_DATA (or its subfolder "mnist"), else downloaded
    into the user's cache.
    """
    where = _find(folder)
    arrays = {name: read_idx(_path(where, name)) for name in _FILES}
    train = _pair(arrays, "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    test = _pair(arrays, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return train, test


def _pair(arrays: dict[str, np.ndarray], images: str, labels: str) -> Images:
    x, y = arrays[images], arrays[labels]
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(
            f"{images} has shape {x.shape} and {labels} {y.shape}: they do not belong together."
        )
    if y.max(initial=0) > 9:
        raise ValueError(f"{labels} holds labels up to {y.max()}, but digits are 0 to 9.")
    return Images(x.reshape(len(x), -1), y.astype(np.int32))


def _find(folder: str | pathlib.Path | None) -> pathlib.Path:
    named = folder or os.environ.get("SGHMC_DATA")
    if named is None:
        return _download()
    for candidate in (pathlib.Path(named), pathlib.Path(named) / "mnist"):
        if all(_path(candidate, name).exists() for name in _FILES):
            return candidate
    raise FileNotFoundError(
        f"{named} does not hold the four MNIST files {', '.join(_FILES)} (each may end in .gz), "
        f"nor does its subfolder mnist. Put them there, or leave the folder out to download them."
    )


def _path(folder: pathlib.Path, name: str) -> pathlib.Path:
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else folder / name


def _download() -> pathlib.Path:
    folder = cache_folder() / "mnist"
    for name, checksum in _FILES.items():
        if not (folder / f"{name}.gz").exists():
            files.write(folder / f"{name}.gz", _fetch(f"{name}.gz", checksum))
    return folder


def _fetch(name: str, checksum: str) -> bytes:
    failures = []
    for mirror in _MIRRORS:
        try:
            with urllib.request.urlopen(mirror + name, timeout=30) as answer:
                content: bytes = answer.read(_MAX_DOWNLOAD_BYTES)
        except (urllib.error.URLError, OSError) as error:
            failures.append(f"{mirror}: {error}")
            continue
        try:
            plain = unpacked(content, name)
        except ValueError as error:
            failures.append(f"{mirror}: {error}")
            continue
        if hashlib.md5(plain, usedforsecurity=False).hexdigest() == checksum:
            return content
        failures.append(f"{mirror}: wrong checksum")
    raise FileNotFoundError(
        f"MNIST could not be downloaded ({'; '.join(failures)}). Put the files {', '.join(_FILES)} "
        f"(each may end in .gz) into a folder and name it with --data or $SGHMC_DATA; or use "
        f"--dataset digits, which needs no files."
    )
