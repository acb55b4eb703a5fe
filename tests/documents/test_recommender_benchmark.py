"""Each part of the recommender's benchmark runs in small."""

import json
import pathlib
import runpy

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
MADE_UP = ["--synthetic", "30", "20", "--rank", "2"]
SMALL = ["--users", "40", "--items", "20", "--rank", "2"]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run the script with some words, and return its result and what it printed."""
    monkeypatch.syspath_prepend(FOLDER)

    def script(*words: str) -> tuple[dict, str]:
        file = tmp_path / "result.json"
        monkeypatch.setattr("sys.argv", ["recommender.py", *words, "--out", str(file)])
        runpy.run_path(str(FOLDER / "recommender.py"), run_name="__main__")
        return json.loads(file.read_text("utf-8")), capsys.readouterr().out

    return script


@pytest.mark.slow
def test_rmse_against_time_has_a_row_for_each_fit(run):
    result, text = run("myfm", *MADE_UP, "--iterations", "0", "--draws", "3", "5")
    assert [each["draws"] for each in result["ours"]] == [3, 5]
    # Made-up ratings have noise of ½, and a standard deviation of about 1.
    assert all(0.4 < each["clipped"] <= each["rmse"] < 1.2 for each in result["ours"])
    assert "| ours, 5 draws |" in text


@pytest.mark.slow
def test_folds_are_scored_one_by_one(run, tmp_path):
    features = tmp_path / "users.csv"
    features.write_text("user,kind\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(30)))
    words = ("--draws", "3", "--only", "2", "4", "--users", str(features))
    result, text = run("folds", *MADE_UP, *words)
    assert [each["fold"] for each in result["folds"]] == [2, 4]
    mean = np.mean([each["rmse"] for each in result["folds"]])
    assert f"| mean |  | {mean:.4f} |" in text


@pytest.mark.slow
def test_rankings_of_implicit_feedback(run):
    result, text = run("implicit", *MADE_UP, "--draws", "3", "--peers")
    assert 0 < result["ours"]["ndcg@10"] < 1
    assert "**ours** | rank 2, 3 draws" in text


@pytest.mark.slow
def test_new_users_are_folded_in_and_fitted_again(run):
    words = ("--draws", "3", "--new", "5", "--refit")
    result, _ = run("fold-in", *MADE_UP, *words)
    for way in ("fold-in", "refit"):
        assert 0.4 < result[way]["rmse"] < 1.5
        assert result[way]["num_ratings"] == result["fold-in"]["num_ratings"] > 0


@pytest.mark.slow
def test_all_users_get_their_items(run):
    result, _ = run("top", *SMALL, "--draws", "3", "--seen", "2", "-k", "4")
    assert result["rows"] == 40 * 4


@pytest.mark.slow
def test_a_fit_at_scale_and_its_estimate(run):
    result, _ = run("scale", *SMALL, "--draws", "3", "--ratings", "400", "--estimate")
    assert result["seconds, estimated"] > 0
    result, _ = run("scale", *SMALL, "--draws", "3", "--ratings", "400")
    assert result["RMSE"] < 3


@pytest.mark.slow
def test_a_lazy_step_is_timed(run):
    words = ("--tables", "100", "--batch", "10", "--steps", "5", "--items", "20", "--rank", "2")
    result, _ = run("lazy", *words)
    assert result["lazy, 100 users"]["step, clock"] > 0
    assert result["eager, 100 users"]["step, clock"] > 0
