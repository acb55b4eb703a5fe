"""From columns to a matrix: one input a category, and tables that do not fit the model."""

import numpy as np
import pytest

from sghmc.estimators.encoding import Encoding, Options

TABLE = {
    "size": np.array([1.5, 2.0, -3.0]),
    "town": np.array(["B", "A", "B"], object),
    "is_new": np.array([True, False, True]),
    "count": np.array([3, 2**63 + 1024, 1], np.uint64),
    "price": np.array([1.0, 2.0, 3.0]),
    "id": np.arange(3),
}
ENCODING = Encoding.of(TABLE, "price", Options(["id"]))[0]


def matrix(encoding, table):
    return encoding.expanded(encoding.read(table).values)


def test_the_matrix_has_a_column_a_category():
    encoding = ENCODING
    assert encoding.names == ["size", "town=A", "town=B", "town=(other)", "is_new", "count"]
    np.testing.assert_array_equal(
        matrix(encoding, TABLE),
        [[1.5, 0, 1, 0, 1, 3], [2, 1, 0, 0, 0, 2.0**63 + 1024], [-3, 0, 1, 0, 1, 1]],
    )
    assert matrix(encoding, TABLE).dtype == np.float64


def test_it_is_stored_and_restored():
    encoding = ENCODING
    again = Encoding.restored(encoding.plain())
    np.testing.assert_array_equal(matrix(again, TABLE), matrix(encoding, TABLE))
    assert (again.names, again.target) == (encoding.names, "price")


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        {"target": "y"},
        {"target": "y", "columns": []},
        {"target": "y", "columns": {}},
        {"target": "y", "columns": [3]},
        {"target": "y", "columns": [{}]},
        {"target": "y", "columns": [{"name": 3}]},
        {"target": "y", "columns": [{"name": "a", "categories": []}]},
        {"target": "y", "columns": [{"name": "a", "categories": [1]}]},
        {"target": "y", "columns": [{"name": "a", "categories": "abc"}]},
        {"target": "y", "columns": [{"name": "a", "categories": ["x"] * 101}]},
        {"target": "y", "columns": [{"name": "a", "more": 1}]},
        {"target": "y", "columns": [{"name": "a", "parts": []}]},
        {"target": "y", "columns": [{"name": "a", "parts": ["century"]}]},
        {"target": "y", "columns": [{"name": "a"}], "more": 1},
    ],
)
def test_what_was_never_stored_is_refused(plain):
    with pytest.raises(ValueError, match="does not know its columns"):
        Encoding.restored(plain)


def test_categories_that_look_like_numbers_in_a_table_without_the_others():
    encoding = Encoding.of({"a": np.array(["1", "x"], object), "y": np.ones(2)}, "y")[0]
    for ones in (np.array([1, 1]), np.array([1.0, 1.0])):
        np.testing.assert_array_equal(matrix(encoding, {"a": ones}), [[1, 0, 0], [1, 0, 0]])


def test_a_table_that_lacks_a_column():
    table = {name: values for name, values in TABLE.items() if name != "town"}
    with pytest.raises(ValueError, match="lacks 'town': the model was fitted to size, town"):
        ENCODING.read(table)


def described(**columns):
    columns = {name: np.array(values, object) for name, values in columns.items()}
    count = len(next(iter(columns.values())))
    return Encoding.of(columns | {"y": np.ones(count)}, "y")


def test_gaps_are_a_category_and_a_missing_number():
    numbers = np.array([1.0, np.nan, 3.0])
    text = np.array(["a", None, "b"], object)
    encoding, taken, doubts = Encoding.of({"n": numbers, "t": text, "y": numbers}, "y")
    assert encoding.names == ["n", "t=(missing)", "t=a", "t=b", "t=(other)"]
    np.testing.assert_array_equal(
        matrix(encoding, {"n": numbers, "t": text})[1], [np.nan, 1, 0, 0, 0]
    )
    assert any(words.startswith("missing: n, t (") for words in taken)
    assert doubts == []
    assert encoding.read({"n": numbers, "t": text}).flags == {}


def test_rare_categories_share_an_input():
    texts = [f"n{i % 150}" for i in range(400)]
    encoding, _, (doubt,) = described(a=texts)
    assert "150 categories: all but the 100 most frequent are taken for one" in doubt
    assert len(encoding.names) == 101
    found = encoding.read({"a": np.array(["n0", "n149", "never"], object)})
    assert encoding.expanded(found.values)[:, -1].tolist() == [0, 1, 1]


def test_columns_that_name_rows_are_told():
    texts = [f"n{i}" for i in range(60)]
    encoding, taken, (doubt,) = described(a=texts, b=["x", "y"] * 30)
    assert encoding.inputs == ["b"]
    assert "'a' has another text in almost every row, such as 'n0': it is left out" in doubt
    assert any(words.startswith("left out: a (--category") for words in taken)
    ids = {"key": np.arange(100, 160), "size": np.arange(60.0), "y": np.ones(60)}
    encoding, _, (doubt,) = Encoding.of(ids, "y")
    assert encoding.inputs == ["key", "size"]
    assert "'key' looks like an identifier" in doubt
    with pytest.raises(ValueError, match="no column to learn from"):
        described(a=texts)


def test_options_say_what_a_column_is():
    table = {"n": np.array([3, 1, 3]), "t": np.array(["1", "?", "x"], object), "y": np.ones(3)}
    encoding, _, (doubt,) = Encoding.of(table, "y", Options((), ["n"], ["t"]))
    assert encoding.names == ["n=1", "n=3", "n=(other)", "t"]
    assert "'t' holds numbers but for 2 entries, which count as missing" in doubt
    np.testing.assert_array_equal(matrix(encoding, table)[:, 3], [1, np.nan, np.nan])
    marked = np.array([*map(str, range(19)), "?"], object)
    assert Encoding.of({"t": marked, "y": np.ones(20)}, "y")[0].names == ["t"]


def test_dates_become_features_of_the_calendar():
    # A Saturday at 6 o'clock, a quarter of a year after another day; and a gap.
    days = np.array(["2024-03-30T06:00", "2023-12-30T12:00", "NaT"], "datetime64[ms]")
    encoding, taken, _ = Encoding.of({"d": days, "y": np.ones(3)}, "y")
    assert any(words.startswith("dates: d (year, season") for words in taken)
    found = dict(zip(encoding.names, matrix(encoding, {"d": days}).T, strict=True))
    assert list(found) == ["d year", "d season sin", "d season cos", "d hour sin", "d hour cos"]
    np.testing.assert_allclose(found["d year"][:2], [2024.245, 2023.996], atol=2e-3)
    np.testing.assert_allclose(found["d hour sin"][:2], [1, 0], atol=1e-9)
    assert all(np.isnan(values[2]) for values in found.values())
    week = np.arange(np.datetime64("2024-01-01"), np.datetime64("2024-01-08"))
    encoding = Encoding.of({"d": week, "y": np.ones(7)}, "y")[0]
    assert matrix(encoding, {"d": week})[:, encoding.names.index("d weekend")].tolist() == [
        0, 0, 0, 0, 0, 1, 1,
    ]  # fmt: skip
    read = encoding.read({"d": np.array(["2024-01-02", "soon"], object)})
    assert (read.is_bad.tolist(), read.flags) == ([False, True], {1: ["d cannot be read: soon"]})
