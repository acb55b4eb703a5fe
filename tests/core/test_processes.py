"""Several processes as one run, over loopback: the same draws, one writer, and a lost process."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import processes_run
import sghmc

SCRIPT = pathlib.Path(processes_run.__file__)
ROUNDING = 2e-5
PATIENCE = 300.0


def launch(folder: pathlib.Path, count: int, shape: str, num_samples=processes_run.FEW):
    """`count` processes that run together, each with one device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": "",
    }
    arguments = [str(folder), str(num_samples), shape]
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(i), str(count), str(port), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]


def outputs(processes) -> list[tuple[int, str, str]]:
    """Return code, output and errors of each, once all have ended."""
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *each) for p, each in zip(processes, said, strict=True)]


def finish(processes) -> None:
    for code, said, errors in outputs(processes):
        assert code == 0, errors
        assert "finished" in said


def check(folder: pathlib.Path, count: int, whole: sghmc.Samples) -> None:
    """All processes return the draws of a run in one process, to rounding."""
    for i in range(count):
        found = np.load(folder / f"{i}.npz")
        np.testing.assert_allclose(found["positions"], whole.positions, atol=ROUNDING)
        np.testing.assert_allclose(found["square"], whole.averages["square"], atol=ROUNDING)


@pytest.mark.slow
def test_two_processes_with_half_of_the_rows_each(tmp_path):
    processes = launch(tmp_path, 2, "data=2")
    whole = processes_run.go()
    finish(processes)
    check(tmp_path, 2, whole)
    # Their checkpoint is that of any run with these arguments: here it is finished, and read.
    again = processes_run.go(checkpoint=processes_run.saved(tmp_path, processes_run.FEW))
    np.testing.assert_array_equal(again.positions, np.load(tmp_path / "0.npz")["positions"])


@pytest.mark.slow
def test_process_0_tunes_and_all_draw(tmp_path):
    finish(launch(tmp_path, 2, "data=2;unequal=auto"))
    found = [np.load(tmp_path / f"{i}.npz") for i in range(2)]
    np.testing.assert_array_equal(*(each["positions"] for each in found))
    whole = processes_run.automatic()
    assert found[0]["positions"].shape == whole.positions.shape
    np.testing.assert_allclose(found[0]["positions"], whole.positions, atol=ROUNDING)


def wait_for_a_save(folder: pathlib.Path, processes) -> None:
    patience = time.monotonic() + PATIENCE
    while not any((folder / "checkpoint" / "saves").glob("0*")):
        assert time.monotonic() < patience
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def kill(lost: int, processes) -> None:
    """Kill a process; the others end soon, and say why."""
    processes[lost].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for i, (code, said, errors) in enumerate(outputs(processes)):
        assert code != 0
        assert "finished" not in said
        if i != lost:
            name = f"sghmc: Process {i} of {len(processes)}"
            assert f"{name} has lost another process" in errors
            assert "goes on from its last save" in errors
    assert time.monotonic() - killed < 30  # jax alone would wait 100 seconds for a heartbeat


@pytest.mark.slow
def test_a_lost_process_ends_the_others_and_two_go_on(tmp_path):
    processes = launch(tmp_path, 4, "chain=2,data=2", processes_run.MANY)
    wait_for_a_save(tmp_path, processes)
    kill(3, processes)
    finish(launch(tmp_path, 2, "data=2", processes_run.MANY))
    check(tmp_path, 2, processes_run.go(num_samples=processes_run.MANY))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_started_again_two_processes_have_the_bits_of_an_unbroken_run(lost, tmp_path):
    """Process 0 is the one that writes, and that jax's own processes speak to."""
    (tmp_path / "unbroken").mkdir()
    finish(launch(tmp_path / "unbroken", 2, "data=2", processes_run.MANY))
    processes = launch(tmp_path, 2, "data=2", processes_run.MANY)
    wait_for_a_save(tmp_path, processes)
    kill(lost, processes)
    finish(launch(tmp_path, 2, "data=2", processes_run.MANY))
    for name in ("positions", "square"):
        whole, *again = (
            np.load(folder / f"{i}.npz")[name]
            for folder, i in [(tmp_path / "unbroken", 0), (tmp_path, 0), (tmp_path, 1)]
        )
        for each in again:
            np.testing.assert_array_equal(each, whole)


@pytest.mark.slow
def test_sigterm_to_one_process_saves_and_ends_both(tmp_path):
    processes = launch(tmp_path, 2, "data=2", processes_run.MANY)
    wait_for_a_save(tmp_path, processes)
    processes[1].send_signal(signal.SIGTERM)
    assert [code for code, _, _ in outputs(processes)] == [143, 143]
    assert not list((tmp_path / "checkpoint" / "saves").glob("unfinished"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"), [("array", "data=2"), ("order", "chain=2"), ("parquet", "chain=2")]
)
def test_processes_with_other_rows_refuse_the_run(kind, shape, tmp_path):
    for code, said, errors in outputs(launch(tmp_path, 2, f"{shape};unequal={kind}")):
        assert code != 0
        assert "finished" not in said
        assert "Processes 0 and 1 of 2 were given different arguments: target.data" in errors
