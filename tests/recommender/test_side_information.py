"""Tables of features: what becomes of numbers, categories, sets, and of what is missing."""

import datetime

import numpy as np
import pandas as pd
import pytest

from sghmc.recommender.side_information import (
    NUM_KNOTS,
    Entries,
    SideEncoding,
    SideTable,
    side_table,
)

pa, pl = pytest.importorskip("pyarrow"), pytest.importorskip("polars")

IDS = np.array([3, 5, 7, 9])
COLUMNS = {
    "user": [5, 3, 9, 7],
    "sex": ["M", "F", "F", "M"],
    "tags": [["a", "b"], ["a"], [], ["b", "a", "c"]],
}


def matrix(encoding: SideEncoding, entries: Entries, num_rows: int) -> np.ndarray:
    whole = np.zeros((num_rows, len(encoding.names)))
    np.add.at(whole, (entries.row, entries.column), entries.value)
    return whole


def encoded(columns, role="user", ids=IDS):
    """The names and the matrix of features."""
    table = side_table(columns, role)
    encoding = SideEncoding.of(table, ids)
    codes = np.array([ids.tolist().index(each) for each in table.ids])
    entries = encoding.entries(table, codes)
    rest = np.setdiff1d(np.arange(len(ids)), codes)
    entries = entries.replaced(encoding.entries(SideTable(rest, {}), rest), rest)
    return encoding, matrix(encoding, entries, len(ids))


@pytest.mark.parametrize(
    "make",
    [dict, pd.DataFrame, pl.DataFrame, pa.table, lambda c: pd.DataFrame(c).set_index("user")],
)
def test_any_table_has_the_same_features(make):
    encoding, found = encoded(make(COLUMNS))
    assert encoding.names == ["sex=F", "sex=M", "tags=a", "tags=b"]
    half = 0.5**0.5
    # c is only one row's, and so nobody's.
    expected = [[1, 0, 1, 0], [0, 1, half, half], [0, 1, half, half], [1, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert encoding.group.tolist() == [0, 0, 1, 1]


def test_text_with_bars_and_python_sets_are_sets():
    bars = {"user": IDS, "genres": ["War|Drama", "War", "", None]}
    sets = {"user": IDS, "genres": [{"War", "Drama"}, frozenset({"War"}), set(), None]}
    for columns in (bars, sets):
        encoding, found = encoded(columns)
        assert encoding.names == ["genres=War"]
        assert found.ravel().tolist() == [1, 1, 0, 0]


def test_numbers_are_shares_of_knots():
    """Straight between knots, flat outside: weights are the values of a curve at its knots."""
    number = np.random.default_rng(0).normal(size=100)
    ids = np.arange(100)
    encoding, found = encoded({"user": ids, "age": number}, ids=ids)
    assert len(encoding.names) == NUM_KNOTS
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    knots = np.quantile(number, np.linspace(0, 1, NUM_KNOTS), method="nearest")
    curve = np.random.default_rng(1).normal(size=NUM_KNOTS)
    np.testing.assert_allclose(found @ curve, np.interp(number, knots, curve), atol=1e-5)
    far = side_table({"user": [0, 1], "age": [-9.0, 9.0]}, "user")
    ends = matrix(encoding, encoding.entries(far, np.array([0, 1])), 2)
    assert (ends[0, 0], ends[1, -1]) == (1, 1)


def test_flags_and_dates_are_numbers_too():
    day = datetime.date(2020, 1, 1)
    dates = [day, day + datetime.timedelta(days=10), None, day]
    encoding, found = encoded({"user": IDS, "flag": [0, 1, 1, 0], "since": dates})
    assert encoding.names[:2] == ["flag=0.0", "flag=1.0"]
    assert found[:, :2].tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    assert found[:, 2:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_missing_values_and_rows_are_features_of_their_own():
    columns = {"user": [3, 5, 7], "sex": ["F", "F", None], "age": [20.0, np.nan, 40.0]}
    encoding, found = encoded(columns)
    assert encoding.names == ["sex=F", "sex=?", "age=20.0", "age=40.0", "age=?"]
    expected = [[1, 0, 1, 0, 0], [1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 1, 0, 0, 1]]
    assert found.tolist() == expected


def test_new_categories_and_missing_columns_say_nothing():
    encoding, _ = encoded(COLUMNS)
    table = side_table({"user": ["eve", "eva"], "sex": ["X", "M"]}, "user")
    found = matrix(encoding, encoding.entries(table, np.array([0, 1])), 2)
    assert found.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]


def test_entries_of_rows_are_replaced():
    old = Entries(np.array([0, 1, 2]), np.array([0, 0, 1]), np.array([1.0, 2.0, 3.0]))
    new = Entries(np.array([1]), np.array([5]), np.array([9.0]))
    found = old.replaced(new, np.array([1, 2]))
    assert [part.tolist() for part in found] == [[0, 1], [0, 5], [1.0, 9.0]]


def test_an_encoding_survives_as_plain_lists():
    encoding, _ = encoded({**COLUMNS, "age": [1.0, 2.0, None, 4.0]})
    again = SideEncoding.restored(encoding.plain())
    assert again.names == encoding.names
    for wrong in ({}, [1], [["a", "number", [1.0], True]], [["a", "thing", ["b"], True]],
                  [["a", "set", [1], False]], [["a", "set", ["b"], 1]]):  # fmt: skip
        with pytest.raises(ValueError, match="not written by sghmc"):
            SideEncoding.restored(wrong)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"who": [1], "age": [2.0]}, "The table of users has the columns who, age: no column of"),
        ({"user": [1, 2, 1], "age": [1.0, 2.0, 3.0]}, "has 1 twice, again in row 3"),
        ({"user": [1, 2], "age": [1.0]}, "has 2 ids, but columns of"),
        ({"user": IDS, "name": ["a", "b", "c", "d"]}, "The columns name carry no information"),
        ({"user": IDS, "what": [{"a": 1}] * 4}, "the column 'what' holds struct"),
    ],
)
def test_wrong_tables_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        encoded(columns)


def test_a_column_stays_of_its_kind():
    encoding, _ = encoded(COLUMNS)
    with pytest.raises(ValueError, match=r"'sex' held category values .* now holds number"):
        encoding.entries(side_table({"user": [1], "sex": [2.0]}, "user"), np.array([0]))
    with pytest.raises(TypeError, match="Features of users are a pandas"):
        side_table(3, "user")
