"""What a machine has."""

import pathlib
import types

import jax
import pytest

from sghmc.core import runtime


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that a kernel speaks through, which tests write."""
    monkeypatch.setattr(runtime, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(runtime, "_CGROUP_LIMIT", tmp_path / "memory.max")
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "bytes_there"),
    [(None, 1024 * 1500), ("max\n", 1024 * 1500), ("1000\n", 1000), ("99999999\n", 1024 * 1500)],
)
def test_memory_is_ram_and_swap_or_what_a_container_may_have(files, limit, bytes_there):
    (files / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 10 kB\nSwapTotal:  500 kB\n")
    if limit is not None:
        (files / "memory.max").write_text(limit)
    assert runtime.memory_bytes() == bytes_there


def test_this_machine_has_memory(files):
    assert (
        runtime.memory_bytes() or 0
    ) > 1 << 28  # by the C library, where there are no such files


def test_a_cpu_has_no_memory_of_its_own():
    assert runtime.device_bytes(jax.devices("cpu")[0]) is None


def test_room_on_the_disk_of_a_folder_that_is_not_there_yet(tmp_path):
    assert runtime.free_bytes(tmp_path / "a" / "b") == pytest.approx(
        runtime.free_bytes(tmp_path), rel=0.1
    )
    assert runtime.folder_bytes(tmp_path / "a") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    pathlib.Path(tmp_path / "a" / "b" / "file").write_bytes(bytes(1234))
    assert runtime.folder_bytes(tmp_path / "a") == 1234


def test_a_machine_without_swap_has_its_ram(files):
    (files / "meminfo").write_text("MemTotal:  1000 kB\n")
    assert runtime.memory_bytes() == 1024 * 1000


def test_an_accelerator_says_what_jax_may_use():
    stats = {"bytes_limit": 5000, "bytes_in_use": 7}
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    assert runtime.device_bytes(device) == 5000
    silent = types.SimpleNamespace(platform="gpu", memory_stats=lambda: None)
    assert runtime.device_bytes(silent) is None


def test_the_c_library_counts_pages(files, monkeypatch):
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 300}
    monkeypatch.setattr(runtime.os, "sysconf", sizes.__getitem__)
    assert runtime.memory_bytes() == 4096 * 300
