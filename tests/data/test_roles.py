"""Columns by the role that they play."""

import pytest

from sghmc.data.columns import columns_of, find, find_ids, plain


def test_roles_go_by_usual_names():
    table = {"User_ID": [1], "movieId": [2], "Rating": [3.0], "id": [4]}
    assert [find(table, role, None, "it") for role in ("user", "item", "rating")] == [
        "User_ID",
        "movieId",
        "Rating",
    ]
    assert find_ids(table, "user") == "User_ID"
    assert find_ids({"ID": [1], "age": [2]}, "user") == "ID"
    assert find_ids({"age": [2]}, "user") is None
    assert plain("User ID") == "userid"


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match="Words are a pandas, polars or Arrow table, a dict of"):
        columns_of(3, "Words")
    with pytest.raises(ValueError, match="it has the columns a: no column of users"):
        find({"a": [1]}, "user", None, "it")
