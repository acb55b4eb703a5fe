"""Statements of theorems under planted faults."""

import sys
from collections.abc import Callable
from typing import Any

from sghmc import theory
from sghmc.paper.gaussian_laws import Checked


class ReplacedTheory:
    """`theory` with some of its functions replaced."""

    def __init__(self, **replaced: Any):
        self.replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self.replaced.get(name, getattr(theory, name))


def failed(checked: Checked) -> list[str]:
    return [statement.statement for statement in checked.statements if not statement.holds()]


def failed_with(monkeypatch, check: Callable, faults: dict[str, Any], *arguments) -> list[str]:
    """Return the statements that fail when names of the check's module are replaced."""
    for name, fault in faults.items():
        monkeypatch.setattr(sys.modules[check.__module__], name, fault)
    return failed(check(*arguments))
