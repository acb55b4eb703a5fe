"""Files are there whole or not at all, with the permissions that the user asks for."""

import os
import stat
import subprocess
import sys

import pytest

from sghmc.core import files


def test_text_and_bytes_replace_what_was_there(tmp_path):
    for content in ("ä\n", b"\0\xff"):
        files.write(tmp_path / "new" / "a", content)
        expected = content.encode() if isinstance(content, str) else content
        assert (tmp_path / "new" / "a").read_bytes() == expected
    assert os.listdir(tmp_path / "new") == ["a"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_follow_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        files.write(tmp_path / "a", "")
        with files.drafts(tmp_path) as stage:
            (stage / "b").write_text("")
    finally:
        os.umask(before)
    for name in "ab":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    files.write(tmp_path / "a", "new")
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert not (tmp_path / "a").is_symlink()


def test_what_fails_changes_nothing(tmp_path):
    files.write(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), files.draft(tmp_path / "a") as draft:  # noqa: PT012
        draft.write_text("half of the ne")
        raise RuntimeError
    with pytest.raises(RuntimeError), files.drafts(tmp_path) as stage:  # noqa: PT012
        (stage / "a").write_text("new")
        raise RuntimeError
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_folders_are_made_and_go_again_if_nothing_is_put_there(tmp_path):
    for make in (files.drafts, files.draft):
        with pytest.raises(RuntimeError), make(tmp_path / "new" / "newer"):
            raise RuntimeError
        assert os.listdir(tmp_path) == []
    with files.drafts(tmp_path / "new" / "newer") as stage:
        assert stage.parent == tmp_path / "new" / "newer", "another file system cannot be moved to"
        (stage / "a").write_text("a")
        (stage / "b").write_text("b")
        assert list((tmp_path / "new" / "newer").iterdir()) == [stage]
    assert sorted(os.listdir(tmp_path / "new" / "newer")) == ["a", "b"]


def test_a_place_that_cannot_be_written_to_is_seen_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for make in (files.drafts, files.draft):
        with pytest.raises(OSError, match="Not a directory"), make(tmp_path / "file" / "a" / "b"):
            pytest.fail("the work began")
    with pytest.raises(OSError, match="file is a file"), files.drafts(tmp_path / "file"):
        pytest.fail("the work began")


KILLED = """
import os, pathlib, signal, sys
from sghmc.core import files
folder = pathlib.Path(sys.argv[1])
with files.draft(folder / "a"), files.drafts(folder) as stage:
    (stage / "b").write_text("half")
    files.scratch_folder(folder, "columns-")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="locks are those of POSIX")
def test_drafts_of_the_killed_are_known_and_removed_and_those_of_others_stay(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    left = os.listdir(tmp_path)
    assert sorted(map(files.is_draft, left)) == [False, True, True]
    (tmp_path / ".mine").write_text("")
    (tmp_path / ".link.unfinished").symlink_to(tmp_path / ".mine")
    with files.draft(tmp_path / "a") as draft, files.drafts(tmp_path) as stage:
        files.write(tmp_path / "c", "")
        assert draft.exists()
        assert stage.exists()
    assert not set(left[:1]) & set(os.listdir(tmp_path))
    _, remove = files.scratch_folder(tmp_path, "columns-")
    remove()
    assert sorted(os.listdir(tmp_path)) == [".link.unfinished", ".mine", "a", "c"]
