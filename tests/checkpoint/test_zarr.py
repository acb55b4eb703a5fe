"""The numbers of an array that grows: where its chunks lie, and what its metadata say."""

import pathlib

import numpy as np
import pytest

from sghmc.checkpoint import zarr
from sghmc.checkpoint.zarr import DrawFile, GrowingArray


@pytest.fixture(autouse=True)
def chunks_of_hundred_bytes(monkeypatch):
    monkeypatch.setattr(zarr, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(zarr, "_CHUNK_DRAWS", 6)
    monkeypatch.setattr(zarr, "_MIN_CHUNKS", 3)


def test_chunks_have_the_draws_that_fit_and_follow_the_index():
    array = GrowingArray(np.dtype("f4"), (2, 3), 3)
    assert array.row_bytes == 24
    assert (array.chunk_draws, array.num_chunks) == (4, 3)
    assert array.offset == 16 * 3
    index = np.frombuffer(array.index, "<u8").reshape(3, 2)
    assert index.tolist() == [[48, 96], [144, 96], [240, 96]]
    lengths = [array.file_bytes(count) for count in (0, 1, 4, 5, 10)]
    assert lengths == [48, 144, 144, 240, 336]


def test_a_draw_larger_than_a_chunk_and_none_at_all():
    large = GrowingArray.of(np.dtype("f8"), (1, 50), 3)
    assert (large.chunk_draws, large.num_chunks) == (1, 6)
    few = GrowingArray.of(np.dtype("f4"), (1,), 3)
    assert (few.chunk_draws, few.num_chunks) == (6, 3)
    empty = GrowingArray.of(np.dtype("f4"), (1, 0), 0)
    assert (empty.chunk_draws, empty.max_draws, empty.offset) == (6, 18, 48)


def test_metadata_have_chains_first_and_chunks_turned_round():
    found = GrowingArray(np.dtype("f4"), (2, 3, 0), 3).metadata(7, ["chain", "draw", "x", "y"])
    assert found["shape"] == [2, 7, 3, 0]
    assert found["data_type"] == "float32"
    assert found["dimension_names"] == ["chain", "draw", "x", "y"]
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == [2, 18, 3, 1]
    assert found["chunk_key_encoding"]["configuration"] == {"separator": "."}
    sharding = found["codecs"][0]["configuration"]
    assert sharding["chunk_shape"] == [2, 6, 3, 1]
    assert sharding["codecs"][0]["configuration"]["order"] == [1, 0, 2, 3]
    assert sharding["index_location"] == "start"
    assert (found["fill_value"], found["attributes"]) == (0, {})
    short = GrowingArray(np.dtype("f4"), (2, 3), 3).metadata(7, [])
    assert short["chunk_grid"]["configuration"]["chunk_shape"] == [2, 12, 3]


def test_what_zarr_has_no_name_for_is_written_as_bits():
    import ml_dtypes

    low = np.dtype(ml_dtypes.bfloat16)
    assert zarr.disk_type(low) == np.dtype("u2")
    assert zarr.disk_type(np.dtype("c8")) == np.dtype("c8")
    found = GrowingArray(low, (2,), 3).metadata(1, [])
    assert (found["data_type"], found["attributes"]) == ("uint16", {"bits_of": "bfloat16"})
    assert GrowingArray(np.dtype("?"), (2,), 3).metadata(1, [])["fill_value"] is False
    assert GrowingArray(np.dtype("c8"), (2,), 3).metadata(1, [])["fill_value"] == [0.0, 0.0]


def test_names_of_files_and_groups():
    file = DrawFile(pathlib.Path("draws"), "run/x", np.dtype("f4"), (2, 3), 16)
    assert file.path == pathlib.Path("draws/run/x/c.0.0.0")
    assert file.row_bytes == 24
    assert "consolidated_metadata" not in zarr.group_metadata()
    members = zarr.group_metadata({"b": {}, "a": {}})["consolidated_metadata"]["metadata"]
    assert [*members] == ["a", "b"]
    assert zarr.unique_names(["a", "A", "chain", "a"], ["chain"]) == [
        "a",
        "A-2",
        "chain-2",
        "a-3",
    ]
    longest = zarr.safe_name("ä" * 150)
    assert len(longest.encode()) == 200
    assert len(zarr.unique_names(["x" * 300] * 2, [])[1].encode()) == 190


def test_what_a_disk_takes_in_parts_is_written_whole(tmp_path):
    """An operating system may write less than it was asked to, and says how much."""

    class Slow:
        def __init__(self):
            self.written = b""

        def write(self, content):
            self.written += bytes(content[:3])
            return min(3, len(content))

    file = DrawFile.__new__(DrawFile)
    file._file = Slow()
    file._write(b"0123456789")
    assert file._file.written == b"0123456789"


def test_readers_need_not_know_consolidated_metadata():
    found = zarr.group_metadata({"b": {"node_type": "array"}, "a": {}})
    assert found["consolidated_metadata"]["must_understand"] is False
    assert list(found["consolidated_metadata"]["metadata"]) == ["a", "b"]
    assert "consolidated_metadata" not in zarr.group_metadata()
