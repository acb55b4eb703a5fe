"""Columns of whichever library: the same numbers, the same ids in the same order."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sghmc.data import columns

pl = pytest.importorskip("polars")

NUMBERS = [4, 2.5, -1, 4]
IDS = ["b", "a", "ü", "b"]


def held(values):
    """The same values by those who hold columns."""
    array = pa.array(values)
    return {
        "list": values,
        "numpy": np.array(values),
        "pandas": pd.Series(values),
        "category": pd.Series(values).astype("category"),
        "polars": pl.Series(values, strict=False),
        "pyarrow": array,
        "chunks": pa.chunked_array([array[:1], array[1:1], array[1:]]),
        "dictionaries": pa.chunked_array(
            [part.dictionary_encode() for part in (array[:2], array[2:])]
        ),
    }


@pytest.mark.parametrize("kind", held(NUMBERS))
def test_numbers(kind):
    found = columns.numbers(held(NUMBERS)[kind], "a.csv")
    assert (found.dtype, found.tolist()) == (np.float32, NUMBERS)


def test_numbers_that_are_written():
    assert columns.numbers(["4", " 2.5", "-1e0"], "a.csv").tolist() == [4, 2.5, -1]


@pytest.mark.parametrize("kind", held(IDS))
def test_ids_in_order_and_the_place_of_each(kind):
    ids, codes = columns.encode(held(IDS)[kind], "user", "a.csv")
    assert ids.tolist() == ["a", "b", "ü"]
    assert (codes.dtype, codes.tolist()) == (np.int32, [1, 0, 2, 1])


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ([30, 4, 30], [4, 30]),
        ([30.0, 4.0, 30.0], [4, 30]),
        ([2.5, 1.0, 2.5], [1.0, 2.5]),
        (np.array([2**64 - 1, 1, 2**64 - 1], np.uint64), [1, 2**64 - 1]),
        ([float(2**60), 1.0, float(2**60)], [1.0, float(2**60)]),
    ],
)
def test_ids_that_are_numbers_sort_as_such(values, ids):
    found, codes = columns.encode(values, "user", "a.csv")
    assert found.tolist() == ids
    assert codes.tolist() == [1, 0, 1]


def test_ids_of_a_dictionary_that_are_not_used_or_repeat():
    repeated = pa.DictionaryArray.from_arrays(pa.array([3, 1, 0]), pa.array(["b", "a", "c", "b"]))
    ids, codes = columns.encode(repeated, "user", "a.csv")
    assert (ids.tolist(), codes.tolist()) == (["a", "b"], [1, 0, 1])


@pytest.mark.parametrize("missing", [["a", None], ["a", ""], [1.0, float("nan")]])
def test_ids_that_are_missing(missing):
    with pytest.raises(ValueError, match=r"user column of a\.csv has no id in row 2; 1 of its 2"):
        columns.encode(missing, "user", "a.csv")


def test_text_that_is_whole_numbers_throughout():
    def of(texts):
        column = pa.chunked_array([pa.array(texts).dictionary_encode()])
        return pa.chunked_array([columns.whole_numbers(column)]).to_pylist()

    assert of(["12", "-3", "12"]) == [12, -3, 12]
    for texts in (["007", "7"], ["1", "1.0"], ["1", "+2"], ["1", "²"], ["1", "9" * 19], ["1", ""]):
        assert of(texts) == texts
    unchanged = pa.chunked_array([[0.5]])
    assert columns.whole_numbers(unchanged) is unchanged


def test_what_is_no_column():
    with pytest.raises(ValueError, match="must have one axis, but has 2"):
        columns.as_arrow(np.ones((2, 2)), "user", "a.csv")
    with pytest.raises(ValueError, match="not of one type"):
        columns.as_arrow([1, "a"], "user", "a.csv")
    assert len(columns.as_arrow(pa.chunked_array([], pa.int64()), "user", "a.csv")) == 0
