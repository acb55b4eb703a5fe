"""MNIST from its four files, packed or plain; what is damaged is refused."""

import gzip
import struct

import numpy as np
import pytest

from sghmc.data import mnist


def write_idx(path, array, pack=gzip.compress):
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
    (tmp_path / "mnist").mkdir()
    write_mnist(tmp_path / "mnist", pack=pack, suffix=suffix)
    monkeypatch.setenv("SGHMC_DATA", str(tmp_path))
    train, test = mnist.load_mnist()
    assert train.x.shape == (6, 16)
    assert test.y.shape == (3,)


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
        mnist.load_mnist(tmp_path)


def test_download_checks_what_it_got(tmp_path, monkeypatch):
    class Answer:
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return None

        def read(self):
            return gzip.compress(b"something else")

    monkeypatch.setattr(mnist.urllib.request, "urlopen", lambda *args, **kwargs: Answer())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SGHMC_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"wrong checksum.*--data or \$SGHMC_DATA"):
        mnist.load_mnist()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
