"""Reports in a browser, opened as files."""

import json

import numpy as np
import pytest

from sghmc import paper
from sghmc.display import write
from sghmc.estimators.table_page import table_page
from sghmc.paper.figure2 import LABELS
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info
from views import DESK, PHONE

pytestmark = pytest.mark.browser
NAME = "<script>alert('run')</script><img src=x onerror=alert(1)>"
NAMES = ("run", "fit", "figure2/report")


def run_report(folder):
    generator = np.random.default_rng(0)
    draws = {
        NAME: generator.normal(size=(4, 200, 3)),
        "weights": generator.normal(size=(4, 200, 5)) * [1, 20, 3, 4, 5],
        "a_long_name_of_a_layer_" * 5: generator.normal(size=(4, 200)),
    }
    heat = generator.normal(1, 0.1, size=(4, 200))
    info = Info(heat, np.ones((4, 200), bool), kinetic_temperature=heat)
    samples = Samples(draws, None, {}, None, info, 200, seconds=2.0, startup_seconds=1.0)
    checks = {NAME: (0.1, draws["weights"][..., 0]), "largest": (9.0, draws["weights"][..., 0])}
    samples.report(folder / "run.html", title=f"Run of {NAME}", predictive=checks)


def fit_report(folder):
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    result = {"task": "regression", "model": "M", "target": NAME, "num_train": 90, "num_test": 10}
    result |= {"inputs": ["a" * 200, NAME], "r2": 0.5, "rmse": 1.0, "ece": 0.1}
    result["reliability"] = {"expected": levels, "observed": levels, "count": [10] * 5}
    write(folder / "fit.html", table_page(result))


def experiment_report(folder):
    """The page of an experiment, with numbers that nobody computed."""
    end = {"rms_radius": 1.0, "expected_rms_radius": 1.1, "z_score": 0.5}
    path = {name: [0.1, 0.9] for name in ("position", "momentum")}
    path |= {name: [1.0, 2.0] for name in ("rms_radius", "expected_rms_radius")}
    result = {"steps": [50, 100], "clouds": {name: path | {"end": end} for name in LABELS}}
    config = {"experiment": "figure2", "quick": True, "seed": 0, "data": NAME, "seconds": 1.0}
    (folder / "figure2").mkdir()
    for name, content in {"config": config, "result": result}.items():
        (folder / "figure2" / f"{name}.json").write_text(json.dumps(content))
    write(folder / "figure2", paper.page("figure2", config, result))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    for make in (run_report, fit_report, experiment_report):
        make(folder)
    return lambda name: (folder / f"{name}.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("name", NAMES)
def test_a_report_opens_and_reads_well(visit, look, address, name, width, scheme):
    look(visit(address(name), width, scheme))


def column(page, place):
    """The shown cells of a column of the table of numbers."""
    return page.eval_on_selector_all(
        "table.rows tbody tr:not([hidden])",
        "(rows, i) => rows.map(row => row.cells[i].textContent)",
        place,
    )


def test_the_table_sorts_and_searches_by_keyboard(visit, address):
    page = visit(address("run"))
    before = column(page, 2)
    head = page.locator("table.rows th").nth(2)
    head.get_by_role("button").focus()
    for key, order in (("Enter", 1), (" ", -1)):
        page.keyboard.press(key)
        assert head.get_attribute("aria-sort") == {1: "ascending", -1: "descending"}[order]
        assert column(page, 2) == sorted(before, key=lambda cell: order * float(cell))
    page.keyboard.press("Shift+Tab")  # to the head before it
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort]").all_inner_texts() == ["mean"]
    page.get_by_label("Search by name").focus()
    page.keyboard.type("WEIGHTS[3")
    assert column(page, 0) == ["weights[3]"]
    assert page.locator("output").inner_text() == "1 of 9"


def test_a_focused_button_shows_that_it_is(visit, address):
    page = visit(address("run"))
    page.keyboard.press("Tab")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert (page.evaluate("document.activeElement.id"), page.evaluate(ring)) == ("theme", "solid")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_can_be_chosen(visit, look, address, scheme):
    page = visit(address("run"), scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    before, shown = page.evaluate(ground), page.locator(f"img.{scheme}").first
    assert shown.is_visible()
    page.get_by_role("button", name="colours").click()
    assert page.evaluate(ground) != before
    assert not shown.is_visible()
    look(page)


def test_a_name_that_is_a_script_is_shown_not_run(visit, address):
    page = visit(address("run"))  # a dialog would be noted
    assert f"{NAME}[0]" in column(page, 0)
    assert page.locator("h1").inner_text() == f"Run of {NAME}"


def test_the_policy_forbids_what_comes_from_elsewhere(browser, address):
    page = browser.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(address("run"))
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:1/'}))")
    page.wait_for_timeout(200)
    page.close()
    assert any("Content Security Policy" in text for text in refused)
