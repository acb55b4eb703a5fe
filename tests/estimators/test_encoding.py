"""From columns to a matrix: one input a category, and tables that do not fit the model."""

import numpy as np
import pytest

from sghmc.estimators.encoding import Encoding

TABLE = {
    "size": np.array([1.5, 2.0, -3.0]),
    "town": np.array(["B", "A", "B"], object),
    "is_new": np.array([True, False, True]),
    "count": np.array([3, 2**63 + 1024, 1], np.uint64),
    "price": np.array([1.0, 2.0, 3.0]),
    "id": np.arange(3),
}


def test_the_matrix_has_a_column_a_category():
    encoding = Encoding.of(TABLE, "price", ["id"])
    assert encoding.names == ["size", "town=A", "town=B", "is_new", "count"]
    np.testing.assert_array_equal(
        encoding.matrix(TABLE),
        [[1.5, 0, 1, 1, 3], [2, 1, 0, 0, 2.0**63 + 1024], [-3, 0, 1, 1, 1]],
    )
    assert encoding.matrix(TABLE).dtype == np.float64


def test_it_is_stored_and_restored():
    encoding = Encoding.of(TABLE, "price", ["id"])
    again = Encoding.restored(encoding.plain())
    np.testing.assert_array_equal(again.matrix(TABLE), encoding.matrix(TABLE))
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
        {"target": "y", "columns": [{"name": "a"}], "more": 1},
    ],
)
def test_what_was_never_stored_is_refused(plain):
    with pytest.raises(ValueError, match="does not know its columns"):
        Encoding.restored(plain)


def test_categories_that_look_like_numbers_in_a_table_without_the_others():
    encoding = Encoding.of({"a": np.array(["1", "x"], object), "y": np.ones(2)}, "y", [])
    np.testing.assert_array_equal(encoding.matrix({"a": np.array([1, 1])}), [[1, 0], [1, 0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"town": None}, "lacks 'town': the model was fitted to size, town, is_new, count"),
        ({"town": np.array(["C"] * 3, object)}, "not seen: 'C'. It knows 'A', 'B'"),
        ({"size": np.array(["1", "big", "2"], object)}, "'size' held numbers .* such as 'big'"),
        ({"size": np.array([1.0, np.inf, -np.inf])}, "'size' has 2 infinite values"),
    ],
)
def test_tables_that_do_not_fit(change, message):
    encoding = Encoding.of(TABLE, "price", ["id"])
    table = {name: values for name, values in (TABLE | change).items() if values is not None}
    with pytest.raises(ValueError, match=message):
        encoding.matrix(table)


def test_tables_that_cannot_be_learned_from():
    names = np.array([f"n{i}" for i in range(101)], object)
    for table, target, ignored, message in (
        (TABLE, "cost", [], "no column 'cost' in the table: it has size, town"),
        (TABLE, "price", ["cost"], "no column 'cost'"),
        ({"y": np.ones(2)}, "y", [], "no column to learn from"),
        ({"a": names, "y": np.ones(101)}, "y", [], "101 different values, .* --ignore a"),
        ({"a": np.array([np.inf]), "y": np.ones(1)}, "y", [], "'a' has 1 infinite values"),
    ):
        with pytest.raises(ValueError, match=message):
            Encoding.of(table, target, ignored)
