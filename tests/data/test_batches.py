"""BatchReader of anything: rows in their order, cut as asked, and every fault named."""

import numpy as np
import pytest

from sghmc.data.stream import BatchReader
from sghmc.posterior.sources import DataError

ROWS = np.arange(10, dtype=np.float32)


def of(batches, **options):
    return BatchReader(batches, **{"allow_nan": False, **options})


def test_rows_are_cut_as_asked_and_begin_again():
    batches = of([ROWS[:3], ROWS[3:9]])
    taken = np.concatenate([batches.take(count)[0] for count in (2, 1, 5, 4, 9)])
    assert taken.tolist() == [*range(9), *range(9), 0, 1, 2]
    batches.start()
    assert batches.take(2)[0].tolist() == [0, 1]


def test_leaves_stay_together():
    batches = of([{"b": ROWS, "a": (np.arange(20).reshape(10, 2),)}])
    batches.take(4)
    a, b = batches.take(2)
    assert (a.tolist(), b.tolist()) == ([[8, 9], [10, 11]], [4, 5])
    assert batches.example["a"][0].shape == (2,)
    assert batches.example["a"][0].dtype == np.int32


def test_what_can_be_started_anew():
    assert of([ROWS]).is_restartable
    assert of(lambda: iter([ROWS])).is_restartable
    assert not of(iter([ROWS])).is_restartable


def test_whole_numbers_do_not_wrap():
    with pytest.raises(DataError, match="stream hold 4294967296, which uint32 cannot"):
        of([np.array([2**32], np.uint64)])


def test_lists_are_columns_and_lists_of_arrays_are_several():
    assert [leaf.shape for leaf in of([[[1, 2], [3, 4], [5, 6]]]).take(3)] == [(3, 2)]
    assert [leaf.shape for leaf in of([[ROWS, ROWS]]).take(3)] == [(3,), (3,)]


def failing():
    yield ROWS
    raise OSError("connection lost")


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (iter([ROWS]), "ended early, after 5 rows"),
        (failing(), "raised after 5 rows: OSError: connection lost"),
        ([ROWS, ROWS[:0]], "empty batch after 5 rows"),
        ([ROWS, ROWS.astype(np.int32)], r"rows of int32\[\] in its array, but the first had float"),
        ([ROWS, np.ones((2, 3), np.float32)], r"rows of float32\[3\] in its array"),
        ([ROWS, {"x": ROWS}], "but the first PyTreeDef"),
        ([ROWS, np.full(3, np.nan, np.float32)], "has nan in row 0, its array"),
        ([ROWS, np.array(["one"])], "must hold numbers"),
        ([ROWS, [[1.0], [1.0, 2.0]]], "ragged"),
    ],
    ids=["ends", "raises", "empty", "dtype", "shape", "structure", "nan", "words", "ragged"],
)
def test_batches_that_fail(batches, message):
    found = of(batches)
    found.take(5)
    with pytest.raises(DataError, match=message):
        found.take(15)


def test_the_first_batch_can_fail_too():
    def broken():
        raise OSError("no such host")

    for batches, message in (
        (broken, "could not be started: OSError: no such host"),
        ([], "was started anew and yielded nothing"),
        ([np.array(3)], r"must be arrays with one shared leading axis"),
        ([{"x": ROWS, "y": ROWS[:2]}], r"its rows are \{\"\['x'\]\": 10, \"\['y'\]\": 2\}"),
    ):
        with pytest.raises(DataError, match=message):
            of(batches)
    with pytest.raises(TypeError, match="iterator of batches, or a function, not 3"):
        of(3)


def test_nan_where_it_is_allowed():
    assert np.isnan(of([np.array([np.nan, 1.0])], allow_nan=True).take(1)[0]).all()
