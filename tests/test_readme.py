"""What the documents say is true: the example runs, the commands exist, the picture holds."""

import ast
import doctest
import importlib
import pathlib
import re

import jax
import numpy as np
import pytest

import sghmc
from sghmc import experiments

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sghmc"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_example_runs_and_is_right(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "ess_bulk" in capsys.readouterr().out
    draws = names["samples"].positions
    # The Laplace approximation at the posterior's mean is exact to a few percent here.
    mean = draws.mean((0, 1))
    posterior = sghmc.Posterior(
        names["log_likelihood"], names["log_prior"], (names["rows"], names["labels"])
    )
    precision = jax.hessian(posterior.potential)(mean)
    covariance = np.linalg.inv(precision)
    sds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.std((0, 1)), sds, rtol=0.15)
    mode = mean - covariance @ np.asarray(posterior.gradient(mean))
    assert np.max(np.abs(mean - mode) / sds) < 0.25


@pytest.mark.parametrize("module", ["sghmc.diagnostics", "sghmc.samples", "sghmc.run"])
def test_docstring_examples_run(module):
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_example_is_short():
    (code,) = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    assert len(code.splitlines()) <= 30


def test_commands_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        assert set(re.findall(r"^make ([a-z]+)", read(document), re.MULTILINE)) <= targets
    (line,) = re.findall(r"^sghmc reproduce ([a-z0-9 ]+?) +#", read("README.md"), re.MULTILINE)
    assert set(line.split()) <= set(experiments.EXPERIMENTS)


def test_names_in_the_readme_are_public():
    tables = re.findall(r"^\| (`[A-Z].*?) \|", read("README.md"), re.MULTILINE)
    named = [name for cell in tables for name in re.findall(r"`([A-Za-z]+)`", cell)]
    assert len(named) > 8
    assert set(named) <= set(sghmc.__all__)


def test_links_lead_somewhere():
    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)]+)\)", read(document)):
            assert link.startswith("http") or (ROOT / link).exists(), link


def picture() -> list[list[str]]:
    """The rows of modules in the picture of CONTRIBUTING.md, top to bottom."""
    (block,) = re.findall(r"```text\n(.*?)```", read("CONTRIBUTING.md"), re.DOTALL)
    # A row's modules are left of its explanation, three spaces or more away.
    lines = [re.split(r" {3,}", line.strip())[0] for line in block.splitlines()]
    return [line.split() for line in lines if line and line != "│"]


def test_imports_go_from_top_to_bottom():
    rank = {module: row for row, modules in enumerate(picture()) for module in modules}
    for module in rank:
        assert (SOURCE / f"{module}.py").exists() or (SOURCE / module).is_dir(), module
    for file in sorted(SOURCE.rglob("*.py")):
        module = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for imported in imports(file):
            if module in rank and imported in rank:
                assert rank[imported] <= rank[module], f"{file} imports sghmc.{imported}"


def imports(file: pathlib.Path) -> set[str]:
    """The modules and packages right under sghmc that a file imports, anywhere in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "sghmc":
            found += [f"sghmc.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return {name.split(".")[1] for name in found if name.startswith("sghmc.")}
