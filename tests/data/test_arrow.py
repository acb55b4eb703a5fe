"""Arrow IPC files of those who write them: every row of every column, in order."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sghmc.data import MemoryMapped
from sghmc.posterior.sources import DataError

pl = pytest.importorskip("polars")

N = 1_000
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N)


def table(**more):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 3)
    return pa.table({"x": lists, "y": pa.array(Y), **more})


def write(path, content, *, opens=pa.ipc.new_file, **options):
    with opens(path, content.schema, **options) as writer:
        writer.write_table(content, max_chunksize=300)
    return path


def taken(path, numbers):
    return MemoryMapped(path).take(np.asarray(numbers))


@pytest.mark.parametrize("opens", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".ipc"])
def test_files_and_streams_of_pyarrow(tmp_path, opens, suffix):
    path = write(tmp_path / f"a{suffix}", table(), opens=opens)
    numbers = np.random.default_rng(1).integers(0, N, 2 * N)
    found = taken(path, numbers)
    np.testing.assert_array_equal(found["x"], X[numbers])
    np.testing.assert_array_equal(found["y"], Y[numbers])
    assert taken(path, [N - 1])["y"] == [N - 1]


def test_files_of_pandas(tmp_path):
    frame = pd.DataFrame({"first": X[:, 0], "second": X[:, 1].astype(np.float64), "y": Y})
    frame.to_feather(tmp_path / "a.feather", compression="uncompressed")
    found = taken(tmp_path / "a.feather", [0, 7, N - 1])
    np.testing.assert_array_equal(found["first"], X[[0, 7, N - 1], 0])
    np.testing.assert_array_equal(found["second"], X[[0, 7, N - 1], 1])
    np.testing.assert_array_equal(found["y"], [0, 7, N - 1])


def test_files_of_polars(tmp_path):
    frame = pl.DataFrame({"a": X[:, 0], "y": Y.astype(np.int16), "unsigned": Y.astype(np.uint8)})
    frame.write_ipc(tmp_path / "a.arrow", compression="uncompressed")
    found = taken(tmp_path / "a.arrow", [3, N - 1])
    assert {name: array.dtype.name for name, array in found.items()} == {
        "a": "float32",
        "unsigned": "uint8",
        "y": "int16",
    }
    np.testing.assert_array_equal(found["a"], X[[3, N - 1], 0])
    np.testing.assert_array_equal(found["unsigned"], [3, (N - 1) % 256])


def test_many_files_in_order_of_name(tmp_path):
    write(tmp_path / "b.arrow", table().slice(650))
    write(tmp_path / "a.arrow", table().slice(0, 650))
    write(tmp_path / "c.arrow", table().slice(N))  # no rows
    np.testing.assert_array_equal(taken(tmp_path, [649, 650, N - 1])["y"], [649, 650, N - 1])


def test_columns_that_cannot_be_mapped(tmp_path):
    path = tmp_path / "a.arrow"
    for content, message in (
        (table(z=pa.array([None] + [1.0] * (N - 1))), "column 'z' has 1 nulls"),
        (table(z=pa.array(["one"] * N)), "'z' is of type string"),
        (table(z=pa.array([True] * N)), "'z' is of type bool"),
        (table(z=pa.array([[1.0]] * N)), "'z' is of type list"),
        (
            table(z=pa.array([[None]] * N, pa.list_(pa.int32(), 1))),
            "'z' has nulls inside its lists",
        ),
        (table().slice(N), "has no rows"),
    ):
        write(path, content)
        with pytest.raises(DataError, match=rf"a\.arrow.*{message}"):
            MemoryMapped(path)
    write(path, table(), options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with pytest.raises(DataError, match=r"a\.arrow: column 'x' is compressed"):
        MemoryMapped(path)


def test_files_that_are_damaged_or_differ(tmp_path):
    path = write(tmp_path / "a.arrow", table())
    write(tmp_path / "b.arrow", table().rename_columns(["x", "label"]))
    with pytest.raises(DataError, match=r"b\.arrow has columns .*label.*but .*a\.arrow has"):
        MemoryMapped(tmp_path)
    path.write_bytes(path.read_bytes()[:2_000])
    with pytest.raises(DataError, match=r"a\.arrow is not an Arrow file, or is damaged"):
        MemoryMapped(path)
    path.write_bytes(b"ARROW1 and no more")
    with pytest.raises(DataError, match="not an Arrow file"):
        MemoryMapped(path)
