"""Text tables by the tools that write them, with any delimiter, and what is none."""

import csv

import pandas as pd
import pytest

from sghmc.data import table_files
from sghmc.data.table_files import Style, read_text

pl = pytest.importorskip("polars")

FRAME = pd.DataFrame(
    {
        "size": [1.5, -2.0, 1e-30],
        "count": [1, 2, -3],
        "name": ['red, "dark"', "blue; light", "a\nb"],
        "size; in m²": [7, 8, 9],
        'the "real" one, they say': ["x", "y", "z"],
    }
)


def columns(table):
    return table.to_pydict()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_of_pandas(tmp_path, delimiter):
    FRAME.to_csv(tmp_path / "a.csv", sep=delimiter, index=False)
    assert columns(read_text(tmp_path / "a.csv", "a.csv", Style())) == FRAME.to_dict("list")


@pytest.mark.parametrize("quotes", [csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_tables_of_pandas_with_more_quotes_and_other_ends(quotes, line_end):
    content = FRAME.to_csv(index=False, quoting=quotes, lineterminator=line_end)
    for marked in (content.encode(), content.encode("utf-8-sig")):
        found = columns(read_text(marked, "a.csv", Style()))
        assert found["name"][:2] == FRAME["name"].tolist()[:2]
        assert list(found) == list(FRAME)
        assert found["count"] == [1, 2, -3]


def test_tables_of_polars(tmp_path):
    pl.from_pandas(FRAME).write_csv(tmp_path / "a.csv")
    assert columns(read_text(tmp_path / "a.csv", "a.csv", Style())) == FRAME.to_dict("list")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a;b,c\n1,2\n", {"a;b": [1], "c": [2]}),
        ('"a;b;d",c\n1,2\n', {"a;b;d": [1], "c": [2]}),
        ("a;b\n1,5;2,5\n3,5;4,5\n", {"a": ["1,5", "3,5"], "b": ["2,5", "4,5"]}),
        ("a\tb, or c\n1\t2\n", {"a": [1], "b, or c": [2]}),
        ("a::b::c\n1::2::3\n", {"a": [1], "b": [2], "c": [3]}),
        ("a, b\n1, 2\n", {"a": [1], "b": [2]}),
        ("alone\n1\n2\n", {"alone": [1, 2]}),
        ("alone; so\n1\n2\n", {"alone; so": [1, 2]}),
    ],
)
def test_the_delimiter_is_the_one_that_cuts_all_rows_alike(content, expected):
    assert columns(read_text(content.encode(), "a.csv", Style())) == expected


def test_columns_stay_text_where_that_is_asked_for():
    style = Style(is_text=lambda name: name != "rating")
    found = read_text(b"user,item,rating\n007,NA,3\n7,,4\n", "a.csv", style)
    assert columns(found) == {"user": ["007", "7"], "item": ["NA", ""], "rating": [3, 4]}


def test_a_first_line_may_be_a_row():
    style = Style(headerless=("user", "item", "rating", "time"))
    assert columns(read_text(b"1,2,3.5\n4,5,6\n", "a", style)) == {
        "user": [1, 4],
        "item": [2, 5],
        "rating": [3.5, 6.0],
    }
    assert columns(read_text(b"1::2::3::4\n", "a", style))["time"] == [4]
    assert columns(read_text(b"a,b,c\n1,2,3\n", "a", style)) == {"a": [1], "b": [2], "c": [3]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        (b"a;b\n1;2\n3\n", "Expected 2 columns, got 1"),
        (b"a,b\n\xff,2\n", "cannot be read as a table"),
        (b"\xff,b\n1,2\n", "cannot be read as a table"),
    ],
)
def test_what_is_no_table(content, message):
    with pytest.raises(ValueError, match=rf"a\.csv.*{message}"):
        columns(read_text(content, "a.csv", Style(is_text=lambda name: True)))


def test_a_first_line_without_an_end_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_MAX_LINE_BYTES", 1000)
    (tmp_path / "a.csv").write_bytes(b"a," * 10**6)
    with pytest.raises(ValueError, match="its first line has more than 1,000 bytes"):
        read_text(tmp_path / "a.csv", "a.csv", Style())
    assert columns(read_text(b"a," * 499 + b"b\n", "a.csv", Style())) != {}
