"""Parquet files: the rows of all of them, and what does not fit refused by name."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.data import Parquet, parquet

pl = pytest.importorskip("polars")

N = 1_000


@pytest.fixture
def table():
    x = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3)
    return pa.table({"x": lists, "y": pa.array(np.arange(N)), "../z": pa.array(np.ones(N, bool))})


def write(path, table, **options):
    pyarrow.parquet.write_table(table, path, row_group_size=130, **options)
    return path


def test_rows_of_many_files_in_order_of_name(tmp_path, table):
    write(tmp_path / "b.parquet", table.slice(600), compression="zstd")
    write(tmp_path / "a.parquet", table.slice(0, 600))
    source = Parquet(tmp_path)
    numbers = np.random.default_rng(1).integers(0, N, 3 * N)
    taken = source.take(numbers)
    np.testing.assert_array_equal(taken["y"], numbers)
    x = np.stack(table.column("x").to_numpy())
    np.testing.assert_array_equal(taken["x"], x[numbers])
    assert taken["../z"].all()  # a name from inside the file, followed nowhere
    assert {path.name for path in source.folder.iterdir()} == {"0.npy", "1.npy", "2.npy"}


def by_pandas(path):
    pd.DataFrame(
        {"half": np.arange(N, dtype=np.float32) / 2, "y": np.arange(N), "few": np.arange(N) % 7}
    ).to_parquet(path)


def by_polars(path):
    y = np.arange(N)
    pl.DataFrame({"half": (y / 2).astype(np.float32), "y": y, "few": y % 7}).write_parquet(path)


@pytest.mark.parametrize("writes", [by_pandas, by_polars])
def test_files_of_those_who_write_them(tmp_path, writes):
    writes(tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet", columns=["few", "half"])
    assert source.num_rows == N
    assert {name: leaf.dtype.name for name, leaf in source.example.items()} == {
        "few": "int32",
        "half": "float32",
    }
    numbers = np.array([0, 501, N - 1])
    found = source.take(numbers)
    np.testing.assert_array_equal(found["few"], numbers % 7)
    np.testing.assert_array_equal(found["half"], numbers / 2)


def test_lists_of_one_length_are_rows(tmp_path, monkeypatch):
    """Of polars, whose lists have no fixed length, over more batches than one."""
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 300)
    x = np.arange(2.0 * N).reshape(N, 2)
    pl.DataFrame({"x": x.tolist()}).write_parquet(tmp_path / "a.parquet", row_group_size=250)
    numbers = np.array([N - 1, 0, 299, 300])
    np.testing.assert_array_equal(Parquet(tmp_path / "a.parquet").take(numbers)["x"], x[numbers])
    pl.DataFrame({"x": [[1.0]] * 300 + [[1.0, 2.0]] * 300}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(
        sghmc.DataError, match=r"lists of \(2,\) numbers, but of \(1,\) in rows before"
    ):
        Parquet(tmp_path / "a.parquet")


def test_whole_numbers_do_not_wrap(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"id": pa.array([7, 2**63], pa.uint64())}))
    source = Parquet(path)
    assert source.take(np.array([0]))["id"] == [7]
    with pytest.raises(sghmc.DataError, match="rows hold 9223372036854775808, which uint32"):
        source.take(np.array([1]))


def test_the_unpacked_columns_go_with_the_source(tmp_path, table):
    source = Parquet([write(tmp_path / "a.parquet", table)], columns=["y"])
    folder = source.folder
    assert set(source.example) == {"y"}
    del source
    assert not folder.exists()
    kept = Parquet(tmp_path / "a.parquet", columns=["y"], folder=tmp_path / "unpacked")
    np.testing.assert_array_equal(np.load(kept.folder / "0.npy"), np.arange(N))
    with pytest.raises(sghmc.DataError, match="unpacked is not empty"):
        Parquet(tmp_path / "a.parquet", folder=tmp_path / "unpacked")


def test_paths_of_fsspec(table):
    fsspec = pytest.importorskip("fsspec")
    for name, part in {"b": table.slice(600), "a": table.slice(0, 600)}.items():
        with fsspec.open(f"memory://rows/{name}.parquet", "wb") as file:
            pyarrow.parquet.write_table(part, file)
    numbers = np.array([7, 601])
    many = [f"memory://rows/{name}.parquet" for name in "ab"]
    for files in ("memory://rows", many):
        np.testing.assert_array_equal(Parquet(files, columns=["y"]).take(numbers)["y"], numbers)
    assert Parquet(many[0], columns=["y"]).num_rows == 600
    with pytest.raises(sghmc.DataError, match=r"memory://none.parquet cannot be read"):
        Parquet("memory://none.parquet")
    with pytest.raises(sghmc.DataError, match="noscheme://rows cannot be reached through fsspec"):
        Parquet("noscheme://rows")


def test_schemas_that_drift(tmp_path, table):
    write(tmp_path / "a.parquet", table)
    write(tmp_path / "b.parquet", table.set_column(1, "y", pa.array(np.ones(N))))
    with pytest.raises(sghmc.DataError, match=r"b\.parquet: column 'y' is double, but in .*a\.par"):
        Parquet(tmp_path)
    write(tmp_path / "b.parquet", table.drop_columns(["y"]))
    with pytest.raises(sghmc.DataError, match=r"b\.parquet: column 'y' is missing, but in"):
        Parquet(tmp_path)
    assert set(Parquet(tmp_path, columns=["x"]).example) == {"x"}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([None] + [1.0] * (N - 1)), "'bad' has 1 nulls"),
        (pa.array(["word"] * N), "'bad' is of type string"),
        (pa.array([[1.0]] * (N - 1) + [[1.0, 2.0]]), "'bad' has lists of unequal lengths"),
    ],
    ids=["nulls", "words", "ragged"],
)
def test_bad_columns(tmp_path, table, column, message):
    path = write(tmp_path / "a.parquet", table.append_column("bad", column))
    with pytest.raises(sghmc.DataError, match=rf"a\.parquet: column {message}"):
        Parquet(path)


def test_bad_files(tmp_path, table):
    path = write(tmp_path / "a.parquet", table, write_page_checksum=True)
    content = path.read_bytes()
    for damaged in (b"", content[:500]):
        path.write_bytes(damaged)
        with pytest.raises(sghmc.DataError, match=r"a\.parquet cannot be read as Parquet"):
            Parquet(path)
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(sghmc.DataError, match=r"a\.parquet is damaged: .*checksum"):
        Parquet(path)
    with pytest.raises(sghmc.DataError, match=r"none\.parquet cannot be read"):
        Parquet(tmp_path / "none.parquet")
    with pytest.raises(sghmc.DataError, match="at least one file"):
        Parquet([])
    write(path, table.slice(0, 0))
    with pytest.raises(sghmc.DataError, match="has no rows"):
        Parquet(path)


def test_a_column_that_the_disk_cannot_hold_is_refused_before_it_is_written(
    tmp_path, table, monkeypatch
):
    path = write(tmp_path / "a.parquet", table.select(["y"]))
    monkeypatch.setattr(runtime, "free_bytes", lambda folder: 1000)
    with pytest.raises(sghmc.DataError, match=r"'y' unpacks to [\d,]+ bytes, but the disk of"):
        Parquet(path, folder=tmp_path / "unpacked")
    assert sum(file.stat().st_size for file in (tmp_path / "unpacked").iterdir()) == 0


def test_lists_without_bounds_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_MAX_BATCH_ENTRIES", 100)
    path = write(tmp_path / "a.parquet", pa.table({"x": [[0.0] * 101] * 3}))
    with pytest.raises(sghmc.DataError, match=r"has lists of 101 entries, but rows of at most 100"):
        Parquet(path)


def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.parquet")
    with pytest.raises(sghmc.DataError, match=r"rows\.parquet is a pipe or a device"):
        Parquet(tmp_path / "rows.parquet")
    for name in ("rows.npy", "rows.arrow"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(sghmc.DataError, match=r"rows\..* is a pipe or a device"):
            sghmc.data.MemoryMapped(tmp_path / name)
