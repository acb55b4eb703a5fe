"""The page of a run: complete, escaped, whole or not there."""

import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results import report
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info

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
        if {"td", "th"} & set(self.open[-2:]):
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


@pytest.fixture
def few_pictures(monkeypatch):
    """Most of a page's time goes into its pictures."""
    monkeypatch.setattr(report, "_NUM_PICTURED", 1)


def read(path):
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    assert not reader.open
    return reader


@pytest.mark.slow
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
    # Trace, ranks and autocorrelation of three numbers, two statistics; each bright and dark.
    assert len(pictures) == 2 * (3 * 3 + 2)
    assert all(image["src"].startswith("data:image/png;base64,") for image in pictures)


@pytest.mark.slow
def test_the_page_asks_nothing_of_a_network(samples, few_pictures, tmp_path):
    path = samples.report(tmp_path)
    assert path == tmp_path / "report.html"
    content = path.read_text("utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub('base64,[^"]*', "", content))


@pytest.mark.slow
def test_a_run_in_trouble_says_so_first(few_pictures, tmp_path):
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


def many_parameters(num_numbers):
    draws = np.random.default_rng(0).normal(size=(2, 50, num_numbers)).astype(np.float32)
    names = {f"{NAME}{'long' * 20}": draws}
    info = Info(potential=draws[..., 0], is_finite=np.ones((2, 50), bool))
    return Samples(names, None, {}, None, info, num_steps=50, seconds=2.0, startup_seconds=1.0)


@pytest.mark.slow
def test_many_parameters_keep_the_page_small(tmp_path):
    path = many_parameters(100_000).report(tmp_path)
    assert path.stat().st_size < 5 << 20
    assert "2,000 of 100,000 numbers, evenly spaced" in path.read_text("utf-8")


@pytest.mark.slow
def test_a_predictive_check_that_fails_blames_the_model(samples, few_pictures, tmp_path):
    replicated = np.random.default_rng(0).normal(size=(4, 100))
    checks = {NAME: (9.0, replicated), "mean": (0.1, replicated)}
    content = samples.report(tmp_path, predictive=checks).read_text("utf-8")
    assert "0.0% have more: not as expected" in content
    assert content.count(": as expected") == 3  # in words, and in the place of two pictures
    blamed = content[content.index("What to do next") : content.index("What the verdict rests on")]
    assert "&lt;script&gt;" in blamed
    assert "change the model" in blamed
    assert content.count("<script") == 1


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (3.0, r"predictive\['a'\] must be a pair"),
        (([1.0, 2.0], [1.0]), r"their shapes are \(2,\) and \(1,\): sum the data up"),
        ((1.0, []), r"shapes are \(\) and \(0,\)"),
        ((1.0, [np.nan]), "not finite"),
    ],
)
def test_predictive_checks_that_are_none(pair, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        many_parameters(1).report(tmp_path, predictive={"a": pair})
    assert list(tmp_path.iterdir()) == []
