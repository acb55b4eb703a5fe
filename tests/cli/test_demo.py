"""`sghmc demo`: what it writes and prints; its science is tested with the experiments."""

import json

import jax
import pytest

from sghmc.experiments import demo

TINY = demo.Config(
    step_size=0.1, thinning=2, hmc_num_steps=3, num_samples=40, num_burnin=5, num_chains=2
)


@pytest.fixture(scope="module")
def tiny_result():
    return demo.run(TINY, jax.random.key(0), progress=False)


def test_a_folder_that_cannot_be_made_is_seen_before_the_work(invoke, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda *_, **__: pytest.fail("the work began"))
    result = invoke("demo", "--out", "/dev/null/results")
    assert result.exit_code == 1
    assert result.stderr.startswith("sghmc: ")
    assert "/dev/null" in result.stderr


def test_demo_writes_and_prints(invoke, monkeypatch, tmp_path, tiny_result):
    monkeypatch.setattr(demo, "run", lambda *_, **__: tiny_result)
    result = invoke("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "picture" not in line]
    assert max(map(len, lines)) <= 80
    assert "exact HMC" in result.output
    written = {file.name for file in (tmp_path / "demo").iterdir()}
    assert written == {"config.json", "result.json", "demo.png", "report.html"}
    assert json.loads((tmp_path / "demo" / "result.json").read_text()) == tiny_result
    assert invoke("demo", "--quiet", "--out", tmp_path / "demo").output == ""
    assert json.loads(invoke("demo", "--json", "--out", tmp_path / "demo").stdout) == tiny_result
