"""The table of published PyTorch samplers is what its script prints."""

import pathlib
import runpy

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_the_table_on_the_page_is_that_of_the_script(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pytorch.py", "laws"])
    runpy.run_path(str(ROOT / "benchmarks" / "pytorch.py"), run_name="__main__")
    table = capsys.readouterr().out
    assert table.count("https://") >= 6
    assert table in (ROOT / "docs" / "evidence" / "how-we-know.md").read_text("utf-8")
