"""An end to every tuning."""

import pytest
import rich
from rich.console import Console

from sghmc.tuning.budget import Budget, BudgetError


def test_a_budget_that_is_spent_names_the_remedy():
    budget = Budget(1e-9)
    with (
        budget.stage("mode"),
        pytest.raises(BudgetError, match=r"1e-09 s \(mode\).*tune\(…, budget=4e-09\).*SGHMC"),
    ):
        budget.check()
    Budget(60.0).check()


def test_seconds_are_kept_by_stage():
    budget = Budget(60.0)
    for name in ("mode", "pilot runs", "mode"):
        with budget.stage(name):
            pass
    assert list(budget.stages) == ["mode", "pilot runs"]
    assert all(0 <= seconds < 60 for seconds in budget.stages.values())
    assert 0 < budget.spent < 60
    assert budget.left == pytest.approx(60 - budget.spent, abs=0.1)


def test_a_terminal_is_told_what_is_done_and_for_how_long(monkeypatch):
    console = Console(force_terminal=True, width=80, record=True)
    monkeypatch.setattr(rich, "get_console", lambda: console)
    with Budget(90.0, is_shown=True) as budget, budget.stage("mode"):
        console.print(budget._line.renderable)
        budget.tell("pilot runs, number 3")
        console.print(budget._line.renderable)
    shown = console.export_text()
    assert "tuning: mode, 0 s of at most 90" in shown
    assert "tuning: pilot runs, number 3, 0 s of at most 90" in shown
