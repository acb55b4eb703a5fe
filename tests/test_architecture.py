"""The flow has one direction, importing is light, and the examples in docstrings are true."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

import sghmc

ROOT = Path(sghmc.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def picture() -> list[list[str]]:
    """The rows of the picture in CONTRIBUTING.md, top to bottom."""
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    # A row's parts are left of its explanation, three spaces or more away.
    rows = [re.split(r" {3,}", line.strip())[0] for line in block.splitlines()]
    return [row.split() for row in rows if row and row != "│"]


FLOW = picture()
"""A file imports only from groups before its own; the files of a folder may import each other."""

PLACE = {name: place for place, group in enumerate(FLOW) for name in group}


def part(path: Path) -> str:
    """What a file belongs to: its own name, or its folder's."""
    name = path.relative_to(ROOT).with_suffix("").parts[0]
    return "cli" if name == "__main__" else name


def imported(path: Path) -> set[str]:
    """The parts of sghmc that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    inside = set()
    for name in names:
        first, *rest = name.split(".")
        if first == "sghmc":
            inside.add(rest[0] if rest and rest[0] in PLACE else "__init__")
    return inside


def test_every_part_has_a_place_in_the_flow():
    missing = {part(path) for path in FILES} ^ set(PLACE)
    assert not missing, f"give {missing} a place in the picture of CONTRIBUTING.md"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_from_its_left(path):
    own = part(path)
    late = {name for name in imported(path) if name != own and PLACE[name] >= PLACE[own]}
    assert not late, f"{own} imports {late}, which come after it"


def names_of(path: Path) -> str:
    """How a file is imported."""
    return ".".join(("sghmc", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def test_files_do_not_import_each_other_in_circles():
    """Also inside a folder, and not when a function runs, either."""
    modules = {names_of(path): path for path in FILES}
    imports: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {each if each in modules else node.module for each in inner}
        imports[name] = (found & set(modules)) - {name}
    while free := [name for name, needed in imports.items() if not needed & set(imports)]:
        for name in free:
            del imports[name]
    assert not imports, f"these import each other, or those that do: {sorted(imports)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_classes_can_be_read_at_once(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 200, node.name


ELSEWHERE = {
    "cli/commands.py": "cli/test_fit.py",
    "engine/program_hash.py": "checkpoint/test_fingerprint.py",
    "estimators/table_scores.py": "estimators/test_tabular.py",
    "posterior/target.py": "posterior/test_posterior.py",
    "recommender/factor_model.py": "recommender/test_factorization.py",
    "samplers/optimizers.py": "samplers/test_laws.py",
    "theory/stationary.py": "theory/test_law.py",
    "torch/langevin.py": "torch/test_laws.py",
    "torch/nose_hoover.py": "torch/test_sgnht.py",
    "torch/settings.py": "torch/test_base.py",
    "torch/state.py": "torch/test_silent_steps.py",
}
"""Where files are tested that no test imports, and none is named after."""


def test_every_file_knows_its_test():
    """One of its name in the same folder, one that imports it, or one that is named here."""
    tests = ROOT.parents[1] / "tests"
    others = set(tests.rglob("*.py")) - {tests / "test_architecture.py"}  # it only names
    text = "\n".join(path.read_text("utf-8") for path in sorted(others))
    named = re.findall(r"\bsghmc(?:\.\w+)+", text)
    for folder, names in re.findall(r"from (sghmc[\w.]*) import ([^\n]*)", text):
        named += [f"{folder}.{name}" for name in re.findall(r"\w+", names)]
    imported = {part for name in set(named) for part in accumulate(name.split("."), "{}.{}".format)}
    unknown = set()
    for path in FILES:
        own = path.relative_to(ROOT)
        has_own = (tests / own.parent / f"test_{own.name}").exists()
        if not (path.name.startswith("__") or names_of(path) in imported or has_own):
            unknown.add(own.as_posix())
    assert unknown == set(ELSEWHERE)
    assert all((tests / test).exists() for test in ELSEWHERE.values())


@pytest.mark.slow
def test_importing_sghmc_imports_nothing_heavy():
    heavy = [
        "matplotlib",
        "arviz",
        "sklearn",
        "orbax",
        "pyarrow",
        "pandas",
        "polars",
        "numpyro",
        "pymc",
        "rich",
        "typer",
        "flax",
        "xarray",
        "torch",
    ]
    code = f"import sys, sghmc; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_every_part_is_there_after_importing_sghmc():
    """Also those that are imported when they are first named."""
    code = (
        "import sghmc; sghmc.models.MLP, sghmc.interop.nuts, sghmc.interop.numpyro.posterior, "
        "sghmc.interop.optax.transformation, sghmc.estimators.BayesianMLPClassifier"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)
    with pytest.raises(AttributeError, match="no attribute 'estimator'"):
        _ = sghmc.estimator


def with_examples():
    """Modules whose docstrings have examples."""
    names = [path.relative_to(ROOT.parent).with_suffix("") for path in FILES]
    modules = [
        ".".join(name.parts).removesuffix(".__init__")
        for name, path in zip(names, FILES, strict=True)
        if ">>> " in path.read_text()
    ]
    # Estimators compile a program for every shape of data.
    slow = [[pytest.mark.slow] if "estimators" in module else [] for module in modules]
    return [pytest.param(*each, marks=marks) for *each, marks in zip(modules, slow, strict=True)]


@pytest.mark.slow_cases(
    "sghmc.complexity.llc",
    "sghmc.posterior.curvature",
    "sghmc.engine.stepper",
    "sghmc.interop.numpyro",
    "sghmc.models.adapters",
    "sghmc.recommender.factor_model",
    "sghmc.models.networks",
    "sghmc.results.samples",
    "sghmc.results.scores",
    "sghmc.torch.sghmc",
    "sghmc.torch.langevin",
    "sghmc.torch.langevin",
    "sghmc.transforms",
    "sghmc.tuning.tune",
)
@pytest.mark.parametrize("module", with_examples())
def test_examples_in_docstrings(module):
    for name, needed in {
        "sghmc.torch": "torch",
        "sghmc.results.samples": "arviz",
        "sghmc.interop.pymc": "pymc",
    }.items():
        if module.startswith(name):
            pytest.importorskip(needed, reason=f"{needed} is not installed")
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0
