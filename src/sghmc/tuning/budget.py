"""The seconds that a tuning may take, and a line that says what it is doing."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

DEFAULT_BUDGET = 120.0
"""Seconds. Most posteriors need a tenth of that."""


class BudgetError(TimeoutError):
    """Tuning has used its budget before there was anything to return."""


class Budget:
    """`stages` has the seconds of every stage so far; with `is_shown`, a terminal names it."""

    def __init__(self, seconds: float, is_shown: bool = False):
        self.seconds, self.is_shown = seconds, is_shown
        self.began = time.perf_counter()
        self.stages: dict[str, float] = {}
        self.words = ""
        self._line: Any = None

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    def check(self) -> None:
        """Raise when nothing is left."""
        if self.left < 0:
            doing = list(self.stages)[-1] if self.stages else "tuning"
            raise BudgetError(
                f"Tuning has taken its budget of {self.seconds:g} s ({doing}). Give more by "
                f"sghmc.tune(…, budget={4 * self.seconds:g}), start nearer the mode, or choose a "
                f"sampler yourself: sghmc.SGHMC(…) with Minibatch(…) needs no tuning to run."
            )

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What is done under this name, shown while it goes on."""
        began = time.perf_counter()
        self.stages.setdefault(name, 0.0)
        self.tell(name)
        try:
            yield
        finally:
            self.stages[name] += time.perf_counter() - began

    def tell(self, words: str) -> None:
        if not self.is_shown:
            return
        if self._line is None:
            from rich import get_console

            console = get_console()
            self.is_shown = console.is_terminal
            if not self.is_shown:
                return
            self._line = console.status(_Doing(self))
            self._line.start()
        self.words = words

    def __enter__(self) -> "Budget":
        return self

    def __exit__(self, *exception) -> None:
        if self._line is not None:
            self._line.stop()


class _Doing:
    """What a tuning does and for how long, as it is when the terminal's line is drawn again."""

    def __init__(self, budget: Budget):
        self.budget = budget

    def __rich__(self) -> str:
        budget = self.budget
        return f"tuning: {budget.words}, {budget.spent:.0f} s of at most {budget.seconds:g}"
