"""One version: the package's, its wheel's, the citation's."""

import pathlib
import tomllib

import sghmc
from sghmc.core import version

ROOT = pathlib.Path(__file__).parents[2]


def test_the_build_and_the_citation_have_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == pathlib.Path(version.__file__)
    assert f"\nversion: {version.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert sghmc.__version__ == version.__version__
