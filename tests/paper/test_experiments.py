"""An experiment from its name to its files; what the experiments say has tests of their own."""

import dataclasses
import json
import subprocess
import sys

import jax
import pytest

from sghmc import paper
from sghmc.paper import figure2

CLOUD = {
    "position": [1.0, 0.5],
    "momentum": [0.0, -0.5],
    "rms_radius": [1.0, 1.1],
    "expected_rms_radius": [1.0, 1.0],
    "end": {"rms_radius": 1.1, "expected_rms_radius": 1.0, "z_score": 0.5},
}


@pytest.fixture
def ran(monkeypatch):
    """Fig. 2 with nothing to run: what it was asked for."""
    calls = []

    def run(config, key, *, progress):
        calls.append((config, int(jax.random.key_data(key)[-1]), progress))
        return {"steps": [50, 100], "clouds": dict.fromkeys(figure2.LABELS, CLOUD)}

    monkeypatch.setattr(figure2, "run", run)
    return calls


def test_files_are_written_and_hold_the_result(ran, tmp_path):
    result = paper.reproduce("figure2", tmp_path, quick=True, friction=2.5, progress=False)
    folder = tmp_path / "figure2"
    written = {path.name for path in folder.iterdir()}
    assert written == {"config.json", "result.json", "figure2.png", "report.html"}
    assert json.loads((folder / "result.json").read_text()) == result
    config = json.loads((folder / "config.json").read_text())
    assert (config["experiment"], config["quick"], config["seed"]) == ("figure2", True, 0)
    fields = [field.name for field in dataclasses.fields(figure2.Figure2Config)]
    assert set(fields) <= set(config)
    assert (config["num_steps"], config["friction"]) == (3_000, 2.5)
    assert (folder / "figure2.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["figure2"]


@pytest.mark.slow
def test_a_run_gets_its_settings_and_its_seed(ran, tmp_path):
    paper.reproduce("figure2", tmp_path, seed=7, num_chains=3)
    paper.reproduce("figure2", tmp_path, quick=True, progress=False)
    assert ran == [
        (figure2.Figure2Config(num_chains=3), 7, True),
        (figure2.Figure2Config(**figure2.QUICK), 0, False),
    ]


@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_every_experiment_has_what_one_must_have(name):
    experiment = paper.load(name)
    config = paper.config_class(name)
    quick = config(**experiment.QUICK)
    assert quick != config()
    json.dumps(dataclasses.asdict(quick))
    for part in ("run", "plot", "table", "claims"):
        assert callable(getattr(experiment, part))
    assert (experiment.__doc__ or "").partition("\n")[0].endswith(".")  # its page's title


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"no experiment 'figure9'.*figure1, figure2, figure3"):
        paper.reproduce("figure9", tmp_path)
    with pytest.raises(ValueError, match="theorems"):
        paper.load("figure9")


def test_an_unknown_option_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"figure2 has no option 'noise'.*gradient_noise"):
        paper.reproduce("figure2", tmp_path, noise=0.25)
    options = {"data": "x", "gradient_noise": 0.25}
    assert paper.known_options("figure2", options) == {"gradient_noise": 0.25}


@pytest.mark.parametrize("error", [RuntimeError("no picture"), KeyboardInterrupt()])
@pytest.mark.parametrize("part", ["run", "plot"])
def test_nothing_is_written_when_a_part_fails(ran, tmp_path, monkeypatch, part, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(figure2, part, fail)
    with pytest.raises(type(error)):
        paper.reproduce("figure2", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_registry_imports_nothing_heavy():
    code = (
        "import sys, sghmc.paper as e; [e.load(name) for name in e.EXPERIMENTS]; "
        "sys.exit(any(m in sys.modules for m in ('matplotlib', 'rich', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
