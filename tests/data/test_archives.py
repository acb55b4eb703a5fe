"""Zip files of others: nothing leads out, and all that is read together is bounded."""

import io
import zipfile

import pytest

from sghmc.data import archives
from sghmc.data.archives import Archive


def packed(members, compression=zipfile.ZIP_DEFLATED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, part in members.items():
            archive.writestr(name, part)
    return content.getvalue()


def opened(content):
    return Archive(io.BytesIO(content), "a.zip")


@pytest.mark.parametrize("compression", [0, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_members_are_read(compression):
    with opened(packed({"b/c": "three", "a": b"\0", "d/": ""}, compression)) as archive:
        assert archive.members == ["b/c", "a"]
        assert (archive.read("b/c"), archive.read("a")) == (b"three", b"\0")


def test_limits_are_over_all_members_together():
    """Each of them small enough to be harmless: 40 of 4 MB from a file of 160 KB."""
    content = packed({f"{k}.npy": bytes(1 << 22) for k in range(40)})
    assert len(content) < 200_000
    with opened(content) as archive:
        for k in range(16):
            archive.read(f"{k}.npy")
        with pytest.raises(ValueError, match=r"16.npy in a.zip would unpack from .* to 71,303,168"):
            archive.read("16.npy")


def test_members_that_share_their_bytes_do_not_count_them_twice(monkeypatch):
    """As in the densest of bombs: many names for one packed stretch."""
    monkeypatch.setattr(archives, "_MIN_CHECKED_BYTES", 0)
    with opened(packed({f"{k}": b"0123456789" * 20 for k in range(300)})) as archive:
        archive._size = 100
        for member in archive.members[:100]:
            archive.read(member)
        with pytest.raises(ValueError, match="would unpack from 100 to 20,200"):
            archive.read("100")


def test_nothing_above_the_limit_is_read(monkeypatch):
    monkeypatch.setattr(archives, "_MAX_UNPACKED_BYTES", 100)
    with opened(packed({"a": b"x" * 60, "b": b"y" * 60}, zipfile.ZIP_STORED)) as archive:
        archive.read("a")
        with pytest.raises(ValueError, match=r"to 120 bytes, but at most 100 bytes"):
            archive.read("b")


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "..\\b", "C:\\b"])
def test_members_that_escape(name):
    with pytest.raises(ValueError, match="leads out of the archive"):
        opened(packed({"fine": "", name: ""}))


def test_members_of_one_name():
    """Of which another reader might see the other one."""
    content = packed({"a": "first", "b": "second"}).replace(b"b", b"a")
    with pytest.raises(ValueError, match=r"a\.zip has two members of one name"):
        opened(content)


def test_encrypted_members():
    content = bytearray(packed({"a": "secret"}))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(ValueError, match=r"a in a\.zip is encrypted"):
        opened(bytes(content))


def test_damage_is_told():
    whole = packed({"a": "text " * 1000})
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        with pytest.raises(ValueError, match=r"a\.zip is not a complete zip file"):
            opened(whole[:length])
    damaged = bytearray(whole)
    damaged[50] ^= 255
    with opened(bytes(damaged)) as archive, pytest.raises(ValueError, match="cannot be unpacked"):
        archive.read("a")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_flipped_byte_is_damage_whatever_packs_it(compression):
    content = bytes(range(256)) * 40
    whole, num_refused = packed({"a": content}, compression), 0
    for place in range(32, len(whole) - 80, 7):
        damaged = bytearray(whole)
        damaged[place] ^= 255
        try:
            with opened(bytes(damaged)) as archive:
                assert archive.read("a") == content  # a few bits are only padding
        except ValueError as error:
            num_refused += "a.zip" in str(error)
    assert num_refused >= 0.9 * len(range(32, len(whole) - 80, 7))
