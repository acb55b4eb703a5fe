"""Tables on disk: what is read as what, and what is refused with its column."""

import numpy as np
import pandas as pd
import pytest

from sghmc.data.tables.features import read_table

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
    CONTENT.astype({"color": "category"}).to_parquet(tmp_path / "table.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["table.csv", "semicolon.csv", "table.parquet"])
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
        ("a,b\n1,2\n,3\n,4\n", "column 'a' .* 2 missing values in 3 rows"),
        ("a,b\nx,2\n,3\n", "column 'a' .* 1 missing values in 2 rows"),
        ("a,b\n1,2\n3\n", "cannot be read as a table"),
        ("a\n2020-01-01\n", "column 'a' .* holds date"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_a_parquet_file_cut_short_and_no_file_at_all(folder):
    whole = (folder / "table.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="not a complete parquet file"):
        read_table(folder / "cut.parquet")
    with pytest.raises(FileNotFoundError, match="no file"):
        read_table(folder / "none.csv")
