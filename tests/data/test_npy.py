"""Arrays that numpy saved: every number where it was, and headers held against the bytes."""

import io
import zipfile

import numpy as np
import pytest

from sghmc.data.archives import read_header, read_npz

ARRAYS = {
    "matrix": np.arange(6).reshape(2, 3) + 0.5,
    "turned": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big end first": np.arange(3, dtype=">i4"),
    "names": np.array(["zoë", "ann"]),
    "truth": np.array([True, False]),
    "nothing": np.zeros((0, 3)),
    "no letters": np.array(["", ""]),
    "one": np.array(7),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read(save):
    file = io.BytesIO()
    save(file, **ARRAYS)  # pyright: ignore[reportArgumentType]
    found = read_npz(file.getvalue(), "a.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def npz_of(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", content)
    return file.getvalue()


def npy_with(header: bytes, rest: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + rest


WRONG = {
    "another file": (b"PAR1 and more", "is not an .npy file, or its header is damaged"),
    "version": (b"\x93NUMPY\x09\0" + bytes(100), "is not an .npy file"),
    "no header": (b"\x93NUMPY\x01\0\xff", "is not an .npy file"),
    "no dict": (npy_with(b"[1, 2]"), "is not an .npy file"),
    "code": (npy_with(b"__import__('os')"), "is not an .npy file"),
    "escape": (npy_with(b"{'descr': '\\d'}"), "is not an .npy file"),
    "deep": (npy_with(b"(" * 5_000), "is not an .npy file"),
    "objects": (
        npy_with(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
        "holds Python objects",
    ),
    "petabytes": (
        npy_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }"),
        r"has \d+ bytes where its header, for an array of shape",
    ),
    "negative": (
        npy_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }", bytes(8)),
        r"has \d+ bytes where its header, for an array of shape",
    ),
    "nothing": (
        npy_with(b"{'descr': '|S0', 'fortran_order': False, 'shape': (1099511627776,), }"),
        "announces an array of 1 axes and entries of 0 bytes",
    ),
    "nothing in many rows": (
        npy_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 0), }"),
        "announces an array of 2 axes and entries of 8 bytes",
    ),
    "axes": (
        npy_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"0," * 65 + b"), }"),
        "announces an array of 65 axes",
    ),
    "cut": (
        npy_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(15)),
        r"has \d+ bytes where its header, for an array of shape",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none(name):
    content, message = WRONG[name]
    with pytest.raises(ValueError, match=rf"a\.npy in a\.npz {message}"):
        read_npz(npz_of(content), "a.npz")


def test_the_header_says_where_the_numbers_begin():
    for version in ((1, 0), (2, 0)):
        file = io.BytesIO()
        np.lib.format.write_array(file, ARRAYS["matrix"], version=version)
        size = file.tell()
        file.seek(0)
        header = read_header(file, size, "a.npy")
        numbers = np.frombuffer(file.getvalue()[header.length :])
        assert numbers.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
