"""Pages: all text escaped, nothing loaded, and written where they were asked for."""

import html.parser
import os
import re

import pytest

from sghmc import display

HOSTILE = "<script>alert('\"&')</script>"


class Words(html.parser.HTMLParser):
    """What a browser would show, and the elements that it would make."""

    def __init__(self, content):
        super().__init__()
        self.text, self.elements = "", []
        self.feed(content)

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


PARTS = {
    "section": display.section,
    "verdict": lambda words: display.verdict(words, True),
    "paragraph": display.paragraph,
    "points": lambda words: display.points([words]),
    "facts": lambda words: display.facts({words: words}),
    "grid": lambda words: display.grid([words], [[words]]),
    "preformatted": display.preformatted,
    "rows": lambda words: display.rows("numbers", [words], [(words, [1.0])]),
    "side_by_side": lambda words: display.side_by_side(words, []),
}


@pytest.mark.parametrize("name", PARTS)
def test_words_are_shown_and_not_obeyed(name):
    found = Words(PARTS[name](HOSTILE))
    assert HOSTILE in found.text
    assert "script" not in [tag for tag, _ in found.elements]
    assert found.elements
    assert all(HOSTILE not in attributes for _, attributes in found.elements)


def test_text_is_neither_turned_around_nor_hidden():
    """Overrides of the direction would show a name in another order than it has."""
    for hostile, shown in (("a\u202egpj.exe", "a\\u202egpj.exe"), ("\x1b[31m", "\\x1b[31m")):
        assert Words(display.paragraph(hostile)).text == shown
        assert Words(display.notebook_facts("title", {"name": hostile})).text.endswith(shown)
    assert Words(display.preformatted("a\n\tb")).text == "a\n\tb"


def test_pictures_are_described():
    for content in (
        display.picture(("data:light", "data:dark"), HOSTILE),
        display.card("data:", HOSTILE),
    ):
        images = [attributes for tag, attributes in Words(content).elements if tag == "img"]
        assert {image["alt"] for image in images} == {HOSTILE}
    light, dark = Words(display.picture(("data:1", "data:2"), "")).elements
    assert (light[1]["class"], light[1]["src"]) == ("light", "data:1")
    assert (dark[1]["class"], dark[1]["src"]) == ("dark", "data:2")


def test_a_table_to_sort_has_the_numbers_themselves():
    found = Words(
        display.rows("numbers", ["name", "mean"], [("a", [1 / 3]), ("b", [float("nan")])])
    )
    values = [a["data-value"] for tag, a in found.elements if tag == "td" and "data-value" in a]
    assert values == [repr(1 / 3), ""]
    assert "0.3333" in found.text
    assert "–" in found.text


def test_verdicts_are_told_apart_by_more_than_words():
    assert 'class="verdict good"' in display.verdict("fine", True)
    assert 'class="verdict bad"' in display.verdict("fine", False)


def test_a_whole_page_asks_nothing_of_any_network():
    content = display.page(HOSTILE, [display.paragraph("one")])
    found = Words(content)
    policy = next(a["content"] for tag, a in found.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", content)
    assert content.count("<script>") == 1
    assert content.startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = display.write(tmp_path / "run.html", "old")
    with pytest.raises(UnicodeEncodeError):
        display.write(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_gets_a_report_in_it(tmp_path):
    assert display.write(str(tmp_path), "a") == tmp_path / "report.html"
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
def test_planted_links_are_not_followed(tmp_path, kind):
    """In a folder of results that somebody else could write to."""
    outside, folder = tmp_path / "outside", tmp_path / "results"
    folder.mkdir()
    if kind == "folder":
        outside.mkdir()
        (outside / "report.html").write_text("precious")
    elif kind == "file":
        outside.write_text("precious")
    (folder / "report.html").symlink_to(outside)
    with pytest.raises(ValueError, match=r"results/report\.html is a link"):
        display.write(folder, "new")
    assert (folder / "report.html").is_symlink()
    assert outside.exists() == (kind != "nothing")
    if kind != "nothing":
        assert (outside / "report.html" if kind == "folder" else outside).read_text() == "precious"
