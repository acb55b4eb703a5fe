"""One version: the package's, its wheel's, the citation's."""

import importlib.metadata
import pathlib
import sys
import tomllib

import pytest

import sghmc
from sghmc import __main__
from sghmc.core import version

ROOT = pathlib.Path(__file__).parents[2]


def test_the_build_and_the_citation_have_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == pathlib.Path(version.__file__)
    assert f"\nversion: {version.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert sghmc.__version__ == version.__version__


def test_another_project_of_this_name_is_warned_of(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"sghmc": "0.2"}[name])
    with pytest.warns(UserWarning, match=r"called sghmc, version 0.2, .*pip uninstall sghmc"):
        sghmc._warn_of_namesake()


def test_the_command_without_its_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    for name in [name for name in sys.modules if name.startswith("sghmc.cli")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit, match=r"^sghmc: This needs typer.*sghmc-jax\[cli\]'\.$"):
        __main__.main()
