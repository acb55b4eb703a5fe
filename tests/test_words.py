"""First lines of the source can be read alone, and a class name means one thing."""

import ast
import collections
import pathlib
import re

import pytest

import sghmc

ROOT = pathlib.Path(sghmc.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FRAGMENT = re.compile(
    r"^(Of|What|That|Those|These|Where|Which|Whose|The same|As|So|And|With|Their|Its)\b"
)
"""Openers of a first line that needs the code above it to be understood."""
SHORTEST = 15


def can_be_read_alone(line: str) -> bool:
    return not FRAGMENT.match(line) and len(line) >= SHORTEST


def first_lines(tree: ast.AST):
    """Yield (line, text) of docstrings, and of the strings below constants and fields."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), text.splitlines()[0]
        if isinstance(node, ast.FunctionDef):
            continue
        for before, after in zip(node.body, node.body[1:], strict=False):
            if not isinstance(before, ast.Assign | ast.AnnAssign):
                continue
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield after.lineno, text.value.strip().splitlines()[0]


def test_the_rule_knows_a_fragment_from_a_sentence():
    source = '"""Return the step."""\nSIZE = 1\n"""Of each leaf, in bytes."""\ndef f():\n  "τ_t."\n'
    found = [line for line, text in first_lines(ast.parse(source)) if not can_be_read_alone(text)]
    assert sorted(found) == [3, 4]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_first_lines_can_be_read_alone(path):
    lines = first_lines(ast.parse(path.read_text("utf-8")))
    bad = [f"{number}: {line}" for number, line in lines if not can_be_read_alone(line)]
    assert not bad, "write a full sentence that can be read without the code above it"


MAX_NAMES_TWICE = 16
"""Class names that stand for two things; the pairs of `sghmc` and `sghmc.torch` are meant."""


def test_a_class_name_means_one_thing():
    names = collections.Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    twice = {name for name, count in names.items() if count > 1}
    assert len(twice) <= MAX_NAMES_TWICE, sorted(twice)
