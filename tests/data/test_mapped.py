"""Files larger than memory: every row where it belongs, and every bad file refused by name."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import sghmc
from sghmc.data import MemoryMapped, mapped

N = 1_000


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(N, 3)).astype(np.float32), "y": np.arange(N)}


@pytest.fixture
def folder(tmp_path, arrays):
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def check_rows(source, arrays):
    """Rows in any order and number, from any part of the files."""
    assert source.num_rows == N
    for numbers in (np.array([7]), np.random.default_rng(1).integers(0, N, 3 * N)):
        taken = source.take(numbers)
        assert set(taken) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(taken[name], array[numbers])


@pytest.fixture(params=["at once", "in spans"])
def way(request, monkeypatch):
    """How rows are read: a matter of the file's size."""
    if request.param == "in spans":
        monkeypatch.setattr(mapped, "_SPAN_BYTES", 1_000)


def test_rows_of_a_directory(folder, arrays, way):
    source = MemoryMapped(folder)
    check_rows(source, arrays)
    assert source.example["x"].shape == (3,)
    assert source.example["y"].dtype == np.int32  # as jax would hold it


@pytest.mark.parametrize("num_files", [1, 2])
def test_rows_that_their_highest_bits_do_not_tell_apart(tmp_path, way, num_files):
    """More rows than 16 bits can number, in one file or in two that divide such a block."""
    count = 100_001 * num_files
    rng = np.random.default_rng(2)
    around_the_middle = rng.integers(count // 2 - 3, count // 2 + 3, 100)
    numbers = np.append(rng.integers(0, count, 5_000), around_the_middle)
    for i, part in enumerate(np.split(np.arange(count), num_files)):
        table = pa.table({"y": part})
        path = str(tmp_path / f"{i}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    source = MemoryMapped(tmp_path)
    np.testing.assert_array_equal(source.take(numbers)["y"], numbers)
    places = numbers[source.order(numbers)] >> 2
    assert np.all(np.diff(places) >= 0)
    assert source.take(np.arange(count - 2_000, count))["y"].tolist()[-1] == count - 1


def test_any_pytree_of_paths_and_one_path(folder, arrays):
    pair = MemoryMapped((folder / "x.npy", str(folder / "y.npy")))
    np.testing.assert_array_equal(pair.take(np.array([5]))[1], [5])
    alone = MemoryMapped(folder / "x.npy")
    np.testing.assert_array_equal(alone.take(np.array([5, 2])), arrays["x"][[5, 2]])


def test_numbers_in_another_byte_order_and_precision(tmp_path, arrays, way):
    np.save(tmp_path / "x.npy", arrays["x"].astype(">f8"))
    taken = MemoryMapped(tmp_path / "x.npy").take(np.arange(N))
    assert taken.dtype == np.float32
    np.testing.assert_array_equal(taken, arrays["x"])


def table_of(arrays):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(arrays["x"].reshape(-1)), 3)
    return pa.table({"x": lists, "y": pa.array(arrays["y"])})


def write_arrow(path, table, *, opens=pa.ipc.new_file, **options):
    with opens(path, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=300)


@pytest.mark.parametrize("opens", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
def test_rows_of_arrow_files(tmp_path, arrays, opens, way):
    table = table_of(arrays)
    write_arrow(tmp_path / "a.arrow", table.slice(0, 650), opens=opens)
    write_arrow(tmp_path / "b.arrow", table.slice(650), opens=opens)
    check_rows(MemoryMapped(tmp_path), arrays)


def damage(folder, name):
    """One fault in the folder's x.npy."""
    path = folder / "x.npy"
    content = path.read_bytes()
    if name == "missing":
        path.unlink()
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "truncated":
        path.write_bytes(content[:-1])
    elif name == "too long":
        path.write_bytes(content + b"0")
    elif name == "header of a petabyte":
        path.write_bytes(content.replace(b"(1000, 3), ", b"(9**9, 3), ", 1))
    elif name == "huge shape":
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 3), }"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    elif name == "not npy":
        path.write_bytes(b"x,y\n1,2\n")
    elif name == "objects":
        np.save(path, np.array([{}] * N), allow_pickle=True)
    elif name == "fortran":
        np.save(path, np.asfortranarray(np.ones((N, 3))))
    elif name == "scalar":
        np.save(path, np.float32(3))
    elif name == "no rows":
        np.save(path, np.ones((0, 3)))
    return path


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "cannot be read: No such file"),
        ("empty", "is empty"),
        ("truncated", "truncated or damaged"),
        ("too long", "truncated or damaged"),
        ("header of a petabyte", "header is damaged"),
        ("huge shape", "truncated or damaged"),
        ("not npy", r"not an \.npy file"),
        ("objects", "holds Python objects"),
        ("fortran", "Fortran order"),
        ("scalar", "leading axis"),
        ("no rows", "has no rows"),
    ],
)
def test_bad_files(folder, fault, message):
    path = damage(folder, fault)
    with pytest.raises(sghmc.DataError, match=rf"x\.npy.*{message}"):
        MemoryMapped(path)


def test_files_that_do_not_fit_together(folder):
    np.save(folder / "y.npy", np.arange(N - 1))
    with pytest.raises(sghmc.DataError, match=r"different numbers of rows, .*x\.npy': 1000.*999"):
        MemoryMapped(folder)
    with pytest.raises(sghmc.DataError, match="holds neither"):
        MemoryMapped(folder.parent)
    with pytest.raises(TypeError, match="paths of files, not 3"):
        MemoryMapped([3])
    with pytest.raises(sghmc.DataError, match="was given none"):
        MemoryMapped([])


def test_whole_numbers_do_not_wrap(tmp_path, way):
    ids = np.arange(N) + 2**31 - N // 2  # the upper half of them does not fit
    np.save(tmp_path / "id.npy", ids)
    source = MemoryMapped({"id": tmp_path / "id.npy"})
    np.testing.assert_array_equal(source.take(np.array([3, 7]))["id"], ids[[3, 7]])
    with pytest.raises(sghmc.DataError, match=rf"id\.npy: rows hold {2**31 + 7}, which int32"):
        source.take(np.array([3, N // 2 + 7]))


FORKED = """
import multiprocessing, sys, warnings
import numpy as np, sghmc

source = sghmc.data.MemoryMapped(sys.argv[1])
source.take(np.array([1]))
warnings.simplefilter("ignore")  # jax's own, about forks

def take():
    try:
        source.take(np.array([2]))
    except sghmc.DataError as error:
        print(error)

process = multiprocessing.get_context("fork").Process(target=take)
process.start()
process.join(60)
sys.exit(process.is_alive())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_process_is_told_instead_of_hanging(folder):
    command = [sys.executable, "-c", FORKED, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "was opened in another process" in done.stdout


def test_a_file_that_changes(folder):
    source = MemoryMapped(folder)
    with open(folder / "x.npy", "ab") as file:
        file.write(b"more")
    with pytest.raises(sghmc.DataError, match=r"x\.npy has changed since it was opened"):
        source.take(np.array([0]))
    os.unlink(folder / "x.npy")
    with pytest.raises(sghmc.DataError, match=r"x\.npy is gone"):
        source.take(np.array([0]))


def test_rows_with_nan_are_named(folder, arrays):
    arrays["x"][17, 1] = np.nan
    np.save(folder / "x.npy", arrays["x"])
    source = MemoryMapped(folder)
    source.take(np.array([3, 4]))
    with pytest.raises(sghmc.DataError, match=r"x\.npy.*\['x'\] is nan in row 17"):
        source.take(np.array([3, 17, 4]))
    assert np.isnan(MemoryMapped(folder, allow_nan=True).take(np.array([17]))["x"]).any()


def test_large_numbers_are_no_fault(tmp_path):
    np.save(tmp_path / "x.npy", np.full(4, 3e38, np.float32))  # whose sum is not finite
    assert MemoryMapped(tmp_path / "x.npy").take(np.arange(4)).sum(dtype=float) > 1e39


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory otherwise")
def test_a_file_larger_than_memory(tmp_path):
    """Sampling and a pass over all data, in a process that may have less than the file's size."""
    path, limit = tmp_path / "x.npy", 1_000_000_000
    with open(path, "wb") as file:  # rows of zeros, which take no space on the disk
        header = {"descr": "<f4", "fortran_order": False, "shape": (6_000_000, 50)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 6_000_000 * 200)
    script = pathlib.Path(__file__).parents[1] / "support" / "limited_run.py"
    done = subprocess.run(
        [sys.executable, script, path, str(limit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < limit < path.stat().st_size
