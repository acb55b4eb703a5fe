"""Arrays of a save: what its headers declare is held against the run before room is made for it."""

import json

import numpy as np
import pytest
import tensorstore

from sghmc.checkpoint import manifest
from sghmc.checkpoint.checkpoint import DamagedError
from sghmc.checkpoint.manifest import Manifest


def declare(folder, **header):
    """Make the first array of a save say something else of itself."""
    spec = {"driver": "ocdbt", "base": f"file://{folder}/state/"}
    files = tensorstore.KvStore.open(spec).result()
    found = json.loads(files.read("0000/.zarray").result().value)
    files.write("0000/.zarray", json.dumps(found | header).encode()).result()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"shape": [2, 10**12], "chunks": [2, 10**12]}, "arrays of other shapes"),
        ({"chunks": [2, 10**12]}, "chunks of arrays that are larger"),  # would end the process
        ({"dtype": "<f8"}, "arrays of other shapes"),
    ],
    ids=["shape", "piece", "dtype"],
)
def test_crafted_arrays_are_refused_before_they_are_read(header, message, tmp_path):
    arrays = {"0000": np.zeros((2, 3), np.float32)}
    manifest.write_state(tmp_path, arrays)
    declare(tmp_path, **header)
    files = {name: manifest.checksum(tmp_path / name) for name in manifest.files_in(tmp_path)}
    with pytest.raises(DamagedError, match=message):
        manifest.read_state(tmp_path, Manifest({}, {}, {}, files), arrays)


def test_what_is_written_is_read(tmp_path):
    arrays = {"0000": np.ones((2, 3), np.float32), "0001": np.zeros((0, 2)), "0002": np.array(3)}
    manifest.write_state(tmp_path, arrays)
    files = {name: manifest.checksum(tmp_path / name) for name in manifest.files_in(tmp_path)}
    shapes = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
    found = Manifest({}, {}, shapes, files)
    read = manifest.read_state(tmp_path, found, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    assert manifest.arrays_like(found, max_entries=7)["0000"].shape == (2, 3)
    with pytest.raises(DamagedError, match="larger arrays"):
        manifest.arrays_like(found, max_entries=6)
    with pytest.raises(DamagedError, match="of an unknown type"):
        manifest.arrays_like(Manifest({}, {}, {"0000": ("words", ())}, files), max_entries=7)
