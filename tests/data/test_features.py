"""Tables on disk: what is read as what, and what is refused with its column."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from sghmc.data.table_files import read_table

pl = pytest.importorskip("polars")

CONTENT = pd.DataFrame(
    {
        "size": [1.5, 2.0, -3.0],
        "count": [1, 2, 3],
        "color": ["red", "blue", "red"],
        "is_new": [True, False, True],
    }
)


@pytest.fixture
def folder(tmp_path):
    CONTENT.to_csv(tmp_path / "table.csv", index=False)
    CONTENT.to_csv(tmp_path / "semicolon.csv", index=False, sep=";")
    packing = {"method": "zip", "archive_name": "table.csv"}
    CONTENT.to_csv(tmp_path / "packed.zip", index=False, compression=packing)
    CONTENT.astype({"color": "category"}).to_parquet(tmp_path / "table.parquet")
    pl.from_pandas(CONTENT).write_parquet(tmp_path / "polars.parquet")
    np.savez(tmp_path / "table.npz", **{str(n): np.array(c.tolist()) for n, c in CONTENT.items()})  # pyright: ignore
    return tmp_path


NAMES = ["table.csv", "semicolon.csv", "packed.zip", "table.parquet", "polars.parquet", "table.npz"]


@pytest.mark.parametrize("name", NAMES)
def test_columns_have_their_types(folder, name):
    table = read_table(folder / name)
    assert list(table) == list(CONTENT)
    assert [values.dtype.kind for values in table.values()] == ["f", "i", "O", "b"]
    for column, values in table.items():
        np.testing.assert_array_equal(values, CONTENT[column].to_numpy())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "same name: a"),
        ("a,b\n1,2\n3\n", "cannot be read as a table"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_columns_that_nobody_asks_for_may_hold_anything(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("day,gaps,a,b\n2020-01-01,,1,2\n2020-01-02,3,4,5\n")
    assert list(read_table(path, only=["b", "c"])) == ["b"]


def test_gaps_dates_and_times(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("d,n,t,b,h,e\n2020-01-02,,,true,12:30:00,\n,3,x,,,\n")
    found = read_table(path)
    np.testing.assert_array_equal(found["d"], np.array(["2020-01-02", "NaT"], "datetime64[ms]"))
    np.testing.assert_array_equal(found["n"], [np.nan, 3])
    assert found["t"].tolist() == [None, "x"]
    for name, wanted in (("b", [1, np.nan]), ("h", [12.5, np.nan]), ("e", [np.nan, np.nan])):
        np.testing.assert_array_equal(found[name], wanted)
    pyarrow.parquet.write_table(pa.table({"x": pa.array([[1], None])}), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet")["x"].tolist() == [[1], None]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), np.int64),
        (pa.uint32(), np.int64),
        (pa.uint64(), np.uint64),
        (pa.float32(), np.float64),
        (pa.decimal128(25, 2), np.float64),
    ],
)
def test_numbers_of_every_width(tmp_path, kind, expected):
    pyarrow.parquet.write_table(
        pa.table({"x": pa.array([3, 100], pa.int64()).cast(kind)}), tmp_path / "a.parquet"
    )
    values = read_table(tmp_path / "a.parquet")["x"]
    assert (values.dtype, values.tolist()) == (expected, [3, 100])


def test_whole_numbers_do_not_wrap(tmp_path):
    """Identifiers of 64 bits, as hashes are: above half of them are negative where they wrap."""
    large = [2**63 + 5, 2**64 - 1, 3]
    pl.DataFrame({"id": large}, schema={"id": pl.UInt64}).write_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet")["id"].tolist() == large


def test_columns_of_different_lengths(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(2), y=np.ones(3))
    with pytest.raises(ValueError, match=r"different lengths: \{'x': 2, 'y': 3\}"):
        read_table(tmp_path / "a.npz")


def test_a_parquet_file_cut_short_and_no_file_at_all(folder):
    whole = (folder / "table.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="not a complete parquet file"):
        read_table(folder / "cut.parquet")
    with pytest.raises(FileNotFoundError, match="no file"):
        read_table(folder / "none.csv")
