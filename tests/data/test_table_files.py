"""Tables in files of every kind: the one that is meant, with the columns that its tool wrote."""

import bz2
import csv
import gzip
import io
import os
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from sghmc.data import parquet
from sghmc.data.table_files import Style, read_columns

pl = pytest.importorskip("polars")

COLUMNS = {"x": [0.5, -1.5, 2.5], "n": [3, -2, 1], "word": ["b", "a", "ü"]}


def by_pandas(path):
    pd.DataFrame(COLUMNS).to_parquet(path)


def by_polars(path):
    pl.DataFrame(COLUMNS).write_parquet(path)


def by_pyarrow(path):
    pyarrow.parquet.write_table(pa.table(COLUMNS), path, row_group_size=2, compression="zstd")


@pytest.mark.parametrize("write", [by_pandas, by_polars, by_pyarrow])
def test_parquet_of_those_who_write_it(tmp_path, write):
    write(tmp_path / "a.parquet")
    found = read_columns(tmp_path / "a.parquet", Style())
    assert {name: column.to_pylist() for name, column in found.items()} == COLUMNS
    assert list(found) == list(COLUMNS)


def test_npz_of_numpy(tmp_path):
    np.savez(tmp_path / "a.npz", **COLUMNS)  # pyright: ignore[reportArgumentType]
    found = read_columns(tmp_path / "a.npz", Style())
    assert {name: column.tolist() for name, column in found.items()} == COLUMNS


def packed(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_each_of_them_in_an_archive(tmp_path):
    parquet, npz = io.BytesIO(), io.BytesIO()
    pd.DataFrame(COLUMNS).to_parquet(parquet)
    np.savez(npz, **COLUMNS)
    contents = {"a.parquet": parquet.getvalue(), "a.npz": npz.getvalue()}
    contents["a.CSV"] = pd.DataFrame(COLUMNS).to_csv(index=False).encode()
    for name, content in contents.items():
        path = packed(tmp_path / f"{name}.zip", {"readme": "not this", f"deep/{name}": content})
        found = read_columns(path, Style())
        assert {each: np.asarray(column).tolist() for each, column in found.items()} == COLUMNS


def test_favourites_are_taken_from_folders_and_archives(tmp_path):
    (tmp_path / "other.csv").write_text("x\n1\n")
    (tmp_path / "second.csv").write_text("x\n2\n")
    with pytest.raises(FileNotFoundError, match=r"holds none of first\.csv"):
        read_columns(tmp_path, Style(), ["first.csv"])
    with pytest.raises(FileNotFoundError, match="is no table: name the file"):
        read_columns(tmp_path, Style())
    favourites = ["first.csv", "second.csv"]
    assert read_columns(tmp_path, Style(), favourites)["x"].to_pylist() == [2]
    members = {"deep/er/second.csv": "x\n3\n", "deep/second.csv": "x\n4\n", "b.csv": "x\n5\n"}
    path = packed(tmp_path / "a.zip", members)
    assert read_columns(path, Style(), favourites)["x"].to_pylist() == [4]
    with pytest.raises(ValueError, match=r"should hold one table, but holds deep/er/second\.csv"):
        read_columns(path, Style())


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read_columns(tmp_path / "none.csv", Style())
    (tmp_path / "a.csv").touch()
    with pytest.raises(ValueError, match=r"a\.csv is empty"):
        read_columns(tmp_path / "a.csv", Style())
    by_pyarrow(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"a\.parquet is not a complete parquet file"):
        read_columns(tmp_path / "a.parquet", Style())


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_columns_of_the_same_name(tmp_path, name):
    table = pa.table([[1], [2], [3], [4], [5]], names=["b", "a", "c", "b", "a"])
    if name == "a.csv":
        (tmp_path / name).write_text("b,a,c,b,a\n1,2,3,4,5\n")
    else:
        pyarrow.parquet.write_table(table, tmp_path / name)
    with pytest.raises(ValueError, match="columns of the same name: a, b"):
        read_columns(tmp_path / name, Style())


def dense_text(path):
    """Write a Parquet file of a few kilobytes whose one entry, of a megabyte, is in every row."""
    rows = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int32), ["y" * (1 << 20)])
    pyarrow.parquet.write_table(pa.table({"x": rows}), path)
    return path


def dense_rows(path):
    pyarrow.parquet.write_table(pa.table({"x": np.zeros(1 << 24)}), path, row_group_size=1 << 24)
    return path


def compressed(compress, suffix):
    def write(path):
        path = path.with_suffix(f".csv{suffix}")
        path.write_bytes(70 * compress(b"1,2\n" * (1 << 18)))  # streams, one after another
        return path

    return write


@pytest.mark.parametrize(
    "write",
    [dense_text, dense_rows, compressed(gzip.compress, ".gz"), compressed(bz2.compress, ".bz2")],
    ids=["text", "rows", "gzip", "bzip2"],
)
def test_no_more_is_unpacked_than_a_file_may_hold(tmp_path, write):
    path = write(tmp_path / "a.parquet")
    assert path.stat().st_size < 1_000_000
    with pytest.raises(ValueError, match=r"a\..* would unpack from [\d,]+ to .* 200 times"):
        read_columns(path, Style())


def test_lists_without_bounds_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_MAX_BATCH_ENTRIES", 100)
    pyarrow.parquet.write_table(pa.table({"x": [[0.0] * 101] * 3}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has lists of 101 entries, but rows of at"):
        read_columns(tmp_path / "a.parquet", Style())


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_compressed_text_is_read(tmp_path, pack):
    (tmp_path / "a.csv.gz").write_bytes(pack(b"a;b\n1;x\n2;y\n"))
    assert read_columns(tmp_path / "a.csv.gz", Style())["b"].to_pylist() == ["x", "y"]


def test_compressions_that_are_not_read_and_pipes_are_named(tmp_path):
    (tmp_path / "a.csv.zst").write_bytes(pa.compress(b"a,b", "zstd", asbytes=True))
    with pytest.raises(ValueError, match=r"a\.csv\.zst is compressed by zstd: unpack it yourself"):
        read_columns(tmp_path / "a.csv.zst", Style())
    os.mkfifo(tmp_path / "b.csv")
    with pytest.raises(ValueError, match=r"b\.csv is a pipe or a device, not a file"):
        read_columns(tmp_path / "b.csv", Style())


@pytest.mark.slow
def test_a_hundred_thousand_columns(tmp_path):
    """Whatever is quadratic in their number would take hours."""
    names = [f"column {k}" for k in range(100_000)]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([names, range(100_000), range(100_000)])
    found = read_columns(tmp_path / "a.csv", Style())
    assert list(found) == names
    assert found["column 77777"].to_pylist() == [77_777, 77_777]
