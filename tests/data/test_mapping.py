"""Arrays in mapped files: each row from its piece, and files that are watched."""

import gc
import os

import numpy as np
import pytest

from sghmc.data import mapped as mapping
from sghmc.data.mapped import MappedArray, MappedFile
from sghmc.posterior.sources import DataError


def mapped(folder, *pieces, head=b"head"):
    """An array of which each piece is in a file of its own, after some other bytes."""
    found = []
    for i, piece in enumerate(pieces):
        (folder / str(i)).write_bytes(head + piece.tobytes())
        file = MappedFile(folder / str(i))
        view = np.frombuffer(file.map, piece.dtype, offset=len(head)).reshape(piece.shape)
        found.append((file, view))
    return MappedArray("rows", found)


@pytest.fixture
def rows():
    return np.arange(60, dtype=np.int32).reshape(20, 3)


@pytest.mark.parametrize("cuts", [[], [7], [1, 7, 19]])
@pytest.mark.parametrize("releases_pages", [False, True])
def test_rows_come_from_their_pieces(tmp_path, rows, cuts, releases_pages):
    array = mapped(tmp_path, *np.split(rows, cuts))
    array.releases_pages = releases_pages
    assert (array.num_rows, array.shape, array.dtype) == (20, (3,), np.int32)
    for numbers in ([0], [19], [0, 0, 6, 7, 7, 18, 19], list(range(20))):
        into = np.full((len(numbers), 3), -1, np.int32)
        array.read(np.array(numbers, np.int32), into)
        np.testing.assert_array_equal(into, rows[numbers])


@pytest.mark.parametrize("kind", [">i4", ">f8", "<f8", ">u2", "<i8", "bool"])
def test_every_type_and_order_of_bytes(tmp_path, rows, kind):
    rows = (rows % 2 if kind == "bool" else rows).astype(kind)
    array = mapped(tmp_path, rows, head=b"eight by")
    into = np.zeros((2, 3), array.example.dtype)
    assert into.dtype.isnative
    array.read(np.array([4, 9]), into)
    np.testing.assert_array_equal(into, rows[[4, 9]])


def test_whole_numbers_that_would_wrap_are_named(tmp_path):
    array = mapped(tmp_path, np.array([1, 2**40]), head=b"eight by")
    into = np.zeros(1, np.int32)
    array.read(np.array([0]), into)
    with pytest.raises(DataError, match="rows: rows hold 1099511627776, which int32 cannot"):
        array.read(np.array([1]), into)


def test_files_that_change_are_seen(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"content")
    file = MappedFile(path)
    file.check()
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match=r"a has changed since it was opened \(7 bytes then, 7 now"):
        file.check()
    path.unlink()
    with pytest.raises(DataError, match="a is gone: No such file"):
        file.check()
    for content, message in ((None, "cannot be read: No such file"), (b"", "is empty")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            MappedFile(path)


def test_a_file_that_nobody_holds_is_closed(tmp_path):
    (tmp_path / "a").write_bytes(b"content")

    def descriptors():
        return sum(
            os.readlink(f"/proc/self/fd/{each}") == str(tmp_path / "a")
            for each in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{each}")
        )

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("the system does not list open files")
    file = MappedFile(tmp_path / "a")
    assert descriptors() == 1
    del file
    gc.collect()
    assert descriptors() == 0


def test_released_pages_are_read_again(tmp_path, rows):
    array = mapped(tmp_path, rows)
    array.files[0].release(5, 100)
    into = np.zeros((20, 3), np.int32)
    array.read(np.arange(20), into)
    np.testing.assert_array_equal(into, rows)


def test_the_memory_that_a_cache_could_have(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   3 kB\nBuffers: 5 kB\n")
    for name, expected in (("meminfo", 3 * 1024), ("none", 0)):
        monkeypatch.setattr(mapping, "_MEMINFO", tmp_path / name)
        assert mapping.available_memory() == expected
