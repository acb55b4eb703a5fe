"""`sghmc demo`: what it writes and prints; its science is tested with the experiments."""

import json

import pytest

from demo_results import demo_result, drawn
from sghmc.paper import demo


@pytest.fixture(scope="module")
def tiny_result():
    return demo_result(drawn(100), drawn(5))


def test_a_folder_that_cannot_be_made_is_seen_before_the_work(invoke, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda *_, **__: pytest.fail("the work began"))
    result = invoke("demo", "--out", "/dev/null/results")
    assert result.exit_code == 1
    assert result.stderr.startswith("sghmc: ")
    assert "/dev/null" in result.stderr


@pytest.mark.slow
def test_demo_writes_and_prints(invoke, monkeypatch, tmp_path, tiny_result):
    monkeypatch.setattr(demo, "run", lambda *_, **__: tiny_result)
    result = invoke("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "picture" not in line]
    assert max(map(len, lines)) <= 80
    assert "Exact HMC" in result.output
    written = {file.name for file in (tmp_path / "demo").iterdir()}
    assert written == {"config.json", "result.json", "demo.png", "report.html"}
    assert json.loads((tmp_path / "demo" / "result.json").read_text()) == tiny_result
    assert invoke("demo", "--quiet", "--out", tmp_path / "demo").output == ""
    assert json.loads(invoke("demo", "--json", "--out", tmp_path / "demo").stdout) == tiny_result


@pytest.mark.slow
def test_the_demos_picture_goes_where_it_is_wanted(invoke, monkeypatch, tmp_path, tiny_result):
    monkeypatch.setattr(demo, "run", lambda *_, **__: tiny_result)
    for name in ("picture.png", "picture.svg"):
        result = invoke("demo", "--out", tmp_path / "demo", "--picture", tmp_path / name)
        assert result.exit_code == 0, result.output
    assert (tmp_path / "picture.png").read_bytes() == (tmp_path / "demo/demo.png").read_bytes()
    assert "<svg" in (tmp_path / "picture.svg").read_text()
