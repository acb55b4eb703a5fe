"""`sghmc fit` and `sghmc predict`: from a table to predictions, and every way it can be wrong."""

import io
import json
import os
import pathlib
import re

import numpy as np
import pandas as pd
import pytest

from sghmc import estimators
from sghmc.estimators import table_page, tables
from sghmc.estimators.encoding import Options


def houses(count: int = 120) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    size, town = generator.uniform(50, 200, count), generator.choice(["A", "B", "C"], count)
    price = 2 * size + 80 * (town == "B") + generator.normal(0, 10, count)
    return pd.DataFrame({"size": size, "town": town, "id": range(count), "price": price})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "houses.csv"
    frame = houses()
    # As in many a table, a date with gaps: ignored, it must not matter.
    frame["sold"] = pd.Series(pd.date_range("2020-01-01", periods=len(frame))).where(frame.id > 5)
    frame["is_dear"] = np.where(frame.price > frame.price.median(), "dear", "cheap")
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def fitted(invoke, table, tmp_path_factory):
    """A linear regression and a logistic one, fitted by the command."""
    folder = tmp_path_factory.mktemp("fitted")
    results = {}
    for target, other in (("price", "is_dear"), ("is_dear", "price")):
        arguments = [
            "--target",
            target,
            "--ignore",
            other,
            "--ignore",
            "id",
            "--ignore",
            "sold",
            "--model",
            "linear",
        ]
        result = invoke("fit", table, *arguments, "--out", folder / target, "--json", "--debug")
        assert result.exit_code == 0, result.output
        results[target] = json.loads(result.stdout)
    return folder, results


@pytest.mark.slow
def test_fit_judges_and_writes(fitted):
    folder, results = fitted
    assert results["price"]["task"] == "regression"
    assert results["price"]["r2"] > 0.9
    # Noise of 10, 24 held-out rows: the sd of such an RMSE is 1.5.
    assert 5 < results["price"]["rmse"] < 16
    assert results["is_dear"]["task"] == "classification"
    assert results["is_dear"]["accuracy"] > 0.85
    for target, result in results.items():
        assert 0 <= result["ece"] < 0.35
        assert result["inputs"] == ["size", "town=A", "town=B", "town=C", "town=(other)"]
        written = {file.name for file in (folder / target).iterdir()}
        assert written == {
            "result.json",
            "predictions.csv",
            "reliability.png",
            "report.html",
            "model.sghmc",
        }
        assert json.loads((folder / target / "result.json").read_text()) == result
        assert len(pd.read_csv(folder / target / "predictions.csv")) == result["num_test"] == 24


@pytest.mark.slow
def test_predict_is_that_of_the_model(invoke, fitted, table, tmp_path):
    folder, _ = fitted
    new = pd.DataFrame({"town": ["B", "A"], "size": [140, 60]})
    new.to_parquet(tmp_path / "new.parquet")
    shown = invoke("predict", folder / "price", tmp_path / "new.parquet")
    assert shown.exit_code == 0, shown.output
    predictions = pd.read_csv(io.StringIO(shown.stdout))
    mean, std = estimators.load(folder / "price" / "model.sghmc").predict(
        [[140.0, 0, 1, 0, 0], [60.0, 1, 0, 0, 0]], return_std=True
    )
    np.testing.assert_allclose(predictions["prediction"], mean)
    np.testing.assert_allclose(predictions["std"], std)
    assert abs(mean[0] - 360) < 10
    assert 7 < std[0] < 13
    out = tmp_path / "out" / "p.csv"
    result = invoke(
        "predict", folder / "is_dear" / "model.sghmc", tmp_path / "new.parquet", "--out", out
    )
    assert (result.exit_code, result.output) == (0, f"Predictions of 2 rows are in {out}.\n")
    columns = pd.read_csv(out)
    assert columns["prediction"].tolist() == ["dear", "cheap"]
    np.testing.assert_allclose(columns["p(dear)"] + columns["p(cheap)"], 1)


def test_predict_for_machines_and_in_silence(invoke, fitted, tmp_path):
    model, new, out = fitted[0] / "price", tmp_path / "new.csv", tmp_path / "p.csv"
    # What the model does not know is not looked at.
    new.write_text("town,size,sold\nB,140,2026-01-01\nA,60,\n")
    columns = json.loads(invoke("predict", model, new, "--json").stdout)
    silent = invoke("predict", model, new, "--out", out, "--quiet")
    assert (silent.exit_code, silent.output) == (0, "")
    written = pd.read_csv(out).to_dict("list")
    assert list(written) == list(columns)
    assert columns.pop("flag") == ["", ""]
    for name, column in columns.items():
        assert written[name] == pytest.approx(column, rel=1e-12)  # pandas rounds the last digit
    assert columns["row"] == [1, 2]
    nowhere = invoke("predict", model, new, "--quiet")
    assert (nowhere.exit_code, nowhere.stdout) == (1, "")
    assert "name a file" in nowhere.stderr


def test_every_row_that_can_be_is_predicted(invoke, fitted, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "p.csv"
    new.write_text("town,size\nD,140\nA,big\n,9999\nB,\n")
    assert invoke("predict", fitted[0] / "price", new, "--out", out).exit_code == 0
    found = pd.read_csv(out)
    assert found["flag"].tolist() == [
        "town has an unseen category: D",
        "size cannot be read: big",
        "town is missing; size is outside the range of the fitted rows",
        "size is missing",
    ]
    assert found["prediction"].isna().tolist() == [False, True, False, False]


def test_a_place_that_cannot_be_written_to_is_seen_before_the_work(
    invoke, table, tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "fit_table", lambda *_, **__: pytest.fail("the work began"))
    monkeypatch.setattr(estimators, "load", lambda *_: pytest.fail("the work began"))
    (tmp_path / "file").touch()
    for command in (["fit", table, "--target", "price"], ["predict", "model", table]):
        out = tmp_path / "file" if command[0] == "fit" else tmp_path / "file" / "out"
        result = invoke(*command, "--out", out)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "file is a file: name a folder" in result.stderr


def test_predictions_need_the_right_to_write_in_their_own_folder_alone(
    invoke, fitted, tmp_path, monkeypatch
):
    """Not in the folder above, which may be /home."""
    (tmp_path / "new.csv").write_text("town,size\nB,140\n")
    monkeypatch.chdir(tmp_path)
    opened = os.open

    def recorded(path, flags, *mode, **options):
        if flags & os.O_CREAT:
            assert pathlib.Path(path).absolute().parent == tmp_path
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", recorded)
    result = invoke("predict", fitted[0] / "price", "new.csv", "--out", "p.csv")
    assert (result.exit_code, result.output) == (0, "Predictions of 1 rows are in p.csv.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "p.csv"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("size\n100\n", "lacks 'town'"),
        ("size,town\nbig,A\n", "in row 1 size cannot be read: big"),
        ("size,town\ninf,A\n", "size cannot be read: inf"),
    ],
)
def test_new_rows_that_do_not_fit_the_model(invoke, fitted, tmp_path, rows, message):
    (tmp_path / "new.csv").write_text(rows)
    out = tmp_path / "p.csv"
    result = invoke("predict", fitted[0] / "price", tmp_path / "new.csv", "--out", out)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(message, result.stderr)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "cost", "--number", "cist"], "no column 'cost' to predict"),
        (["--target", "price", "--category", "cist"], "no column 'cist' to be categories"),
        (["--target", "town", "--task", "regression"], "holds text such as"),
        (["--target", "price", "--task", "clustering"], "task must be one of"),
        (["--target", "price", "--model", "forest"], "model mlp or linear"),
        (["--target", "price", "--test-fraction", "1.5"], "between 0 and 1"),
        (["--target", "price", "--model", "linear", "--num-steps", "9"], "a setting of networks"),
        (["--target", "price", "--num-steps", "1"], "num_steps must be"),
    ],
)
def test_wrong_options_write_nothing(invoke, table, tmp_path, arguments, message):
    result = invoke(
        "fit", table, *arguments, "--ignore", "sold", "--ignore", "id", "--out", tmp_path / "out"
    )
    assert result.exit_code == 1
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_tables_that_cannot_be_learned_from(invoke, tmp_path):
    path = tmp_path / "table.csv"
    many = pd.DataFrame({"a": [f"n{i}" for i in range(101)], "y": range(101)})
    one = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": ["x"] * 3})
    for frame, message in (
        (many, "another text in almost every row"),
        (one, "one class"),
        (many[["y"]], "no"),
    ):
        frame.to_csv(path, index=False)
        result = invoke("fit", path, "--target", "y", "--out", tmp_path / "out")
        assert result.exit_code == 1
        assert message in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_what_is_a_class():
    assert tables.detect_task(np.array(["a"], object)) == "classification"
    assert tables.detect_task(np.array([True])) == "classification"
    assert tables.detect_task(np.arange(20)) == "classification"
    assert tables.detect_task(np.arange(21)) == "regression"
    assert tables.detect_task(np.array([0.0, 1.0])) == "regression"


def test_words_for_people(fitted):
    for result in fitted[1].values():
        text = "\n".join(table_page.summary(result))
        assert "held-out rows" in text
        assert "calibration error" in text


@pytest.mark.slow
def test_the_default_model_is_a_network(table, tmp_path, monkeypatch):
    class Quick(estimators.BayesianMLPClassifier):
        def __init__(self, random_state=None, progress=False):
            super().__init__(
                (4,),
                likelihood_power=3.0,
                sharpness=1.0,
                num_draws=8,
                num_chains=2,
                num_steps=20,
                random_state=random_state,
                progress=progress,
            )

    monkeypatch.setitem(tables.KINDS, ("classification", "mlp"), Quick)
    result = tables.fit_table(tabular_columns(table), "is_dear", options=Options(["price", "id"]))
    assert result.result["model"] == "Quick"
    assert result.predictions.startswith("row,truth,prediction,confidence,p(cheap),p(dear),entropy")


def tabular_columns(path):
    from sghmc.data.table_files import read_table

    return {name: values for name, values in read_table(path).items() if name != "sold"}
