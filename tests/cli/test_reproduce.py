"""`sghmc reproduce`: what it runs, writes and prints. Its science is tested elsewhere."""

import json

import pytest

import sghmc
from sghmc import paper


def test_help_names_every_experiment(invoke):
    shown = invoke("reproduce", "--help").output
    assert all(name in shown for name in paper.EXPERIMENTS)


def test_an_unknown_experiment_lists_the_known_ones(invoke, tmp_path):
    result = invoke("reproduce", "figure1", "figure9", "--out", tmp_path)
    assert result.exit_code == 2
    assert "figure9" in result.stderr
    assert all(name in result.stderr for name in paper.EXPERIMENTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_quick_experiment_writes_its_files_and_prints_its_table(invoke, tmp_path):
    result = invoke("reproduce", "figure2", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert max(map(len, _table_lines(result.output))) <= 80
    written = {file.name for file in (tmp_path / "figure2").iterdir()}
    assert written == {"config.json", "result.json", "figure2.png", "report.html"}


def _table_lines(output: str) -> list[str]:
    """Without the lines that hold a path, which are as long as the path."""
    return [line for line in output.splitlines() if "Written to" not in line]


class Recorded:
    """Stands in for the experiments: what was asked for, and an error where one is wanted."""

    def __init__(self, error: Exception | None = None):
        self.calls: list[tuple[str, dict]] = []
        self.error = error

    def __call__(self, name, out, **options):
        self.calls.append((name, options))
        if self.error is not None:
            raise self.error
        return {"value": 1.5}


def test_all_means_every_experiment_once(invoke, monkeypatch, tmp_path):
    recorded = Recorded()
    monkeypatch.setattr(paper, "reproduce", recorded)
    arguments = ["all", "figure1", "--seed", 3, "--quick", "--out", tmp_path]
    assert invoke("reproduce", *arguments, "--quiet").output == ""
    assert [name for name, _ in recorded.calls] == list(paper.EXPERIMENTS)
    assert recorded.calls[0][1] == {"quick": True, "seed": 3, "progress": False}


@pytest.mark.slow
def test_missing_data_do_not_stop_the_others(invoke, monkeypatch, tmp_path):
    reproduce = paper.reproduce

    def some(name, out, **options):
        if name != "figure2":
            raise FileNotFoundError(f"no <b>data</b> for {name}")
        return reproduce(name, out, num_steps=100, num_chains=2, **options)

    monkeypatch.setattr(paper, "reproduce", some)
    result = invoke("reproduce", "all", "--quick", "--out", tmp_path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert set(found) == set(paper.EXPERIMENTS)
    assert found["table1"] == {"missing": "no <b>data</b> for table1"}
    assert "sghmc: figure1: no <b>data</b> for figure1" in result.stderr
    assert (tmp_path / "figure2" / "report.html").exists()
    alone = invoke("reproduce", "table1", "--quick", "--out", tmp_path)
    assert (alone.exit_code, alone.stderr) == (1, "sghmc: no <b>data</b> for table1\n")


def test_json_is_all_that_is_printed(invoke, monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "reproduce", Recorded())
    result = invoke("reproduce", "figure1", "figure3", "--json", "--out", tmp_path)
    assert json.loads(result.stdout) == {"figure1": {"value": 1.5}, "figure3": {"value": 1.5}}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such number"),
        TypeError("not a number"),
        OSError(28, "No space left on device"),
        FloatingPointError("no chain accepts a step"),
        sghmc.DivergenceError("chain 0 left", samples=None),  # pyright: ignore[reportArgumentType]
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_one_message_unless_debugging(invoke, monkeypatch, tmp_path, error):
    monkeypatch.setattr(paper, "reproduce", Recorded(error))
    result = invoke("reproduce", "figure1", "--out", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"sghmc: {error}\n"
    assert invoke("reproduce", "figure1", "--out", tmp_path, "--debug").exception is error


def test_other_errors_are_ours_and_keep_their_traceback(invoke, monkeypatch, tmp_path):
    error = AttributeError("a mistake of the library")
    monkeypatch.setattr(paper, "reproduce", Recorded(error))
    assert invoke("reproduce", "figure1", "--out", tmp_path).exception is error
