"""The reference has every public name, and shows docstrings as they are meant."""

import pathlib
import runpy

import pytest

import sghmc

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def reference():
    return runpy.run_path(str(DOCS / "reference.py"))


@pytest.fixture(scope="module")
def pages(reference):
    return reference["pages"]()


@pytest.mark.slow
def test_every_public_name_is_there(pages):
    index = pages["index.md"]
    modules = {"data", "models", "theory", "transforms", "__version__"}
    missing = [name for name in set(sghmc.__all__) - modules if f"- [{name}]" not in index]
    assert not missing


@pytest.mark.slow
def test_every_page_is_in_the_navigation(pages):
    navigation = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    missing = [name for name in pages if f"- reference/{name}\n" not in navigation]
    assert not missing


@pytest.mark.slow
def test_a_page_has_call_formula_and_example(pages):
    page = pages["samplers/sgld.md"]
    assert "sghmc.SGLD(\n    step_size,\n    preconditioner=1.0," in page
    assert "\n    θ ← θ − ε P ∇Ũ(θ)" in page
    assert "```pycon\n>>> import sghmc\n>>> sghmc.SGLD(" in page


def test_an_example_is_fenced_to_its_end(reference):
    text = "One.\n\n    x ← x + 1\n\n>>> 1\n1\n>>> 2\n2"
    fenced = "One.\n\n    x ← x + 1\n\n```pycon\n>>> 1\n1\n>>> 2\n2\n```"
    assert reference["as_markdown"](text) == fenced
