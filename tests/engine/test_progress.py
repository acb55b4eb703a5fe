"""Progress in a terminal and in a notebook."""

import sys
import types

import numpy as np
import pytest
import rich.console

from sghmc.engine.chain import NEVER
from sghmc.engine.driver import Bar

FAILED = np.array([NEVER, 7])


@pytest.fixture
def notebook(monkeypatch):
    """Stands in for a notebook's frontend: what each display shows, one after the other."""
    shown: list[str] = []
    handle = types.SimpleNamespace(update=shown.append)
    display = types.ModuleType("IPython.display")
    display.HTML = str  # pyright: ignore[reportAttributeAccessIssue]
    display.display = lambda content, display_id: handle  # pyright: ignore[reportAttributeAccessIssue]
    ipython = types.ModuleType("IPython")
    ipython.display = display  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("rich.get_console", lambda: rich.console.Console(force_jupyter=True))
    return shown


def test_a_notebook_has_one_bar_that_goes_away(notebook):
    with Bar(True, num_steps=100, num_done=20) as bar:
        bar.update(60, np.array([NEVER, NEVER]))
        bar.update(80, FAILED)
    first, second, last = notebook
    assert '<progress value="60" max="100">' in first
    assert "60%" in first
    assert "all finite" in first
    assert "1 of 2 chains not finite" in second
    assert "steps/s" in second
    assert last == ""


def test_a_terminal_has_a_bar_and_a_pipe_has_none(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")  # one that can do more than print
    for is_terminal in (True, False):
        console = rich.console.Console(force_terminal=is_terminal, width=80)
        monkeypatch.setattr("rich.get_console", lambda console=console: console)
        with Bar(True, num_steps=100) as bar:
            bar.update(60, FAILED)
        assert ("sampling" in capsys.readouterr().out) is is_terminal


def test_nothing_is_shown_unasked(notebook):
    with Bar(False, num_steps=100) as bar:
        bar.update(60, FAILED)
    assert notebook == []
