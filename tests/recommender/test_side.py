"""Features of users and items as the recommender keeps them: for whom, and what they say."""

import numpy as np
import pytest

from sghmc.recommender.ratings import from_table
from sghmc.recommender.side_information import (
    SideFeatures,
    extended,
    given,
    learned,
    with_ids,
)

RATINGS = from_table(([1, 2, 2], [7, 7, 8], [3.0, 4.0, 5.0]))
USERS = {"user": [2, 5, 1], "sex": ["F", "M", "F"], "age": [20.0, 30.0, None]}


@pytest.fixture
def sides():
    tables = given(USERS, None)
    ratings = with_ids(RATINGS, tables)
    assert ratings.users.tolist() == [1, 2, 5]
    return ratings, learned(tables, ratings)


def rows(each: SideFeatures, num_rows: int) -> list[list[float]]:
    matrix = np.zeros((num_rows, len(each.encoding.names)))
    np.add.at(matrix, (each.entries.row, each.entries.column), each.entries.value)
    return matrix.tolist()


def test_those_whom_only_features_know_are_known(sides):
    ratings, found = sides
    assert set(found) == {"user"}
    assert found["user"].encoding.names == ["sex=F", "age=20.0", "age=30.0", "age=?"]
    assert rows(found["user"], 3) == [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0]]
    assert ratings.items.tolist() == [7, 8]


def test_new_tables_replace_rows_and_add_some(sides):
    """5 has another age, 6 is new; 9, whom only ratings know, is missing in all."""
    ratings, found = sides
    tables = given({"user": [5, 6], "age": [20.0, 30.0]}, None)
    joined = with_ids(ratings.joined(from_table(([9], [7], [1.0]))), tables)
    assert joined.users.tolist() == [1, 2, 5, 9, 6]
    new = extended(found, tables, joined, {"user": 3, "item": 2})
    expected = [[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert rows(new["user"], 5) == expected
    assert rows(found["user"], 3) == [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0]]


def test_features_of_a_side_that_had_none_are_refused(sides):
    ratings, found = sides
    tables = given(None, {"item": [7, 8], "year": [1990, 1991]})
    with pytest.raises(ValueError, match=r"without features of items: give fit\(…, items=…\)"):
        extended(found, tables, ratings, {"user": 3, "item": 2})


def test_models_get_them_padded_and_grouped(sides):
    features = sides[1]["user"].features()
    assert features.group.tolist() == [0, 1, 1, 1]
    assert features.group_size.tolist() == [1, 3]
    matrix = np.zeros((3, 4))
    np.add.at(matrix, (features.row, features.column), np.asarray(features.value))
    assert matrix.tolist() == rows(sides[1]["user"], 3)
    assert len(features.row) >= 5


def test_centers_are_means_and_what_features_add(sides):
    rng = np.random.default_rng(0)
    draws = {"user.mean": rng.normal(size=(2, 3)), "user.weights": rng.normal(size=(2, 4, 3))}
    codes = np.array([2, 0])
    found = sides[1]["user"].centers(draws, "user", codes)
    matrix = np.array(rows(sides[1]["user"], 3))[codes]
    expected = draws["user.mean"][:, None] + np.einsum("nf,dfk->dnk", matrix, draws["user.weights"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
