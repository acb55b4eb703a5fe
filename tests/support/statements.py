"""Statements of theorems under planted faults."""

from types import ModuleType
from typing import Any

from sghmc import theory
from sghmc.paper.theorems.statement import Checked


class ReplacedTheory:
    """`theory` with some of its functions replaced."""

    def __init__(self, **replaced: Any):
        self.replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self.replaced.get(name, getattr(theory, name))


def failed(checked: Checked) -> list[str]:
    return [statement.words for statement in checked.statements if not statement.holds()]


def failed_with(monkeypatch, module: ModuleType, faults: dict[str, Any], *arguments) -> list[str]:
    """The statements that do not hold when a module's names stand for something else."""
    for name, fault in faults.items():
        monkeypatch.setattr(module, name, fault)
    return failed(module.check(*arguments))
