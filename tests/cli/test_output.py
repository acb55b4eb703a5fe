"""What every command prints: lines of at most 80 columns for readers, JSON alone for machines."""

import json
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from command_results import fit_result, ratings_result
from demo_results import demo_result, drawn
from sghmc import cli, estimators, paper
from sghmc.cli import session
from sghmc.data import table_files
from sghmc.estimators import tables
from sghmc.estimators.encoding import Encoding
from sghmc.paper import demo
from sghmc.recommender import evaluation as fitted_ratings
from sghmc.recommender import ratings
from sghmc.recommender.matrix_factorization import MatrixFactorization

LONG = "a name that is far too long for a column of a table, and " * 3
COMMANDS = {
    "demo": ["--quick"],
    "reproduce": ["figure2", "theorems", "--quick"],
    "fit": ["table.csv", "--target", "price"],
    "predict": ["model", "new.csv"],
    "fit-ratings": ["ratings.csv"],
    "recommend": ["model", "--user", "1"],
    "report": ["run"],
}


class Best(NamedTuple):
    items: np.ndarray
    ratings: np.ndarray
    stds: np.ndarray


class Model:
    """Stands in for what is fitted elsewhere in the tests."""

    ratings_ = SimpleNamespace(users=np.array([1]))

    def save(self, path):
        path.write_text("a model")

    def get_params(self):
        return {"rank": 2}

    def recommend(self, *_, **__):
        return Best(np.array([LONG, "b"]), np.array([4.5, 4.0]), np.array([0.5, 0.25]))


def demo_run(config, key, progress):
    return demo_result(drawn(5_000), drawn(5))


def experiment_result(name, out, **options):
    if name == "theorems":
        row = {"statement": "Thm S.2: χ²/bound, other V, largest", "measured": -1.23456789e-16}
        row |= {"expected": 1e-10, "relation": "<", "passed": True}
        return {"rows": [row]}
    end = {"rms_radius": 24.5, "expected_rms_radius": 24.5, "z_score": 0.5}
    return {"steps": [15_000], "clouds": {name: {"end": end} for name in ("noisy", "resampled")}}


@pytest.fixture
def stubs(monkeypatch, tmp_path):
    """Commands run in an empty folder, and all heavy work is done already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    columns = {"row": [1], "prediction": [LONG], "confidence": [1 / 3], "entropy": [2 / 3]}
    columns |= {f"p({k})": [1 / 3] for k in range(30)}
    fitted = tables.Fit(Model(), fit_result(inputs=[LONG] * 9), "row\n1\n")
    for owner, name, value in (
        (session, "keep_compiled_programs", lambda: None),
        (demo, "run", demo_run),
        (paper, "reproduce", experiment_result),
        (table_files, "read_table", lambda *_, **__: {}),
        (tables, "encoding_of", lambda model: Encoding("y", [])),
        (tables, "fit_table", lambda *_, **__: fitted),
        (tables, "predict_table", lambda *_: columns),
        (estimators, "load", lambda path: Model()),
        (ratings, "load_ratings", lambda *_, **__: None),
        (fitted_ratings, "fit_and_judge", lambda *_, **__: (Model(), ratings_result(0.9))),
        (fitted_ratings, "is_model", lambda path: True),
        (MatrixFactorization, "load", lambda path: Model()),
    ):
        monkeypatch.setattr(owner, name, value)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(fit_result()))


def invoke(command, *options):
    result = CliRunner().invoke(cli.app, [command, *COMMANDS[command], *options, "--debug"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert result.stderr == ""
    return result.stdout


def test_every_command_is_here():
    assert set(typer.main.get_command(cli.app).commands) == set(COMMANDS)  # pyright: ignore


@pytest.mark.slow_cases("demo")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_sees_lines_of_80_columns(stubs, monkeypatch, command):
    # A terminal, as far as we ask; the bars of a run are not shown, as nothing runs.
    monkeypatch.setattr(session, "is_watched", lambda: True)
    shown = invoke(command)
    assert shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_a_machine_sees_json_alone(stubs, command):
    assert isinstance(json.loads(invoke(command, "--json")), dict)
