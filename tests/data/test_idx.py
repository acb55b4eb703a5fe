"""IDX files, spelled byte by byte as their description has them."""

import gzip
import struct

import numpy as np
import pytest

from sghmc.data import archives

PIXELS = [[1, 2, 3], [4, 5, 6]]
PLAIN = bytes([0, 0, 8, 2]) + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + bytes([1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_the_last_axis_is_the_fastest(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(PLAIN))
    found = archives.read_idx(tmp_path / "a")
    assert (found.dtype, found.tolist()) == (np.uint8, PIXELS)


@pytest.mark.parametrize(
    ("code", "letter", "numbers"),
    [
        (0x08, "B", [0, 255]),
        (0x09, "b", [-128, 127]),
        (0x0B, "h", [-300, 2]),
        (0x0C, "i", [-70_000, 1]),
        (0x0D, "f", [0.5, -2.0]),
        (0x0E, "d", [0.1, -2.0]),
    ],
)
def test_every_type_the_highest_byte_first(tmp_path, code, letter, numbers):
    content = bytes([0, 0, code, 1]) + struct.pack(">I", 2) + struct.pack(f">2{letter}", *numbers)
    (tmp_path / "a").write_bytes(content)
    assert archives.read_idx(tmp_path / "a").tolist() == numbers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it starts with nothing"),
        (b"\x89PNG and more", "it starts with 89504e47"),
        (PLAIN[:2] + b"\x07" + PLAIN[3:], "not an IDX file"),
        (PLAIN[:9], "its header announces 2 axes"),
        (PLAIN[:-1], r"5 bytes after its header, .* of shape \(2, 3\) announces 6"),
        (PLAIN + b"\0", "7 bytes after its header"),
        (b"\0\0\x08\x40" + bytes(4 * 64), "announces an array of 64 axes"),
        (gzip.compress(PLAIN, mtime=0)[:-9], "not a complete gzip file"),
        (gzip.compress(PLAIN, mtime=0)[:14] + b"\xff" * 20, "not a complete gzip file"),
    ],
)
def test_what_is_none_or_not_whole(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        archives.read_idx(tmp_path / "a")


def test_a_header_is_not_believed_before_its_bytes_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MIN_CHECKED_BYTES", 10_000)
    huge = bytes([0, 0, 8, 2]) + struct.pack(">2I", 2**31, 2**31)
    bomb = bytes([0, 0, 8, 1]) + struct.pack(">I", 10**6) + bytes(10**6)
    for content, message in (
        (huge, "0 bytes after its header"),
        (gzip.compress(huge), "0 bytes after its header"),
        (gzip.compress(bomb), "would unpack from"),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            archives.read_idx(tmp_path / "a")
