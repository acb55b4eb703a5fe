"""Stop and resume: bit for bit, whatever stopped the run and whatever became of its files."""

import ast
import dataclasses
import errno
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import checkpoint_run
import sghmc
from cases import SAMPLERS, halving
from sghmc import sampling
from sghmc.checkpoint import manifest, zarr
from sghmc.checkpoint.checkpoint import DamagedError
from sghmc.checkpoint.folder import open_folder
from sghmc.engine import driver, run
from sghmc.engine.driver import Bar
from sghmc.tuning.result import TuneReport

KEY = jax.random.key(7)
START = jnp.array([0.5, -1.0])
SAMPLER = sghmc.SGHMC(0.1, 2.0)
DATA = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)


def log_likelihood(theta, x):
    return -0.5 * jnp.sum((x - theta) ** 2)


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, DATA)


QUADRATIC = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)


class Killed(BaseException):
    """What ends a run at once."""


@pytest.fixture
def kill_at(monkeypatch):
    """Makes runs end without a word once they have made so many draws; None: no longer."""

    def set_end(count: int | None):
        class Death(Bar):
            def update(self, num_done, failed_at):
                if count is not None and num_done >= count:
                    raise Killed

        monkeypatch.setattr(driver, "Bar", Death)

    return set_end


def sample(path=None, /, *args: Any, saving: Any = None, **given: Any):
    """A run, saved at `path` where there is one."""
    saved = None if path is None else sghmc.Checkpoint(path, **saving or {"every": 3})
    usual: tuple[Any, ...] = (POSTERIOR, SAMPLER, START, KEY)
    target, sampler, init, key = (*args, *usual[len(args) :])
    settings = {"num_samples": 9, "progress": False, "gradient": sghmc.Minibatch(3)} | given
    return sghmc.sample(key, target, sampler, init, checkpoint=saved, **settings)


def same(one: sghmc.Samples, other: sghmc.Samples):
    """Bit for bit."""
    for name in ("positions", "hyper", "trace", "averages", "num_steps"):
        jax.tree.map(
            lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)),
            getattr(one, name),
            getattr(other, name),
        )
    for name, values in vars(one.info).items():
        np.testing.assert_array_equal(values, getattr(other.info, name))


def saves(path) -> list[int]:
    """The draws after which there is a save."""
    names = [each.name for each in (path / "saves").glob("*")]
    return sorted(int(name) for name in names if name.isdecimal())


def newest(path) -> int:
    return max(saves(path), default=0)


def contents(path) -> dict[str, str]:
    files = [each for each in path.rglob("*") if each.is_file()]
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def check_resumes(path, kill_at, *args, ends=(5,), **given):
    """A run that ended after so many draws, several times, is as one that never did."""
    whole = sample(None, *args, **given)
    for end in ends:
        kill_at(end * given.get("thinning", 1))
        with pytest.raises(Killed):
            sample(path, *args, **given)
    kill_at(None)
    same(sample(path, *args, **given), whole)
    same(sample(path, *args, **given), whole)  # from the finished run's files


# Every kind of run goes on as if nothing had been


ALIKE = ("without accept", "schedules", "learning rate", "resampling", "whitened", "baoab")
"""States of such are those of others: they are resumed in the slow tests."""


@pytest.mark.slow_cases(
    "hmc", "psgld", "replicas of sghmc", "sghmc", "sgld", "sgnht", "sgrhmc", "ubu"
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if any(a in name for a in ALIKE) else [])
        for name in SAMPLERS
    ],
)
def test_every_sampler_goes_on_bit_for_bit(name, kill_at, tmp_path):
    args = (QUADRATIC, SAMPLERS[name], START)
    check_resumes(tmp_path, kill_at, *args, gradient=None, num_samples=7, ends=(4,))
    assert len(saves(tmp_path)) == 3


@pytest.mark.slow
def test_all_that_a_run_carries_through_burnin_and_draws(kill_at, tmp_path):
    """With parameters whose names must not lead out of the folder, and a type numpy has not."""
    init = {"../../up": START, "ε": jnp.zeros(3, jnp.bfloat16)}
    target = sghmc.Posterior(
        lambda theta, x, hyper: -0.5 * hyper * jnp.sum((x - theta["../../up"]) ** 2),
        lambda theta, hyper: -0.5 * jnp.sum(hyper * theta["ε"] ** 2).astype(jnp.float32),
        DATA,
        hyper=1.0,  # a Python number: promotions must not change once it was saved
    )
    check_resumes(
        tmp_path / "run",
        kill_at,
        target,
        sghmc.SGHMC(halving(0.02), 4.0, gradient_noise=sghmc.EmpiricalFisher(every=2)),
        init,
        gradient=sghmc.ControlVariate(3, init, renew_every=4),
        gibbs=sghmc.Gibbs(lambda key, theta, posterior: jax.random.uniform(key), every=3),
        adapt=sghmc.AdaptMass(until=8, first_window=2),
        averages={"both": lambda theta, hyper: hyper * theta["../../up"]},
        trace=lambda means: means["both"],
        num_burnin=4,
        num_samples=6,
        thinning=2,
        num_chains=2,
        ends=(4, 8),
    )
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
    draws = tmp_path / "run" / "draws"
    arrays = {str(file.parent.relative_to(draws)) for file in draws.rglob("c.0.0*")}
    assert {path for path in arrays if "sample_stats" not in path} == {
        "posterior/-..-up",
        "posterior/hyper",
        "run/ε",  # bits
        "run/trace",
        "run/clock",
    }
    assert len(arrays) == 5 + 3


@pytest.mark.slow
def test_a_posterior_for_each_chain(kill_at, tmp_path):
    one = sghmc.Posterior(log_likelihood, log_prior, DATA[:7])
    stack = sghmc.Posterior.stack([POSTERIOR, one])
    check_resumes(tmp_path, kill_at, stack, posterior_axis=0, num_chains=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mapped", "stream"])
def test_data_from_files_and_streams(kind, kill_at, tmp_path):
    """A stream that begins anew is read again up to where the run was."""
    np.save(tmp_path / "x.npy", DATA)

    def rows():
        return iter(np.array_split(DATA, 3))

    def target():
        source: Any = sghmc.data.MemoryMapped(tmp_path / "x.npy")
        if kind == "stream":
            source = sghmc.data.Stream(rows, size=len(DATA), buffer=4, read_ahead=9)
        return sghmc.Posterior(log_likelihood, log_prior, source)

    whole = sample(None, target())
    kill_at(5)
    with pytest.raises(Killed):
        sample(tmp_path / "run", target())
    kill_at(None)
    same(sample(tmp_path / "run", target()), whole)


@pytest.mark.slow
def test_auto_tunes_once(kill_at, tmp_path, monkeypatch):
    tunings = []
    factor = np.array([[0.5, 0.0], [0.1, 0.4]])

    def tune(key, target, init, **options):
        tunings.append(1)
        sampler = sghmc.Whitened(SAMPLER, np.asarray(init), factor)
        report = TuneReport(
            engine="minibatch",
            num_parameters=2,
            distance=0.0,
            estimator="Minibatch",
            step_size=0.1,
            kinetic_temperature=1.0,
            autocorrelation_time=5.0,
            tolerance=0.05,
            gradient_noise={"minibatch": 0.1},
            notes=("a note",),
        )
        return sghmc.Tuned(sampler, sghmc.Minibatch(3), jnp.stack([init]), 1, report)

    monkeypatch.setattr(sampling, "tune", tune)
    kill_at(5)
    with pytest.raises(Killed):
        sample(tmp_path, POSTERIOR, "auto")
    kill_at(None)
    samples = sample(tmp_path, POSTERIOR, "auto")
    assert len(tunings) == 1
    assert samples.tuning.notes[-1] == "a note"
    same(samples, sample(None, POSTERIOR, "auto"))
    assert len(tunings) == 2
    with pytest.raises(sghmc.CheckpointError, match="num_chains was 1, is 2"):
        sample(tmp_path, POSTERIOR, "auto", num_chains=2)
    for content in ({"class": "Tuned"}, {"array": "9"}, {}, [], {"class": "Path", "x": 1}):
        found = manifest.read(tmp_path / "tuning")
        manifest.write(tmp_path / "tuning", dataclasses.replace(found, content=content))
        with pytest.warns(sghmc.CheckpointWarning, match="the result of tuning is damaged"):
            assert sample(tmp_path, POSTERIOR, "auto").tuning.notes[-1] == "a note"
    assert len(tunings) == 7


# Whatever became of the files


@pytest.fixture(scope="module")
def whole():
    return sample()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, whole):
    """The folder of a finished run, with saves after 3, 6 and 9 draws."""
    path = tmp_path_factory.mktemp("finished") / "run"
    same(sample(path), whole)
    assert saves(path) == [3, 6, 9]
    return path


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def flip(path: pathlib.Path):
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: pathlib.Path):
    os.truncate(path, path.stat().st_size - 1)


def link(path: pathlib.Path):
    """The same bytes, but elsewhere."""
    elsewhere = next(each for each in path.parents if each.name == "run").parent / path.name
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def positions(path) -> pathlib.Path:
    """The file of their draws."""
    return path / "draws" / "posterior" / "position" / "c.0.0.0"


def newest_manifest(path):
    return path / "saves" / f"{9:012d}" / "manifest.json"


def newest_state(path):
    return next((path / "saves" / f"{9:012d}" / "state" / "d").iterdir())


@pytest.mark.slow
def test_a_finished_run_is_returned_without_running(folder, whole, monkeypatch):
    monkeypatch.setattr(driver.OneDevice, "begin", None)
    monkeypatch.setattr(driver.OneDevice, "advance", None)
    before = contents(folder)
    same(sample(folder), whole)
    assert contents(folder) == before


def make_read_only(monkeypatch):
    """Nothing can be opened for writing: permissions would not stop a superuser's test."""

    def refuse():
        raise OSError(errno.EROFS, "Read-only file system")

    def opened(path, mode="r", *args, plain=open, **given):
        return plain(path, mode, *args, **given) if set(mode) <= set("rbt") else refuse()

    def opened_by_number(path, flags, *args, plain=os.open, **given):
        return plain(path, flags, *args, **given) if not flags & os.O_ACCMODE else refuse()

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(os, "open", opened_by_number)
    monkeypatch.setattr(pathlib.Path, "write_bytes", lambda *_: refuse())


@pytest.mark.slow
def test_a_finished_run_on_a_read_only_disk_is_returned(folder, whole, monkeypatch):
    make_read_only(monkeypatch)
    same(sample(folder), whole)


def test_an_unfinished_run_on_a_read_only_disk_is_refused(tmp_path, kill_at, monkeypatch):
    kill_at(5)
    with pytest.raises(Killed):
        sample(tmp_path)
    kill_at(None)
    make_read_only(monkeypatch)
    with pytest.raises(
        sghmc.CheckpointError, match=r"cannot be written to: .*Read-only.*may write"
    ):
        sample(tmp_path)


def test_a_pipe_is_no_marker(tmp_path):
    os.mkfifo(tmp_path / "sghmc-checkpoint")
    with pytest.raises(ValueError, match="sghmc-checkpoint is a pipe or a device"):
        sample(tmp_path)


@pytest.mark.slow
def test_other_names_of_what_is_kept_are_other_arguments(tmp_path):
    """The program is the same: only the names of what it returns are not."""
    sample(tmp_path, keep=lambda theta: {"a": theta})
    before = contents(tmp_path)
    with pytest.raises(
        sghmc.CheckpointError, match=r"kept other parts of a draw: posterior/a, run"
    ):
        sample(tmp_path, keep=lambda theta: {"b": theta})
    assert contents(tmp_path) == before


@pytest.mark.parametrize("harm", [flip, cut, link, os.remove])
@pytest.mark.parametrize("find", [newest_manifest, newest_state])
def test_a_damaged_save_is_passed_over_aloud(harm, find, folder, whole):
    harm(find(folder))
    with pytest.warns(sghmc.CheckpointWarning, match=r"after 9 draws is damaged.*from 6 draws"):
        same(sample(folder), whole)
    same(sample(folder), whole)  # all is well again


def test_damage_to_any_file_of_a_save_is_seen(finished, tmp_path):
    """Each of them, without a run for each."""
    place = finished / "saves" / f"{9:012d}"
    names = manifest.files_in(place)
    assert len(names) > 8
    for name in names:
        for harm in (flip, cut, os.remove):
            copy = shutil.copytree(place, tmp_path / "copy")
            harm(copy / name)
            with pytest.raises(DamagedError):
                manifest.check_files(copy, manifest.read(copy))
            shutil.rmtree(copy)


def test_draws_that_changed_are_seen_and_made_again(folder, whole):
    file = positions(folder)
    content = bytearray(file.read_bytes())
    content[16 * zarr._MIN_CHUNKS + whole.positions.nbytes - 9] ^= 1  # of the last draw
    file.write_bytes(content)
    with pytest.warns(sghmc.CheckpointWarning, match=r"position/c.0.0.0 has changed.*from 6"):
        same(sample(folder), whole)


@pytest.mark.slow
def test_without_an_intact_save_nothing_is_touched(folder):
    cut(positions(folder))
    for place in (folder / "saves").iterdir():
        flip(place / "manifest.json")
    before = contents(folder)
    with pytest.raises(sghmc.CheckpointError, match=r"No save in .* can be used.*after 3 draws"):
        sample(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["file", "array", "group"])
def test_draws_that_are_elsewhere_are_not_followed(depth, folder):
    file = positions(folder)
    link([file, *file.parents][depth])
    with pytest.raises(sghmc.CheckpointError, match=r"is a link"):
        sample(folder)


def craft(place, **fields):
    """Make a save's manifest say something else of its content, with right checksums."""
    found = manifest.read(place)
    names = set(manifest.files_in(place)) - {"manifest.json"}
    changed = dataclasses.replace(
        found,
        content={**found.content, **fields},
        files={name: manifest.checksum(place / name) for name in names},
    )
    manifest.write(place, changed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"more": 1}, r"content has .*more.* in place of the fields"),
        ({"done": 10**15, "num_kept": 10**15}, "is cut short"),
        ({"num_kept": 8}, "speaks of 8 draws kept of 9"),
    ],
    ids=["field", "huge", "fewer"],
)
def test_a_crafted_manifest_is_not_believed(fields, message, folder, whole):
    craft(newest_manifest(folder).parent, **fields)
    with pytest.warns(sghmc.CheckpointWarning, match=f"{message}.*goes on from 6 draws"):
        same(sample(folder), whole)


@pytest.mark.parametrize("name", ["draws", "saves", "sghmc-checkpoint"])
def test_parts_of_the_folder_that_lead_elsewhere(name, folder):
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(sghmc.CheckpointError, match=f"{name} is a link"):
        sample(folder)


def test_a_save_is_not_written_through_a_link(folder, tmp_path):
    """What a run that was killed left there would be written over."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (folder / "saves" / "unfinished").symlink_to(tmp_path / "precious")
    with open_folder(sghmc.Checkpoint(folder), {}):
        assert not (folder / "saves" / "unfinished").is_symlink()
    assert (tmp_path / "precious" / "file").read_text() == "mine"


# What is refused


def other_likelihood(theta, x):
    return -0.6 * jnp.sum((x - theta) ** 2)


CHANGES = {
    "key": {"key": jax.random.key(8)},
    "sampler.friction was 2.0, is 3.0": {"sampler": sghmc.SGHMC(0.1, 3.0)},
    "sampler.step_size": {"sampler": sghmc.SGHMC(halving(0.1), 2.0)},
    "gradient.batch_size was 3, is 4": {"gradient": sghmc.Minibatch(4)},
    "init": {"init": START + 1},
    "num_burnin was 0, is 1": {"num_burnin": 1},
    "target.data": {"target": sghmc.Posterior(log_likelihood, log_prior, DATA + 1)},
    "target.log_likelihood": {"target": sghmc.Posterior(other_likelihood, log_prior, DATA)},
    "keep was None": {"keep": lambda theta: theta},
    "averages": {"averages": {"mean": lambda theta: theta}},
}


@pytest.mark.parametrize("named", CHANGES)
def test_other_arguments_are_refused_by_name_before_any_work(named, finished, monkeypatch):
    monkeypatch.setattr(run, "prepared", None)
    given = dict(CHANGES[named])
    args = [given.pop(name, None) for name in ("target", "sampler", "init", "key")]
    usual = (POSTERIOR, SAMPLER, START, KEY)
    args = [new if new is not None else old for new, old in zip(args, usual, strict=True)]
    before = contents(finished)
    with pytest.raises(sghmc.CheckpointError, match=rf"other arguments: {named}") as caught:
        sample(finished, *args, **given)
    assert ";" not in str(caught.value).partition("averages")[0]  # nothing else is blamed
    assert contents(finished) == before


def test_equal_arguments_are_not_refused_and_neither_are_how_to_show_and_save(finished, whole):
    def log_likelihood(theta, x):
        # Elsewhere in the file, with a comment.
        return -0.5 * jnp.sum((x - theta) ** 2)

    target = sghmc.Posterior(log_likelihood, log_prior, DATA.copy())
    again = sample(finished, target, sghmc.SGHMC(0.1, 2.0), START, saving={"every": 4}, throw=False)
    same(again, whole)


def test_folders_of_other_things_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(sghmc.CheckpointError, match=r"holds 'notes.txt', which is no part"):
        sample(tmp_path)
    with pytest.raises(sghmc.CheckpointError, match="is a file"):
        sample(tmp_path / "notes.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_two_runs_cannot_write_to_one_folder(folder):
    with (
        open_folder(sghmc.Checkpoint(folder), {}),
        pytest.raises(sghmc.CheckpointError, match="Another"),
    ):
        sample(folder)


def test_settings_that_make_no_sense():
    with pytest.raises(ValueError, match="every must be None or a whole number from 1, but is 0"):
        sghmc.Checkpoint("x", every=0)
    with pytest.raises(ValueError, match="seconds must be above 0"):
        sghmc.Checkpoint("x", seconds=0)
    with pytest.raises(ValueError, match="not both"):
        sghmc.Checkpoint("x", every=1, seconds=1)
    with pytest.raises(TypeError, match="path must name a folder"):
        sghmc.Checkpoint(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="path must name a folder"):
        sghmc.Checkpoint("x\0y")


@pytest.mark.parametrize("place", ["name/" + 300 * "x", "loop/run"])
def test_a_folder_that_cannot_be_made_is_not_asked_to_make_room(place, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(sghmc.CheckpointError, match=r"cannot be written to.*Give a folder"):
        sample(tmp_path / place)


@pytest.mark.slow
def test_no_reader_takes_pickles():
    for path in pathlib.Path(sghmc.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())]
            modules = [*names, getattr(node, "module", None)]
            assert not {"pickle", "dill", "joblib", "marshal", "shelve"} & set(modules), path
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("np.load"):
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert given.get("allow_pickle") == "False", path


# How a run may end


def test_ctrl_c_keeps_everything(tmp_path, whole, monkeypatch):
    class CtrlC(Bar):
        def update(self, num_done, failed_at):
            if num_done == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(driver, "Bar", CtrlC)
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)  # a draw at a time
    with pytest.warns(UserWarning, match="Interrupted after 5 of 9 draws"):
        partial = sample(tmp_path)
    np.testing.assert_array_equal(partial.positions, whole.positions[:, :5])
    assert saves(tmp_path) == [3, 5]
    same(sample(tmp_path), whole)


def sum_of_squares(tree):
    return optax.tree.norm(tree, squared=True)


FULL = {
    "for the store's metadata": (1_000, jnp.zeros(5_000), None),
    "for the draws": (30_000, jnp.zeros(5_000), None),
    "for the state": (6_000, [jnp.zeros(())] * 40, lambda leaves: leaves[0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("no_room", FULL)
def test_a_full_disk_is_told_and_earlier_work_kept(no_room, tmp_path, kill_at, monkeypatch):
    """The store's metadata are 4 kB; a draw is 20 kB, or orbax writes 12 kB about 40 arrays."""
    monkeypatch.setattr(zarr, "_CHUNK_BYTES", 1)  # no hole, whose end would be too far
    room, init, keep = FULL[no_room]
    args, given = (sghmc.Potential(sum_of_squares), SAMPLER, init), {"gradient": None, "keep": keep}
    kill_at(5)
    with pytest.raises(Killed):
        sample(tmp_path, *args, **given)
    kill_at(None)
    assert saves(tmp_path) == [3]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(sghmc.CheckpointError, match=r"Writing to .* failed.*make room"):
            sample(tmp_path, *args, **given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert saves(tmp_path) == [3]
    same(sample(tmp_path, *args, **given), sample(None, *args, **given))


def test_a_run_that_diverges_does_so_again(tmp_path):
    cliff = sghmc.Potential(lambda theta: -theta * jnp.where(theta > 3.5, jnp.nan, 1.0))
    args = (cliff, sghmc.SGD(1.0), jnp.zeros(()))
    for _ in range(2):
        with pytest.raises(sghmc.DivergenceError, match="at step 4") as caught:
            sample(tmp_path, *args, saving={"every": 2}, gradient=sghmc.FullBatch())
        np.testing.assert_array_equal(caught.value.samples.positions[0, :4], [1, 2, 3, 4])


def test_saves_by_time_and_the_last_few_stay(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)
    same(sample(tmp_path, saving={"seconds": 1e-9, "num_saves": 2}), whole)
    assert saves(tmp_path) == [8, 9]


# Draws on the disk


def test_draws_are_mapped_and_not_read(folder, whole):
    samples = sample(folder)
    assert isinstance(samples.positions, np.memmap)
    assert not samples.positions.flags.writeable
    np.testing.assert_array_equal(samples.positions, whole.positions)


# Processes that are killed


def start_process(path, *options) -> subprocess.Popen:
    code = f"import checkpoint_run; checkpoint_run.go({str(path)!r}, *{options})"
    places = [
        str(pathlib.Path(each).parents[0]) for each in (checkpoint_run.__file__, sghmc.__path__[0])
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


def num_written(path) -> int:
    """Draws that had come to the disk: after them is a hole, and no draw is all zeros."""
    after_index = np.frombuffer(positions(path).read_bytes()[16 * zarr._MIN_CHUNKS :], "<f4")
    return int(np.any(after_index.reshape(-1, 2 * 3), axis=1).sum())


def kill(process: subprocess.Popen, path: pathlib.Path) -> None:
    process.kill()
    assert process.wait() == -signal.SIGKILL
    if newest(path):
        assert num_written(path) - newest(path) <= checkpoint_run.EVERY


@pytest.mark.slow
def test_a_process_killed_twice(tmp_path):
    path, rng, last = tmp_path / "run", np.random.default_rng(0), 0
    for _ in range(2):
        process = start_process(path)
        while newest(path) <= last:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        kill(process, path)
        last = newest(path)
    assert 0 < last < checkpoint_run.NUM_SAMPLES
    same(checkpoint_run.go(path), checkpoint_run.go())


@pytest.mark.slow
def test_a_process_killed_fifty_times(tmp_path):
    """At any moment: while it starts, compiles, draws, saves or verifies."""
    path, rng, num_killed = tmp_path / "run", np.random.default_rng(1), 0
    settings = (20_000, checkpoint_run.EVERY)
    while num_killed < 50:
        process = start_process(path, *settings)
        last = newest(path)
        if rng.uniform() < 0.8:  # after a new save; else on its way there
            while newest(path) <= last:
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 1))
        else:
            time.sleep(rng.uniform(0, 6))
        kill(process, path)
        assert newest(path) >= last
        num_killed += 1
    assert newest(path) < settings[0]
    same(checkpoint_run.go(path, *settings), checkpoint_run.go(None, *settings))
