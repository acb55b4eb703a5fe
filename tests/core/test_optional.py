import sys

import pytest

from sghmc.core.checks import require


def test_a_library_that_is_there():
    assert require("os.path", extra="data").join("a", "b") == "a/b"


def test_one_that_is_missing_names_its_extra(monkeypatch):
    for module in ("no_such_library", "no_such_library.part"):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'sghmc-jax\[data\]'") as error:
            require(module, extra="data")
        assert error.value.name == "no_such_library"
    monkeypatch.delitem(sys.modules, "pyarrow.csv", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # what Python calls a module that is blocked
    with pytest.raises(ModuleNotFoundError, match="This needs pyarrow"):
        require("pyarrow.csv", extra="data")


def test_one_that_is_there_and_broken_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import what_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'what_it_needs'"):
        require("broken_library", extra="data")
