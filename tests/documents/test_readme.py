"""What the documents say is true: the example runs, the commands and names exist."""

import pathlib
import re

import jax
import numpy as np
import pytest

import sghmc
from sghmc import paper

ROOT = pathlib.Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_runs_and_is_right(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "ess_bulk" in capsys.readouterr().out
    draws = names["samples"].positions
    # The Laplace approximation at the posterior's mean is exact to a percent here, and 4,000 draws
    # leave 1 % of standard deviations and 0.016 of means: the bounds are where the bias begins.
    mean = draws.mean((0, 1))
    posterior = names["posterior"]
    precision = jax.hessian(posterior.potential)(mean)
    covariance = np.linalg.inv(precision)
    sds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.std((0, 1)), sds, rtol=0.1)
    mode = mean - covariance @ np.asarray(posterior.gradient(mean))
    assert np.max(np.abs(mean - mode) / sds) < 0.15


def test_the_example_is_short():
    (code,) = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15


def test_commands_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        assert set(re.findall(r"^make ([a-z]+)", read(document), re.MULTILINE)) <= targets
    reproduced = re.findall(r"`sghmc reproduce ([a-z0-9 ]+)", read("README.md"))
    assert len(reproduced) >= 3
    assert set(" ".join(reproduced).split()) <= set(paper.EXPERIMENTS)


def test_names_in_the_readme_are_public():
    tables = re.findall(r"^\| (`[A-Z].*?) \|", read("README.md"), re.MULTILINE)
    named = [name for cell in tables for name in re.findall(r"`([A-Za-z]+)`", cell)]
    assert len(named) > 8
    assert set(named) <= set(sghmc.__all__)


def test_links_lead_somewhere():
    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)]+)\)", read(document)):
            path, _, anchor = link.partition("#")
            assert link.startswith("http") or (ROOT / path).exists(), link
            assert not anchor or anchor in headings(path), link


def headings(page: str) -> set[str]:
    """The anchors of a page, as the site makes them."""
    found = re.findall(r"^#+ (.*)$", read(page), re.MULTILINE)
    return {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in found}


def test_the_readme_is_one_walk():
    assert len(read("README.md").splitlines()) <= 150


def test_the_citation_names_this_version():
    assert f"\nversion: {sghmc.__version__}\n" in read("CITATION.cff")
