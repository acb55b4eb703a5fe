"""Ratings and features among the arrays of a model file."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from handmade_factors import handmade_draws
from sghmc.estimators import ModelFileError
from sghmc.recommender.matrix_factorization import packed, unpack
from sghmc.recommender.ratings import from_table
from sghmc.recommender.side_information import given, learned


def fitted() -> SimpleNamespace:
    tables = given({"user": [1, 2], "sex": ["F", "F"]}, None)
    ratings = from_table(([1, 2, 3], [7, 7, 8], [3.0, 4.0, 5.0]))
    return SimpleNamespace(
        draws_=handmade_draws(),
        ratings_=ratings,
        scale_=np.array([4.0, 1.0]),
        num_fits_=3,
        sides_=learned(tables, ratings),
    )


def test_all_parts_come_back():
    model = fitted()
    again = SimpleNamespace(draws_=dict(packed(model)))
    unpack(again, "file")
    assert set(again.draws_) == set(model.draws_)
    assert (again.num_fits_, again.scale_.tolist()) == (3, [4.0, 1.0])
    np.testing.assert_array_equal(again.ratings_.item, model.ratings_.item)
    assert again.ratings_.time is None
    assert set(again.sides_) == {"user"}
    found, expected = again.sides_["user"], model.sides_["user"]
    assert found.encoding.plain() == expected.encoding.plain()
    for one, other in zip(found.entries, expected.entries, strict=True):
        np.testing.assert_array_equal(one, other)


def test_ratings_of_unknown_users_or_of_unequal_numbers_are_refused():
    for name, values in (("user", [0, 1, 9]), ("item", [0, 1])):
        arrays = packed(fitted()) | {f"ratings.{name}": np.array(values, np.int32)}
        with pytest.raises(ModelFileError, match="not written by sghmc"):
            unpack(SimpleNamespace(draws_=arrays), "file")


def test_a_file_has_the_names_that_earlier_versions_wrote():
    """So that a saved model opens: format 3 of a model file has these arrays."""
    arrays = packed(fitted())
    draws = set(handmade_draws())
    assert draws == {"noise", "noise_rate"} | {
        f"{side}{part}" for side in ("user", "item") for part in ("", ".mean", ".precision")
    }
    columns = ("user", "item", "rating", "users", "items", "scale", "num_fits")
    entries = ("encoding", "row", "column", "value")
    others = {f"ratings.{name}" for name in columns}
    assert set(arrays) == draws | others | {f"features.user.{name}" for name in entries}
    encoding = json.loads(arrays["features.user.encoding"].tobytes())
    assert encoding == [["sex", "category", ["F"], True]]
    kinds = {name: part.dtype.kind for name, part in arrays.items() if "." in name}
    assert all(kinds[f"features.user.{name}"] in "iu" for name in ("row", "column"))


@pytest.mark.parametrize("missing", ["ratings.scale", "features.user.row"])
def test_files_of_others_are_refused(missing):
    arrays = dict(packed(fitted()))
    del arrays[missing]
    with pytest.raises(ModelFileError, match="was not written by sghmc"):
        unpack(SimpleNamespace(draws_=arrays), "file")
