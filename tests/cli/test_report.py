"""`sghmc report` on what commands have written; runs of `sample` are in test_reader."""

import json
import re

import pytest

from command_results import SCRIPT, fit_result, ratings_result
from sghmc import paper


def page_of(invoke, folder, result, config=None):
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    shown = invoke("report", folder, "--debug")
    assert shown.exit_code == 0, shown.output
    assert shown.output == f"The report is {folder / 'report.html'}.\n"
    content = (folder / "report.html").read_text("utf-8")
    assert content.count("<script") == 1
    return content


def test_fit(invoke, tmp_path):
    content = page_of(invoke, tmp_path / "fit", fit_result())
    assert "as sure as it should be, as far as 100 held-out cases can tell" in content
    assert "town=&lt;script&gt;" in content
    assert "data:image/svg+xml" in content
    seen = {"expected": [0.5], "observed": [0.2], "count": [100]}
    page = page_of(invoke, tmp_path / "sure", fit_result(reliability=seen))
    assert "Verdict: not trustworthy: too sure" in page
    seen["observed"] = [0.8]
    content = page_of(invoke, tmp_path / "unsure", fit_result(reliability=seen))
    assert "Verdict: usable with care: not sure enough" in content


@pytest.mark.slow
def test_fit_ratings(invoke, tmp_path):
    config = {"ratings": SCRIPT, "rank": 20}
    content = page_of(invoke, tmp_path / "good", ratings_result(0.9), config)
    assert "as sure as it should be" in content
    assert "&lt;script&gt;" in content
    assert "Verdict: too sure" in page_of(invoke, tmp_path / "sure", ratings_result(0.8), config)
    unjudged = {k: v for k, v in ratings_result(0.9).items() if k != "held_out"}
    assert "No ratings were held out" in page_of(invoke, tmp_path / "unjudged", unjudged, config)


NO_ROWS = {"expected": [0.5], "observed": [0.5], "count": [0]}


def folder_of(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it is empty"),
        ({"other": "{}"}, "it holds other.json"),
        ({"result": "{"}, "result.json is broken: "),
        ({"result": "[1]"}, "result.json is broken: it does not hold named results"),
        (
            {"result": '{"what": 1}'},
            r"No command of sghmc wrote .*result.json, which has \['what'\]",
        ),
        ({"result": '{"reliability": 1}'}, "broken, or of another version"),
        ({"result": '{"auto_is_close": true}'}, "broken, or of another version"),
        ({"result": "{}", "config": '{"experiment": "figure1"}'}, "or of another version"),
        ({"result": "{}", "config": "{"}, "config.json is broken"),
        ({"result": "[" * 100_000}, "nested too deeply"),
        ({"result": "{}", "config": '{"experiment": []}'}, "No command of sghmc wrote"),
        ({"result": json.dumps(fit_result(reliability=NO_ROWS))}, "or of another version"),
        ({"result": json.dumps(fit_result(rmse=10**400))}, "or of another version"),
        ({"result": json.dumps(fit_result(reliability=None))}, "or of another version"),
        ({"result": json.dumps(fit_result(num_test="many"))}, "or of another version"),
    ],
)
def test_a_folder_that_is_none_of_ours(invoke, tmp_path, files, message):
    result = invoke("report", folder_of(tmp_path, **files))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sghmc: ")
    assert re.search(message, result.stderr)
    assert not (tmp_path / "report.html").exists()


def test_a_planted_link_is_not_followed(invoke, tmp_path):
    """A folder of results that somebody else packed: its report.html leads to a folder of ours."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "report.html").write_text("precious")
    folder = folder_of(tmp_path, result=json.dumps(fit_result()))
    (folder / "report.html").symlink_to(precious)
    result = invoke("report", folder)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "report.html is a link" in result.stderr
    assert (precious / "report.html").read_text() == "precious"


def test_no_folder_at_all(invoke, tmp_path):
    (tmp_path / "file").touch()
    assert "does not exist" in invoke("report", tmp_path / "nowhere").stderr
    assert "is a file" in invoke("report", tmp_path / "file").stderr


@pytest.mark.slow
def test_experiments(invoke, tmp_path):
    paper.reproduce("figure2", tmp_path, quick=True, progress=False, num_steps=100, num_chains=2)
    folder = tmp_path / "figure2"
    written = (folder / "report.html").read_text("utf-8")
    for words in ("Friction corrects this.", "--seed 0 --quick", "gradient_noise", " cores"):
        assert words in written
    shown = invoke("report", folder, "--out", tmp_path / "again.html", "--json", "--debug")
    assert json.loads(shown.stdout)["kind"] == "experiment"
    assert (tmp_path / "again.html").read_text("utf-8") == written
