"""MNIST: from a folder, or downloaded once with its checksums."""

import gzip
import hashlib
import io
import os
import pathlib
import urllib.error
import urllib.request
import zlib
from typing import NamedTuple

import numpy as np

from sghmc.core import atomic_file
from sghmc.core.cache_folder import cache_folder
from sghmc.data.tables.idx import read_idx

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MOST_BYTES = 1 << 26
"""Of a file: the largest has 47 million, unpacked. A mirror may send anything."""
# MD5 of the unpacked files: mirrors may pack them differently.
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
    """The 60,000 training and 10,000 test digits, pixels 0 to 255.

    Looks in `folder`, else in $SGHMC_DATA (there or in its subfolder "mnist"), else downloads into
    the user's cache.
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
            atomic_file.write(folder / f"{name}.gz", _fetch(f"{name}.gz", checksum))
    return folder


def _fetch(name: str, checksum: str) -> bytes:
    failures = []
    for mirror in _MIRRORS:
        try:
            with urllib.request.urlopen(mirror + name, timeout=30) as answer:
                content = answer.read(_MOST_BYTES)
        except (urllib.error.URLError, OSError) as error:
            failures.append(f"{mirror}: {error}")
            continue
        try:
            with gzip.open(io.BytesIO(content)) as file:
                unpacked = file.read(_MOST_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            failures.append(f"{mirror}: {error}")
            continue
        if hashlib.md5(unpacked, usedforsecurity=False).hexdigest() == checksum:
            return content
        failures.append(f"{mirror}: wrong checksum")
    raise FileNotFoundError(
        f"MNIST could not be downloaded ({'; '.join(failures)}). Put the files {', '.join(_FILES)} "
        f"(each may end in .gz) into a folder and name it with --data or $SGHMC_DATA; or use "
        f"--dataset digits, which needs no files."
    )
