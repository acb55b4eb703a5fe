"""A run's folder: saves come back, other formats are refused, and several processes share it."""

import os
import pathlib
import tarfile
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.checkpoint import folder as folders
from sghmc.checkpoint import store as stores
from sghmc.checkpoint.checkpoint import Checkpoint, CheckpointError, CheckpointWarning
from sghmc.checkpoint.folder import RunFolder, Save, open_folder, read_run
from sghmc.checkpoint.store import DiskStore

OLD_RUN = pathlib.Path(__file__).parents[1] / "support" / "format_3_run.tar.gz"
LIKE = {"x": jax.ShapeDtypeStruct((2,), np.float32)}
NOTHING = {"positions": np.zeros((1, 0, 3), np.float32)}
IS_KEPT = np.arange(9) >= 2


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    numbers = 3 * first + np.arange(3 * count, dtype=np.float32)
    return {"positions": numbers.reshape(1, count, 3)}


def state(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full(2, value, np.float32)}


def saved(path, *ends: int) -> Checkpoint:
    """A folder with saves after so many draws."""
    checkpoint = Checkpoint(path, every=1)
    with open_folder(checkpoint, {"a": 1}) as folder:
        store = folder.open_store(NOTHING, 7, grows=False)
        assert folder.resume(LIKE, IS_KEPT) is None
        for end in ends:
            kept = int(np.count_nonzero(IS_KEPT[:end]))
            store.append(rows(store.num_kept, kept - store.num_kept))
            folder.save(Save(end, state(end), end + 0.5, 0.25, [(0, 50)]))
    return checkpoint


def test_a_save_comes_back_with_its_draws(tmp_path):
    checkpoint = saved(tmp_path, 4, 6)
    with open_folder(checkpoint, {"a": 1}) as folder:
        folder.check()
        assert folder.has_saves
        store = folder.open_store(NOTHING, 7, grows=False)
        save = folder.resume(LIKE, IS_KEPT)
        assert save is not None
        assert (save.done, save.seconds, save.startup_seconds) == (6, 6.5, 0.25)
        assert [*save.sizes] == [(0, 50)]
        np.testing.assert_array_equal(save.state["x"], [6, 6])
        assert store.num_kept == 4
        np.testing.assert_array_equal(store.draws()["positions"], rows(0, 4)["positions"])
        store.append(rows(4, 3))
        np.testing.assert_array_equal(store.draws()["positions"], rows(0, 7)["positions"])
    other = open_folder(checkpoint, {"a": 2})
    with other as folder, pytest.raises(CheckpointError, match="other arguments: a was 1, is 2"):
        folder.check()


def test_the_newest_saves_stay(tmp_path):
    saved(tmp_path, 1, 3, 4, 5)
    assert [int(each.name) for each in folders._saves_in(tmp_path)] == [3, 4, 5]


def test_a_save_is_due_after_every_so_many_draws_or_seconds(tmp_path, monkeypatch):
    folder = RunFolder(Checkpoint(tmp_path, every=5), {})
    assert [folder.draws_until_check(done) for done in (0, 3, 5)] == [5, 2, 5]
    assert [folder.is_due(done) for done in (4, 5, 10)] == [False, True, True]
    now = [100.0]
    monkeypatch.setattr(folders.time, "monotonic", lambda: now[0])
    timed = RunFolder(Checkpoint(tmp_path, seconds=30.0), {})
    assert timed.draws_until_check(3) > 10**9
    for seconds, is_due in ((129.9, False), (130.0, True)):
        now[0] = seconds
        assert timed.is_due(1) == is_due


# Folders of other versions


@pytest.fixture
def old_run(tmp_path) -> pathlib.Path:
    """A finished run of four draws that commit dc56141 wrote, whose saves have format 3."""
    with tarfile.open(OLD_RUN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def test_a_run_of_the_last_format_is_refused_by_version(old_run):
    before = sorted(old_run.rglob("*"))
    message = r"another version of sghmc: it has format 3, and this version reads format 4\."
    with pytest.raises(CheckpointError, match=message):
        sghmc.sample(
            jax.random.key(0),
            sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2),
            sghmc.SGHMC(0.1, 1.0),
            jnp.zeros(2),
            num_samples=4,
            progress=False,
            checkpoint=Checkpoint(old_run, every=2),
        )
    with pytest.raises(CheckpointError, match=message):
        read_run(old_run)
    assert sorted(old_run.rglob("*")) == before


# Several processes


@pytest.fixture
def process(monkeypatch):
    """Makes this process 0 or another one, which hears `said` from process 0."""

    def become(is_leader: bool, said=()):
        left = iter(said)
        broadcast = np.asarray if is_leader else (lambda _: next(left))
        fake = types.SimpleNamespace(
            is_leader=lambda: is_leader,
            is_multiprocess=lambda: True,
            broadcast=broadcast,
            on_leader=lambda function: function() if is_leader else None,
            broadcast_tree=lambda tree: jax.tree.map(broadcast, tree),
        )
        for module in (folders, stores):
            monkeypatch.setattr(module, "runtime", fake)

    return become


def test_process_0_reads_and_the_others_hear_all_its_numbers(tmp_path, process):
    checkpoint = saved(tmp_path, 4)
    process(True)
    with open_folder(checkpoint, {"a": 1}) as folder:
        assert folder.has_saves
        store = folder.open_store(NOTHING, 7, grows=False)
        save = folder.resume(LIKE, IS_KEPT)
        assert save is not None
        assert (save.done, save.seconds, save.startup_seconds) == (4, 4.5, 0.25)
        np.testing.assert_array_equal(save.state["x"], [4, 4])
        assert store.num_kept == 2
    process(False, [1, [4, 2], [4.5, 0.25], np.array([4.0, 5.0]), True, None])
    with open_folder(checkpoint, {"a": 3}) as folder:
        folder.check()  # what process 0 does, and it has other arguments than this one
        assert folder.has_saves
        store = folder.open_store(NOTHING, 7, grows=False)
        save = folder.resume(LIKE, IS_KEPT)
        assert save is not None
        assert (save.done, save.seconds, save.startup_seconds) == (4, 4.5, 0.25)
        np.testing.assert_array_equal(save.state["x"], [4, 5])
        assert store.num_kept == 2
        folder.settings = Checkpoint(tmp_path, seconds=1e9)
        assert folder.is_due(5)  # by the clock of process 0
        folder.save(save)
        np.testing.assert_array_equal(store.draws()["positions"], rows(0, 2)["positions"])
    assert [int(each.name) for each in folders._saves_in(tmp_path)] == [4]


def test_without_a_save_no_process_goes_on(tmp_path, process):
    for is_leader, said in ((True, ()), (False, [[-1, 0]])):
        process(is_leader, said)
        with open_folder(Checkpoint(tmp_path), {}) as folder:
            folder.open_store(NOTHING, 7, grows=False)
            assert folder.resume(LIKE, IS_KEPT) is None


def test_draws_are_written_by_process_0_and_counted_by_all(tmp_path, process):
    (tmp_path / "draws").mkdir()
    for is_leader, said in ((True, ()), (False, [4])):
        process(is_leader, said)
        store = DiskStore(tmp_path / "draws", NOTHING, 7)
        if is_leader:
            store.create()
        store.append(rows(0, 4))
        assert store.num_kept == 4
        np.testing.assert_array_equal(store.draws()["positions"], rows(0, 4)["positions"])
        store.close()


def test_a_folder_that_another_process_cannot_read_is_an_error(tmp_path, process):
    process(False, [4])
    store = DiskStore(tmp_path / "elsewhere", NOTHING, 7)
    store.append(rows(0, 4))
    with pytest.raises(CheckpointError, match="which process 0 writes to, cannot be read here"):
        store.draws()


def test_a_damaged_save_is_named_with_the_one_that_is_used(tmp_path):
    checkpoint = saved(tmp_path, 4, 6)
    (folders._saves_in(tmp_path)[-1] / "manifest.json").write_text("damaged")
    with open_folder(checkpoint, {"a": 1}) as folder:
        folder.open_store(NOTHING, 7, grows=False)
        with pytest.warns(CheckpointWarning, match=r"after 6 draws is damaged.*from 4 draws"):
            save = folder.resume(LIKE, IS_KEPT)
    assert save is not None
    assert save.done == 4
    assert [int(each.name) for each in folders._saves_in(tmp_path)] == [4]


@pytest.mark.skipif(os.name != "posix", reason="Modes of files are those of POSIX.")
def test_a_folder_is_marked_by_a_file_that_nobody_runs(tmp_path):
    saved(tmp_path, 4)
    assert (tmp_path / folders._MARKER).stat().st_mode & 0o111 == 0


def test_drafts_of_a_killed_run_are_removed_where_it_goes_on(tmp_path):
    checkpoint = saved(tmp_path, 4)
    (left := tmp_path / "draws" / ".0.unfinished").write_text("half")
    with open_folder(checkpoint, {"a": 1}) as folder:
        folder.open_store(NOTHING, 7, grows=False)
        assert folder.resume(LIKE, IS_KEPT) is not None
    assert not left.exists()


def test_other_processes_wait_until_draws_are_written(tmp_path, process):
    process(True)
    heard = []
    (tmp_path / "draws").mkdir()
    store = DiskStore(tmp_path / "draws", NOTHING, 7)
    store.create()
    store.append(rows(0, 4))
    stores.runtime.broadcast = lambda value: heard.append(value) or np.asarray(value)
    store.draws()
    store.close()
    assert heard == [4]
