"""An experiment from its name to its files; what the experiments say has tests of their own."""

import dataclasses
import json
import subprocess
import sys

import pytest

from sghmc import experiments

TINY = {"num_steps": 100, "num_chains": 2, "progress": False}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The smallest of them, and its folder."""
    out = tmp_path_factory.mktemp("results")
    return experiments.reproduce("figure2", out, quick=True, **TINY), out / "figure2"


def test_files_are_written_and_hold_the_result(reproduced):
    result, folder = reproduced
    written = {path.name for path in folder.iterdir()}
    assert written == {"config.json", "result.json", "figure2.png", "report.html"}
    assert json.loads((folder / "result.json").read_text()) == result
    config = json.loads((folder / "config.json").read_text())
    assert (config["experiment"], config["quick"], config["seed"]) == ("figure2", True, 0)
    fields = [field.name for field in dataclasses.fields(experiments.load("figure2").Config)]
    assert set(fields) <= set(config)
    assert config["num_steps"] == 100
    assert (folder / "figure2.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_the_same_seed_gives_the_same_result(reproduced, tmp_path):
    again, other = (
        experiments.reproduce("figure2", tmp_path, quick=True, seed=seed, **TINY) for seed in (0, 1)
    )
    assert again == reproduced[0]
    assert other != reproduced[0]


@pytest.mark.parametrize("name", experiments.EXPERIMENTS)
def test_every_experiment_has_what_one_must_have(name):
    experiment = experiments.load(name)
    quick = experiment.Config(**experiment.QUICK)
    assert quick != experiment.Config()
    json.dumps(dataclasses.asdict(quick))
    for part in ("run", "plot", "table", "claims"):
        assert callable(getattr(experiment, part))
    assert experiments._title(name)


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"no experiment 'figure9'.*figure1, figure2, figure3"):
        experiments.reproduce("figure9", tmp_path)
    with pytest.raises(ValueError, match="theorems"):
        experiments.table("figure9", {})


def test_an_unknown_option_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"figure2 has no option 'noise'.*gradient_noise"):
        experiments.reproduce("figure2", tmp_path, noise=0.25)
    options = {"data": "x", "gradient_noise": 0.25}
    assert experiments.known_options("figure2", options) == {"gradient_noise": 0.25}


@pytest.mark.parametrize("error", [RuntimeError("no picture"), KeyboardInterrupt()])
@pytest.mark.parametrize("part", ["run", "plot"])
def test_nothing_is_written_when_a_part_fails(tmp_path, monkeypatch, reproduced, part, error):
    def fail(*_, **__):
        raise error

    figure2 = experiments.load("figure2")
    monkeypatch.setattr(figure2, "run", lambda *_, **__: reproduced[0])
    monkeypatch.setattr(figure2, part, fail)
    with pytest.raises(type(error)):
        experiments.reproduce("figure2", tmp_path, **TINY)
    assert list(tmp_path.iterdir()) == []


def test_the_registry_imports_nothing_heavy():
    code = (
        "import sys, sghmc.experiments as e; [e.load(name) for name in e.EXPERIMENTS]; "
        "sys.exit(any(m in sys.modules for m in ('matplotlib', 'rich', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
