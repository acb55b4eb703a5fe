"""A run read back from its folder, without the code that made it; and ways it can be broken."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import sghmc
from sghmc import cli
from sghmc.checkpoint import manifest, zarr
from sghmc.checkpoint.checkpoint import CheckpointError
from sghmc.checkpoint.folder import read_run
from sghmc.cli import session

NAME = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def no_compiled_programs_on_disk(monkeypatch):
    monkeypatch.setattr(session, "keep_compiled_programs", lambda: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with hyperparameters, two saves, and bfloat16 among its draws; and how to go on."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    posterior = sghmc.Posterior(
        lambda p, y, hyper: -0.5 * hyper["scale"] * (y - p[NAME][0]) ** 2,
        lambda p, hyper: -0.5 * jnp.sum(p[NAME] ** 2) - 0.5 * p["b"].astype(jnp.float32) ** 2,
        jnp.ones(5),
        hyper={"scale": 2.0},
    )

    def go_on():
        return sghmc.sample(
            jax.random.key(0),
            posterior,
            sghmc.SGHMC(0.1, friction=2.0, temperature=0.5),
            {NAME: jnp.zeros(2), "b": jnp.zeros((), jnp.bfloat16)},
            num_samples=20,
            num_burnin=10,
            thinning=2,
            num_chains=2,
            checkpoint=sghmc.Checkpoint(folder, every=15),
            progress=False,
        )

    return folder, go_on(), go_on


@pytest.fixture
def copy(run, tmp_path):
    leave = shutil.ignore_patterns("report.html")
    return shutil.copytree(run[0], tmp_path / "copy", ignore=leave)


@pytest.mark.slow
def test_the_draws_are_those_of_the_run(run):
    folder, samples, _ = run
    found = read_run(folder)
    assert set(found.positions) == {NAME, "b", "hyper.scale"}
    for name, expected in samples.positions.items():
        np.testing.assert_array_equal(found.positions[name], expected)
    assert found.positions["b"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.positions["hyper.scale"], samples.hyper["scale"])
    np.testing.assert_array_equal(found.info.potential, samples.info.potential)
    np.testing.assert_array_equal(found.clock, samples.clock)
    assert found.num_steps == samples.num_steps == 60
    health = found.health()
    mean = float(np.mean(samples.info.kinetic_temperature))
    assert health.kinetic_temperature == pytest.approx(mean / 0.5, rel=1e-5)
    assert health.predicted_error is None
    assert "came without their target" in health.skipped[0]


@pytest.mark.slow
def test_the_command_writes_a_page_and_the_run_can_still_go_on(run):
    folder, samples, go_on = run
    result = CliRunner().invoke(cli.app, ["report", str(folder), "--json", "--debug"])
    assert result.exit_code == 0, result.output
    page = folder / "report.html"
    assert json.loads(result.stdout) == {"report": str(page), "kind": "run"}
    content = page.read_text("utf-8")
    assert content.count("<script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[1]" in content
    assert "sghmc.SGHMC" in content  # whatever file it stands in
    assert "init[&#x27;&lt;script&gt;" in content  # settings are escaped, too
    again = go_on()
    np.testing.assert_array_equal(again.positions[NAME], samples.positions[NAME])


def saves(folder):
    return sorted((folder / "saves").iterdir())


def change(path):
    path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.slow
def test_an_older_save_counts_where_the_newest_is_broken(copy):
    change(saves(copy)[-1] / "manifest.json")
    assert read_run(copy).num_steps == 30
    assert read_run(copy).num_draws == 5


def no_saves(folder):
    shutil.rmtree(folder / "saves")
    (folder / "saves").mkdir()


def draws_of(folder, array):
    (path,) = (folder / "draws" / array).glob("c.0.0*")
    return path


def changed_draws(folder):
    path = draws_of(folder, "run/b")
    content = bytearray(path.read_bytes())
    content[16 * zarr._MIN_CHUNKS] ^= 1  # of the first draw, after the index
    path.write_bytes(content)
    shutil.rmtree(saves(folder)[0])


def short_draws(folder):
    path = draws_of(folder, "run/clock")
    os.truncate(path, 20)


def linked_draws(folder):
    path = draws_of(folder, "run/clock")
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


def huge_draws(folder):
    """A manifest that speaks of more bytes than 64 bits can count, with right checksums."""
    for place in saves(folder):
        found = manifest.read(place)
        found.content["draws"]["run/clock"]["row"] = [2**40, 2**40]
        manifest.write(place, found)
    draws_of(folder, "run/clock").rename(folder / "draws" / "run" / "clock" / "c.0.0.0")


def linked_folder(folder):
    path = folder / "draws" / "posterior"
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (no_saves, "there is none yet"),
        (changed_draws, "draws/run/b/c.0.0 has changed"),
        (short_draws, "draws/run/clock/c.0.0 is cut short"),
        (huge_draws, "draws/run/clock/c.0.0.0 is cut short"),
        (linked_draws, "is a link"),
        (linked_folder, "draws/posterior is a link"),
        (lambda folder: shutil.rmtree(folder / "draws"), "cannot be read"),
        (lambda folder: [change(s / "manifest.json") for s in saves(folder)], "has changed"),
    ],
    ids=[
        "no saves",
        "changed draws",
        "short draws",
        "huge draws",
        "linked draws",
        "linked folder",
        "no draws",
        "manifests",
    ],
)
def test_a_broken_folder_is_an_error_that_says_what_is_broken(copy, break_it, message):
    break_it(copy)
    with pytest.raises(CheckpointError, match=message):
        read_run(copy)
    result = CliRunner().invoke(cli.app, ["report", str(copy)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sghmc: ")
    assert not (copy / "report.html").exists()
