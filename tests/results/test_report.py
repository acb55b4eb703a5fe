"""The page of a run: complete, escaped, whole or not there."""

import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import sghmc
from sghmc.results import report
from sghmc.results.health import Health
from sghmc.results.prediction import SavedOrigin
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


HEALTH = Health((), 1.01, 300.0, 1.02, 0.1, 0.01)
TABLE = pandas.DataFrame(
    {"mean": [1.25, 2.5], "ess_bulk": [400.0, 300.0]}, index=["weight[0]", "weight[9]"]
)


def page(num_quantities=2, notes=None, checks=()):
    return report.run_page(
        "A run", HEALTH, TABLE, {}, num_quantities, {"draws": "2 chains"}, {}, checks, notes
    )


def test_a_page_has_its_parts_and_no_others(monkeypatch):
    monkeypatch.setattr(report, "_NUM_PICTURED", 0)
    monkeypatch.setattr(report, "_worst_section", lambda *_: [])
    usual = page()
    for words in ("What to do next", "What the verdict rests on", "The run", "Every number"):
        assert words in usual
    assert "Nothing needs mending" in usual
    assert "2 chains" in usual
    for cell in ("weight[9]", "1.25", "300"):
        assert cell in usual
    for words in ("Tuning", "Predictive checks", "evenly spaced"):
        assert words not in usual
    assert "2 of 10 numbers, evenly spaced" in page(10)
    assert "its notes" in page(notes="its notes")
    monkeypatch.setattr(report.display, "replicates_picture", lambda *_: (b"", b""))
    check = report.PredictiveCheck("largest", 9.0, np.arange(8.0))
    judged = page(checks=[check])
    assert "Predictive checks" in judged
    assert "does not make data like those observed in largest" in judged


def info(**parts):
    return Info(None, np.array([[True, False, True], [True, True, True]]), **parts)


def test_an_overview_says_what_there_is():
    variables = {f"x{i}": np.zeros((2, 3, i)) for i in range(8)}
    found = report.overview_parts(variables, ["mean"], info(acceptance=np.full((2, 3), 0.25)), 7, 2)
    assert found == [
        "2 chains × 3 draws",
        "7 steps in 2.0 s",
        "x0 (0,), x1 (1,), x2 (2,), x3 (3,), x4 (4,), x5 (5,), and 2 more",
        "averages mean",
        "acceptance 0.25",
        "1 of 2 chains not finite",
    ]
    sound = Info(None, np.ones((1, 1), bool))
    assert report.overview_parts({}, [], sound, 1, 0.5) == [
        "1 chain × 1 draw",
        "1 step in 0.5 s",
        "nothing kept",
        "all finite",
    ]


def test_a_table_of_variables_ends_after_fifty():
    shown = report.overview_table("a", {f"x{i}": np.zeros((1, 1, 2)) for i in range(52)})
    assert ">x49<" in shown
    assert ">x50<" not in shown
    assert "and 2 more" in shown
    assert "more" not in report.overview_table("a", {f"x{i}": np.zeros((1, 1)) for i in range(50)})


def test_speed_is_that_of_all_chains_after_the_first_draw():
    found = report.overview_settings(None, info(), 600, 3.5, 0.5)
    assert found["steps a second, all chains"] == "400"
    assert found["seconds"] == "3.5, 0.5 of them to the first draw"
    assert found["steps of each chain"] == "600"
    saved = report.overview_settings(SavedOrigin({"sampler": "x"}, 1.0), info(), 1, 1, 1)
    assert saved["sampler"] == "x"


def test_ties_count_half_and_rare_summaries_are_told():
    check = report.PredictiveCheck("x", 2.0, np.array([1.0, 2.0, 2.0, 3.0]))
    assert check.share_above == 0.5
    for share, is_expected in ((25, True), (24, False), (975, True), (976, False)):
        replicated = np.where(np.arange(1000) < share, 1.0, -1.0)
        assert report.PredictiveCheck("x", 0.0, replicated).is_expected == is_expected
