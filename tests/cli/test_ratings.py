"""`sghmc fit-ratings` and `sghmc recommend`."""

import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from handmade_factors import handmade_draws
from sghmc import cli
from sghmc.recommender import matrix_factorization
from sghmc.recommender.ratings import synthetic_ratings


def call(*args) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Ratings in a file, with ids of text."""
    ratings = synthetic_ratings(1, 24, 16, rank=2, density=0.6)
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    names = [f"user{code}" for code in ratings.user]
    frame = pd.DataFrame({"userId": names, "movieId": ratings.item, "rating": ratings.rating})
    frame.to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_commands_fit_and_recommend(table, tmp_path):
    fitted = call("fit-ratings", table, "--out", tmp_path / "m", "--rank", 2, "--json")
    assert fitted.exit_code == 0, fitted.output
    result = json.loads(fitted.stdout)
    assert result["held_out"]["rmse"] < 1
    assert result["held_out"]["ndcg@10"] > 0
    assert result == json.loads((tmp_path / "m" / "result.json").read_text())
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.sghmc",
        "report.html",
        "result.json",
    ]
    answer = call("recommend", tmp_path / "m", "--user", "user3", "-k", 3, "--json")
    best = json.loads(answer.stdout)
    assert (best["user"], best["is_known"], len(best["items"])) == ("user3", True, 3)
    shown = call("recommend", tmp_path / "m" / "model.sghmc", "--user", "eve", "-k", 2)
    assert shown.stdout.startswith("User eve has rated nothing here")
    assert len(shown.stdout.splitlines()) == 3


@pytest.fixture
def model(table, tmp_path, monkeypatch):
    """What fit-ratings wrote, of draws made by hand: 24 users, 16 items."""

    def run(key, ratings, settings, start, *_):
        return handmade_draws(sizes={"user": 24, "item": 16})

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", run)
    fitted = call("fit-ratings", table, "--out", tmp_path / "m", "--holdout", 0)
    assert fitted.exit_code == 0, fitted.output
    return tmp_path / "m"


@pytest.mark.slow
def test_new_users_are_taken_in_without_a_fit(model, tmp_path):
    (tmp_path / "new.csv").write_text("user,item,rating\neve,3,5\neve,7,1\n")
    answer = call("recommend", model, "--user", "eve", "--new", tmp_path / "new.csv", "--json")
    assert answer.exit_code == 0, answer.output
    best = json.loads(answer.stdout)
    assert (best["user"], best["is_known"], len(best["items"])) == ("eve", True, 10)
    assert not {3, 7} & set(best["items"])


@pytest.mark.slow
def test_features_of_users_come_from_a_file(table, tmp_path, monkeypatch):
    """Somebody of whom only features are known is no stranger; also when they come later."""
    seen = []

    def run(key, ratings, settings, start, likelihood, sides):
        seen.append(sides)
        draws = handmade_draws(sizes={"user": 25, "item": 16})
        weights = {"user.weights": np.ones((5, 2, 4)), "user.weight_scale": np.ones((5, 1, 2))}
        return draws | weights

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", run)
    people = "".join(f"user{i},{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "people.csv").write_text(f"user,kind\n{people}eve,a\n")
    options = ("--out", tmp_path / "m", "--holdout", 0, "--users", tmp_path / "people.csv")
    fitted = call("fit-ratings", table, *options)
    assert fitted.exit_code == 0, fitted.output
    assert seen[0]["user"].encoding.names == ["kind=a", "kind=b"]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["users"] == str(tmp_path / "people.csv")
    answer = call("recommend", tmp_path / "m", "--user", "eve", "--json")
    assert json.loads(answer.stdout)["is_known"]
    (tmp_path / "more.csv").write_text("user,kind\neva,b\n")
    answer = call(
        "recommend", tmp_path / "m", "--user", "eva", "--users", tmp_path / "more.csv", "--json"
    )
    assert json.loads(answer.stdout)["is_known"]


def test_events_are_judged_by_their_rankings(tmp_path, monkeypatch):
    """A file without ratings, in which a pair comes twice."""
    rows = "".join(f"{i % 7},{i % 6}\n" for i in range(50))
    (tmp_path / "log.csv").write_text(f"user,item\n{rows}")
    drawn = handmade_draws()
    monkeypatch.setattr(matrix_factorization, "run_factor_chain", lambda *_: drawn)
    options = ("--likelihood", "implicit", "--out", tmp_path / "m")
    fitted = call("fit-ratings", tmp_path / "log.csv", *options)
    assert fitted.exit_code == 0, fitted.output
    assert "NDCG@10" in fitted.stdout
    assert " held-out ratings:\n" in fitted.stdout
    assert "RMSE" not in fitted.stdout
    assert "k: items recommended to each user" in (tmp_path / "m" / "report.html").read_text()
    wrong = call("fit-ratings", tmp_path / "log.csv", "--out", tmp_path / "n")
    assert "no column of ratings" in wrong.stderr


@pytest.mark.slow
def test_all_users_get_a_table(model, tmp_path):
    printed = call("recommend", model, "--all", "-k", 3)
    assert printed.exit_code == 0, printed.output
    frame = pd.read_csv(io.StringIO(printed.stdout))
    assert list(frame) == ["user", "rank", "item", "rating", "std"]
    assert frame["rank"].tolist() == [1, 2, 3] * 24
    one = json.loads(call("recommend", model, "--user", "user3", "-k", 3, "--json").stdout)
    assert frame[frame["user"] == "user3"]["item"].tolist() == one["items"]
    written = call("recommend", model, "--all", "-k", 3, "--by", "upper", "--out", tmp_path / "b")
    assert "72 recommendations" in written.stdout
    assert (tmp_path / "b").read_text().startswith("user,rank,item")
    for wrong in ((), ("--all", "--user", "user3"), ("--user", "user3", "--by", "upper")):
        assert call("recommend", model, *wrong).exit_code == 1
    assert 'by must be "mean"' in call("recommend", model, "--all", "--by", "luck").stderr


def test_what_cannot_be_is_refused(table, tmp_path):
    (tmp_path / "numbers.csv").write_text("user,item,rating\n1,2,3\n1,2,4\n")
    cases = [
        (("recommend", tmp_path / "nowhere.csv", "--user", 1), 1, "There is no file"),
        (("recommend", tmp_path / "numbers.csv", "--user", 1), 1, "rates the same item twice"),
        (("recommend", table, "--user", 1, "--rank", 0), 2, "rank"),
        (
            ("fit-ratings", table, "--out", tmp_path / "m", "--holdout", 0.001),
            1,
            "some to hold out and some to learn",
        ),
        (("fit-ratings", table, "--out", tmp_path / "m", "--split", "last"), 1, "timestamp"),
    ]
    for args, code, message in cases:
        answer = call(*args)
        assert answer.exit_code == code
        assert message in answer.stderr
    assert not (tmp_path / "m").exists()


def test_ctrl_c_ends_the_command_without_a_model(table, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", interrupted)
    for args in (
        ("fit-ratings", table, "--out", tmp_path / "m"),
        ("recommend", table, "--user", 1),
    ):
        answer = call(*args)
        assert answer.exit_code != 0
        assert not (tmp_path / "m").exists()
