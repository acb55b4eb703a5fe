"""MNIST: every pixel where it belongs, and whatever is no MNIST refused by name."""

import contextlib
import gzip
import hashlib
import io
import struct

import numpy as np
import pytest

from sghmc.data import archives


def write_idx(path, array, pack=gzip.compress):
    """By the format's description: 00 00 08, the axes, their lengths, the last axis fastest."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(pack(header + array.astype(np.uint8).tobytes()))


def write_mnist(folder, num_train=6, num_test=3, pack=gzip.compress, suffix=".gz"):
    rng = np.random.default_rng(0)
    for part, count in (("train", num_train), ("t10k", num_test)):
        write_idx(
            folder / f"{part}-images-idx3-ubyte{suffix}",
            rng.integers(0, 256, (count, 4, 4)),
            pack,
        )
        labels = folder / f"{part}-labels-idx1-ubyte{suffix}"
        write_idx(labels, rng.integers(0, 10, count), pack)


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bytes, "")])
def test_mnist_is_read_packed_and_plain(tmp_path, monkeypatch, pack, suffix):
    """Every pixel in its place, row of pixels after row, and every label with its image."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = np.arange(6 * 3 * 4).reshape(6, 3, 4) % 251  # not square: a turned image is seen
    labels = np.array([3, 1, 4, 1, 5, 9])
    for part, chosen in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images[chosen], pack)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels[chosen], pack)
    monkeypatch.setenv("SGHMC_DATA", str(tmp_path))
    train, test = archives.load_mnist()
    for found, chosen in ((train, slice(0, 4)), (test, slice(4, 6))):
        assert (found.x.dtype, found.y.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(found.y, labels[chosen])
        for k, image in enumerate(images[chosen]):
            assert found.x[k].tolist() == [int(pixel) for row in image for pixel in row]
    named, _ = archives.load_mnist(folder)
    np.testing.assert_array_equal(named.x, train.x)


def damage(name, change):
    def apply(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return apply


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (damage(IMAGES, lambda content: content[:-5]), "truncated or damaged"),
        (damage(IMAGES, lambda content: content[:6]), "truncated: its header"),
        (damage(IMAGES, lambda content: content + b"x"), "truncated or damaged"),
        (damage(IMAGES, lambda content: b"\x89PNG" + content[4:]), "is not an IDX file"),
        (damage(IMAGES, lambda content: b""), "is not an IDX file: it starts with nothing"),
        (damage(IMAGES, lambda content: gzip.compress(content)[:-9]), "not a complete gzip"),
        (damage(LABELS, lambda content: content[:-1] + b"\x0b"), "labels up to 11"),
        (lambda folder: write_idx(folder / LABELS, np.zeros(5), bytes), "do not belong together"),
        (lambda folder: (folder / LABELS).unlink(), "does not hold the four MNIST files"),
    ],
)
def test_damaged_mnist_is_refused(tmp_path, change, error):
    write_mnist(tmp_path, pack=bytes, suffix="")
    change(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=error):
        archives.load_mnist(tmp_path)


class Answers:
    """A mirror that gives the same whatever it is asked for."""

    def __init__(self, content):
        self.content = content

    def __call__(self, address, timeout):
        return contextlib.closing(io.BytesIO(self.content))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SGHMC_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"something else"), "wrong checksum"),
        (b"<html>", "wrong checksum"),
        (gzip.compress(bytes(1000))[:20], "ended before"),
        (gzip.compress(bytes(1 << 27)), "would unpack from"),
    ],
    ids=["other", "page", "cut", "bomb"],
)
def test_downloads_are_checked(cache, monkeypatch, content, message):
    monkeypatch.setattr(archives.urllib.request, "urlopen", Answers(content))
    with pytest.raises(FileNotFoundError, match=rf"{message}.*--data or \$SGHMC_DATA"):
        archives.load_mnist()
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_downloads_are_kept(cache, monkeypatch):
    content = bytes([0, 0, 8, 1, 0, 0, 0, 0])
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(archives, "_FILES", dict.fromkeys(archives._FILES, digest))
    monkeypatch.setattr(archives.urllib.request, "urlopen", Answers(gzip.compress(content)))
    for _ in range(2):
        with pytest.raises(ValueError, match="do not belong together"):  # four equal files
            archives.load_mnist()
        monkeypatch.setattr(
            archives.urllib.request, "urlopen", lambda *_, **__: pytest.fail("again")
        )
    assert {path.name for path in (cache / "sghmc" / "mnist").iterdir()} == {
        f"{name}.gz" for name in archives._FILES
    }
