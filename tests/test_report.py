"""The page of a run: complete, escaped, whole or not there."""

import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest

import sghmc
from sghmc.report import page

NAME = "<script>alert('$x_1$')</script>"


class Reader(HTMLParser):
    """Collects tags and the text of table cells, and counts what is left open."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.cells = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source", "input"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open[-1:] or "th" in self.open[-1:] or "button" in self.open[-1:]:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def samples():
    target = sghmc.Potential(lambda p: 0.5 * jnp.sum(p[NAME] ** 2) + 0.5 * p["level"] ** 2)
    start = {NAME: jnp.zeros(2), "level": jnp.zeros(())}
    return sghmc.sample(
        jax.random.key(0),
        target,
        sghmc.SGHMC(0.3, friction=1.5),
        start,
        num_samples=400,
        thinning=8,
        num_chains=4,
        progress=False,
    )


def read(path):
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    assert not reader.open
    return reader


def test_every_number_and_setting_is_there_and_escaped(samples, tmp_path):
    path = samples.report(tmp_path / "new" / "run.html", title="A & B")
    content = path.read_text("utf-8")
    reader = read(path)
    for cell in (
        f"{NAME}[0]",
        f"{NAME}[1]",
        "level",
        "r_hat",
        "SGHMC(step_size=0.3, friction=1.5)",
    ):
        assert cell in reader.cells
    assert "<title>A &amp; B</title>" in content
    assert content.count("<script") == 1  # the page's own
    assert "no sign of trouble" in content
    pictures = [attrs for tag, attrs in reader.tags if tag == "img"]
    assert len(pictures) == 2
    assert all(image["src"].startswith("data:image/png;base64,") for image in pictures)


def test_the_page_asks_nothing_of_a_network_and_is_small(samples, tmp_path):
    path = samples.report(tmp_path)
    assert path == tmp_path / "report.html"
    content = path.read_text("utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub('base64,[^"]*', "", content))
    assert path.stat().st_size < 5 << 20


def test_a_run_in_trouble_says_so_first(tmp_path):
    target = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
    sampler = sghmc.SGHMC(1.2, friction=0.5)
    samples = sghmc.sample(
        jax.random.key(0), target, sampler, jnp.zeros(2), num_samples=400, num_chains=4,
        progress=False,
    )  # fmt: skip
    content = samples.report(tmp_path / "run.html").read_text("utf-8")
    verdict = content[content.index('class="verdict') :][:400]
    assert 'class="verdict bad"' in verdict
    assert "too wide" in verdict


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = page.write(tmp_path / "run.html", "old")
    with pytest.raises(UnicodeEncodeError):
        page.write(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
