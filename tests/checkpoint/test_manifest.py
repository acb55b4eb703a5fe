"""A manifest is believed only where it could be ours, and files only where it speaks of them."""

import dataclasses
import hashlib
import json
import os
import pathlib

import pytest

from sghmc.checkpoint import manifest
from sghmc.checkpoint.checkpoint import CheckpointError, DamagedError
from sghmc.checkpoint.manifest import Manifest, RunProgress, StoredArray

DIGEST = "0" * 64
STORED = StoredArray("positions", "float32", (2, 3), 16, DIGEST)
PROGRESS = RunProgress(
    done=5,
    seconds=1.5,
    startup_seconds=0.5,
    num_kept=3,
    draws={"posterior/position": STORED},
    sizes=((0, 50), (4, 200)),
)


@pytest.fixture
def folder(tmp_path):
    """A save with two files."""
    place = tmp_path / "save"
    (place / "state").mkdir(parents=True)
    for name in ("one", "two"):
        (place / "state" / name).write_text(name)
    manifest.write(place, whole(place))
    return place


def whole(place):
    return Manifest(
        arguments={"key": "0"},
        content=dataclasses.asdict(PROGRESS),
        arrays={"0000": ("float32", (2, 3))},
        files={name: manifest.checksum(place / name) for name in manifest.files_in(place)},
    )


def craft(place, text):
    """Write a manifest with any text and a right checksum."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    (place / "manifest.json").write_text(f"sghmc checkpoint, format 4\n{digest}\n{text}")


def changed(place, path, value):
    """The manifest with one entry replaced, or taken away by None."""
    found = json.loads((place / "manifest.json").read_text().split("\n", 2)[2])
    part = found
    *parents, last = path
    for name in parents:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    craft(place, json.dumps(found))


def test_what_is_written_is_read(folder):
    found = manifest.read(folder)
    assert (found.arguments, found.arrays) == ({"key": "0"}, {"0000": ("float32", (2, 3))})
    assert set(found.files) == {"state/one", "state/two"}
    assert RunProgress.of(found) == PROGRESS
    manifest.check_files(folder, found)


WRONG = {
    "a list": "[1, 2]",
    "nothing": "",
    "no JSON": "{'a': 1}",
    "a number that is too long": "9" * 10_000,
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", WRONG)
def test_text_that_is_no_manifest(name, folder):
    craft(folder, WRONG[name])
    with pytest.raises(DamagedError, match="its manifest"):
        manifest.read(folder)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Manifest)])
def test_a_field_that_is_missing_or_of_another_type(field, folder):
    changed(folder, [field], None)
    with pytest.raises(DamagedError, match=f"in place of the fields .*{field}"):
        manifest.read(folder)
    for value in (3, "word", ["word"], {"word": 3}):
        manifest.write(folder, whole(folder))
        changed(folder, [field], value)
        with pytest.raises(DamagedError, match="its manifest"):
            RunProgress.of(manifest.read(folder))


CRAFTED = [
    (["content", "done"], -1),
    (["content", "done"], True),
    (["content", "done"], 5.0),
    (["content", "num_kept"], "3"),
    (["content", "num_kept"], 6),  # of 5 made
    (["content", "seconds"], float("nan")),
    (["content", "seconds"], "long"),
    (["content", "draws"], {"posterior/position": ["positions"]}),
    (["content", "draws", "posterior/position", "digest"], "0"),
    (["content", "draws", "posterior/position", "name"], 3),
    (["content", "draws", "posterior/position", "row"], [2, -3]),
    (["content", "draws", "posterior/position", "row"], 2),
    (["content", "draws", "posterior/position", "row"], []),
    (["content", "draws", "posterior/position", "offset"], -1),
    (["content", "draws", "posterior/position", "dtype"], "object"),
    (["content", "draws", "posterior/position", "dtype"], "V8"),
    (["content", "sizes"], [[0, 0]]),
    (["content", "sizes"], [[5, 50], [4, 200]]),
    (["content", "sizes"], [[0, 50, 1]]),
    (["arrays"], {"../0": ["float32", [2]]}),
    (["arrays", "0000"], ["float32", [-2]]),
    (["arrays", "0000"], ["float32", [2.5]]),
    (["arrays", "0000"], ["float32"]),
    (["files"], {"state/one": 3}),
]


@pytest.mark.parametrize(("path", "value"), CRAFTED, ids=lambda part: str(part)[:40])
def test_entries_that_are_not_believed(path, value, folder):
    changed(folder, path, value)
    with pytest.raises(DamagedError, match=r"its manifest('s draws)? (has|contradicts itself)"):
        RunProgress.of(manifest.read(folder))


OUTWARD = [
    "../../elsewhere",
    "/etc/passwd",
    "elsewhere/a",
    "posterior",
    "posterior/",
    "posterior/..",
    "posterior/../..",
    "posterior/a/b",
    "posterior/\0",
]


@pytest.mark.parametrize("name", OUTWARD)
def test_paths_of_draws_lead_to_arrays(name, folder):
    """Whoever reads the draws opens them."""
    changed(folder, ["content", "draws"], {name: dataclasses.asdict(STORED)})
    with pytest.raises(DamagedError, match="for draws"):
        RunProgress.of(manifest.read(folder))


def test_a_save_of_another_format_is_named(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("format 4", "format 3", 1))
    with pytest.raises(CheckpointError, match=r"format 3, and this version reads format 4"):
        manifest.read(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "state/../../secret"])
def test_files_elsewhere_are_not_looked_at(name, folder, tmp_path):
    """Were the path followed, the file would be there, and hash as it should."""
    (tmp_path / "secret").write_text("secret")
    changed(folder, ["files", name], hashlib.sha256(b"secret").hexdigest())
    with pytest.raises(DamagedError, match=f"{name} is missing"):
        manifest.check_files(folder, manifest.read(folder))


def replace_by_link(path: pathlib.Path):
    elsewhere = path.parents[2] / path.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by_pipe(path: pathlib.Path):
    """To read it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_pipe])
def test_only_plain_files_are_read(replace, folder):
    found = manifest.read(folder)
    replace(folder / "state" / "one")
    with pytest.raises(DamagedError, match=r"one is a (link|device)"):
        manifest.check_files(folder, found)
    replace(folder / "manifest.json")
    with pytest.raises(DamagedError, match="none of ours"):
        manifest.read(folder)


def test_folders_are_not_followed_out(folder, tmp_path):
    (folder / "state").rename(tmp_path / "state")
    (folder / "state").symlink_to(tmp_path / "state")
    with pytest.raises(DamagedError, match="state is a link"):
        manifest.check_files(folder, manifest.read(folder))


def test_a_manifest_of_a_gigabyte_is_not_read(folder):
    os.truncate(folder / "manifest.json", 1 << 30)
    with pytest.raises(DamagedError, match="none of ours"):
        manifest.read(folder)


def test_an_error_of_writing_is_told_though_nothing_was_begun(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(manifest, "write_state", full)
    with pytest.raises(OSError, match="no space left"):
        manifest.write_save(tmp_path / "save", {}, {}, None)
    assert list(tmp_path.iterdir()) == []
