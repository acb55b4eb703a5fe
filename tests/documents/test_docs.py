"""The pages of the site: their code runs, and the site builds with nothing missing.

Blocks marked `python` are run. What needs several devices or machines is marked `py`.
"""

import contextlib
import io
import logging
import pathlib
import re
import runpy

import pytest
import yaml

import outputs

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = {
    path.relative_to(DOCS).as_posix(): CODE.findall(path.read_text("utf-8"))
    for path in sorted(DOCS.rglob("*.md"))
}


def run(page: str) -> tuple[dict, str]:
    """The names that a page's blocks define, one after the other, and what they print."""
    names: dict = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in PAGES[page]:
            exec(compile(block, page, "exec"), names)
    return names, printed.getvalue()


SPECIAL = {"trust.md", "extend.md", "get-started/posterior.md"}
SLOW = {"data.md", "get-started/ratings.md", "get-started/table.md", "large-networks.md"}
"""What takes longest to compile, and is run by a docstring's example, too."""


@pytest.mark.slow_cases(
    "choosing.md",
    "coming-from.md",
    "constraints.md",
    "learning-coefficient.md",
    "minibatches.md",
    "pytorch.md",
    "stepping.md",
)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page, code in PAGES.items()
        if code and page not in SPECIAL
    ],
)
def test_the_code_of_a_page_runs(page):
    if not all(map(outputs.can_run, PAGES[page])):
        pytest.skip("PyTorch is not installed")
    run(page)


def test_only_what_needs_several_machines_is_not_run():
    left_out = [path.name for path in DOCS.rglob("*.md") if "```py\n" in path.read_text("utf-8")]
    assert left_out == ["scaling.md"]


def test_launch_files_can_be_read():
    text = (DOCS / "scaling.md").read_text("utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    files = [file for block in blocks for file in yaml.safe_load_all(block)]
    kinds = [file.get("kind", "a task of SkyPilot") for file in files]
    assert kinds == ["Service", "Job", "JobSet", "TrainJob", "a task of SkyPilot"]
    # All pods of a kind start, and as many as wait for each other.
    for spec in (files[1]["spec"], files[2]["spec"]["replicatedJobs"][0]["template"]["spec"]):
        assert spec["completions"] == spec["parallelism"]


@pytest.mark.slow
def test_a_posterior_is_right():
    names, printed = run("get-started/posterior.md")
    assert "no sign of trouble" in printed
    # 10,000 rows with unit noise: standard deviations are 0.01, to within a few percent.
    assert abs(names["slopes"].std((0, 1)) / 0.01 - 1).max() < 0.15


@pytest.mark.slow
def test_health_tells_a_right_answer_from_a_wrong_one():
    names, _ = run("trust.md")
    assert "gradient noise" in names["plain"].verdict
    assert not names["plain"].is_sound
    assert names["corrected"].is_sound


@pytest.mark.slow
def test_the_sampler_of_the_page_on_extending_has_the_law_it_says():
    """The page asserts the law; here the draws of its run, and a planted fault."""
    names, _ = run("extend.md")
    spread = names["samples"].positions.std()
    # Monte Carlo: 4,000 draws with 1 + 2Σρ about 4 leave a standard error of 2 %; 5 of them.
    assert abs(spread * 501**0.5 - 1) < 0.1
    fault = next(block for block in PAGES["extend.md"] if "class State" in block)
    law = next(block for block in PAGES["extend.md"] if "stationary_law" in block)
    fault = fault.replace("tree.add_scaled(state.normals, 1, normals)", "normals")
    exec(compile(fault.replace("/ 2)", "* 2)"), "extend.md", "exec"), names)
    with pytest.raises(AssertionError):
        exec(compile(law, "extend.md", "exec"), names)


@pytest.mark.slow
def test_the_site_builds_with_nothing_missing(tmp_path, caplog):
    """All but what takes long to make: the gallery, and the front page's picture."""
    left_out = {"gallery", "pictures"}
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    config.extra["makers"] = [name for name in config.extra["makers"] if name not in left_out]
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(config)
    known = re.compile("'(?:[^']*/)?(?:gallery|pictures)/")
    unexpected = [text for text in caplog.messages if not known.search(text)]
    assert not unexpected
    assert "stationary_law" in (tmp_path / "reference/theory.html").read_text("utf-8")
    assert (tmp_path / "search/search_index.js").read_text("utf-8").startswith("var __index = {")
    assert "refused" in (tmp_path / "law_table/bias.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "is_load"),
    [
        ('<script src="https://a.b/c.js"></script>', True),
        ("<img alt=x src=//a.b/c.png>", True),
        ('<link rel="preconnect" href="https://a.b" crossorigin>', True),
        ('<link href="https://a.b/c.css" rel="stylesheet">', True),
        ("@import url('https://a.b/c.css')", True),
        ('<a href="https://a.b/c">a link to follow</a>', False),
        ('<link rel="canonical" href="https://a.b/">', False),
        ('<script src="assets/c.js"></script>', False),
    ],
)
def test_what_would_be_loaded_from_the_network_is_seen(text, is_load):
    loads = runpy.run_path(str(DOCS / "hooks.py"))["loads"]
    assert bool(loads(text)) is is_load
