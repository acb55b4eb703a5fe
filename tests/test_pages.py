"""The pages of the samplers are what `python docs/pages.py` writes now."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_pages_say_what_the_docstrings_say():
    pages = runpy.run_path(str(DOCS / "pages.py"))["pages"]()
    written = {path.name: path.read_text("utf-8") for path in (DOCS / "samplers").iterdir()}
    assert written == pages


def test_an_example_is_fenced_to_its_end():
    markdown = runpy.run_path(str(DOCS / "pages.py"))["_as_markdown"]
    text = "One.\n\n    x ← x + 1\n\n>>> 1\n1\n>>> 2\n2"
    assert markdown(text) == "One.\n\n    x ← x + 1\n\n```pycon\n>>> 1\n1\n>>> 2\n2\n```"
