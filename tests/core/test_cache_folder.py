import pathlib
import sys

import pytest

from sghmc.core.cache_folder import cache_folder


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", "home/.cache"), ("darwin", "home/Library/Caches"), ("win32", "local")],
)
def test_where_the_platform_keeps_caches(monkeypatch, platform, expected):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "local")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(pathlib.Path, "home", lambda: pathlib.Path("home"))
    assert cache_folder() == pathlib.Path(expected) / "sghmc"
    monkeypatch.setenv("XDG_CACHE_HOME", "chosen")
    assert cache_folder() == pathlib.Path("chosen") / "sghmc"
