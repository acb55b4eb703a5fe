"""The budget of a tuning: counted operations by default, seconds if they are asked for.

Counted costs are functions of model, data and settings alone, so that the same key makes the same
choices on every machine of a kind, idle or under load.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any, Self

import jax

from sghmc.core import runtime
from sghmc.core.operations import count_operations, shapes_of
from sghmc.gradients import Gradient
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.samplers import Sampler
from sghmc.types import PyTree

# Limit of a tuning if no budget is given: the counted cost of so many seconds.
DEFAULT_COUNTED_SECONDS = 120.0

# Seconds of a counted cost, for a chain among several on one core of a CPU: calibrated on the
# posteriors of `benchmarks/answer.py`.
_OPERATION_SECONDS, _ITERATION_SECONDS, _EQUATION_SECONDS = 1.1e-10, 1.5e-6, 3e-3
# Operations of an accelerator are so many times cheaper.
_ACCELERATOR_SPEED = 50.0
# Seconds of a step besides its rows: of one chain on a CPU, of all chains on an accelerator.
_STEP_SECONDS, _LAUNCH_SECONDS = 3e-6, 4e-5
# A row of a batch costs so many times a row of a pass.
GATHER_COST = 2.0
# A control variate evaluates every row of its batch twice.
_EVALUATIONS_PER_ROW = 2
# Trajectories of all chains before the draws of the exact engine.
WARM_UP_TRAJECTORIES = 800
# Share of a run's gradients that the search for its mode may take.
_MODE_SHARE = 1 / 5
# Walkers that search other modes take so much counted time, or this share of a search.
_WALK_SECONDS, _WALK_SHARE = 0.25, 1 / 8
# A pass in double precision, for one point, costs as much as so many of a chain among several.
_WIDE_PASSES = 4
# The rows of two small batches, from which the costs of a row and of the rest are told apart.
_FEW_ROWS, _MORE_ROWS = 8, 16


class BudgetError(TimeoutError):
    """Tuning has used its budget before there was anything to return."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Counted costs of a model, in seconds of a nominal machine: equal in every call.

    | field | meaning |
    | --- | --- |
    | `compiling` | of a program that evaluates the gradient |
    | `of_pass` | of a gradient over all data, for one chain |
    | `of_row` | what one row adds to a gradient |
    | `of_step` | of a step besides its gradient |
    """

    compiling: float = 0.0
    of_pass: float = 0.0
    of_row: float = 0.0
    of_step: float = _STEP_SECONDS

    @classmethod
    def count(cls, target: Target, like: PyTree, num_chains: int = 1) -> Self:
        """Count the operations of a target's gradient at parameters of these shapes."""
        like, gradient = shapes_of(like), jax.value_and_grad
        of_step = _LAUNCH_SECONDS / num_chains if runtime.has_accelerator() else _STEP_SECONDS
        speed = _ACCELERATOR_SPEED if runtime.has_accelerator() else 1.0
        if not isinstance(target, AbstractPosterior):
            found = count_operations(gradient(target.potential), like)
            return cls(found.equations * _EQUATION_SECONDS, _seconds(found) / speed, 0.0, of_step)

        def at(num_rows: int) -> Any:
            rows = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((num_rows, *leaf.shape), leaf.dtype),
                target.example,
            )
            return count_operations(gradient(target.estimate), like, rows)

        few, more = at(_FEW_ROWS), at(_MORE_ROWS)
        of_row = (_seconds(more) - _seconds(few)) / (_MORE_ROWS - _FEW_ROWS) / speed
        rest = _seconds(few) / speed - _FEW_ROWS * of_row
        count = int(target.num_examples)
        return cls(more.equations * _EQUATION_SECONDS, rest + count * of_row, of_row, of_step)

    def of_steps(self, sampler: Sampler, gradient: Gradient, num_steps: int) -> float:
        """Return the cost of so many steps of all chains together."""
        per_step = 1 + int(getattr(sampler, "num_steps", 0))  # HMC's step is a trajectory
        of_gradient = self.of_pass
        if gradient.batch_rows is not None:
            of_gradient = _EVALUATIONS_PER_ROW * gradient.batch_rows * GATHER_COST * self.of_row
        return num_steps * per_step * (self.of_step + of_gradient)


def _seconds(found: Any) -> float:
    return _OPERATION_SECONDS * found.elementary + _ITERATION_SECONDS * found.iterations


class Budget:
    """The budget of a tuning, with a status line in the terminal.

    Without `seconds` costs are counted (`spend`), and the limit is the same on every machine; with
    them the clock decides, and so results depend on the machine and on what else it does. `stages`
    has the seconds of every stage so far; with `is_shown` a terminal names the stage.
    """

    def __init__(self, seconds: float | None = None, is_shown: bool = False):
        self.seconds, self.is_shown = seconds, is_shown
        self.began = time.perf_counter()
        self.counted = 0.0
        self.stages: dict[str, float] = {}
        self.doing = "tuning"
        self._line: Any = None

    def __str__(self) -> str:
        if self.seconds is None:
            return f"counted work of {DEFAULT_COUNTED_SECONDS:g} s"
        return f"budget of {self.seconds:g} s"

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning, by the clock."""
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        """Return what is left, in seconds of the clock or of counted work."""
        if self.seconds is None:
            return DEFAULT_COUNTED_SECONDS - self.counted
        return self.seconds - self.spent

    def spend(self, cost: float) -> None:
        """Count a cost, in seconds of the nominal machine."""
        self.counted += cost

    def check(self) -> None:
        """Raise `BudgetError` if nothing is left."""
        if self.left < 0:
            stage = list(self.stages)[-1] if self.stages else "tuning"
            raise BudgetError(
                f"Tuning has taken its {self} ({stage}). Give more by "
                f"until=sghmc.Until(seconds={4 * (self.seconds or DEFAULT_COUNTED_SECONDS):g}), "
                f"start nearer the mode, or choose a sampler yourself: sghmc.SGHMC(…) with "
                f"Minibatch(…) needs no tuning to run."
            )

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what is done inside under this name, and show the name."""
        began = time.perf_counter()
        self.stages.setdefault(name, 0.0)
        self.show(name)
        try:
            yield
        finally:
            self.stages[name] += time.perf_counter() - began

    def show(self, doing: str) -> None:
        """Show in the terminal, if there is one, what is being done."""
        self.doing = doing
        if self.is_shown and self._line is None:
            from rich import get_console

            console = get_console()
            self.is_shown = console.is_terminal
            if self.is_shown:
                self._line = console.status(_StatusLine(self))
                self._line.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._line is not None:
            self._line.stop()


class _StatusLine:
    """Status line for rich, re-rendered with the elapsed seconds."""

    def __init__(self, budget: Budget):
        self.budget = budget

    def __rich__(self) -> str:
        budget = self.budget
        limit = "" if budget.seconds is None else f" of at most {budget.seconds:g}"
        return f"tuning: {budget.doing}, {budget.spent:.0f} s{limit}"


class ModeAllowance:
    """The gradients that a search for modes may take: a fifth of those of an exact run.

    `num_gradients` is that of a trajectory, `num_draws` that of all chains of the run together.
    """

    def __init__(self, budget: Budget, costs: Costs, num_gradients: int, num_draws: int):
        self.budget, self.of_gradient = budget, _WIDE_PASSES * costs.of_pass
        total = (WARM_UP_TRAJECTORIES + num_draws) * num_gradients
        self.num_spent, self.num_allowed = 0, math.ceil(_MODE_SHARE * total)

    def spend(self, count: int) -> None:
        """Count so many gradients over all data; raise `BudgetError` if nothing is left."""
        self.num_spent += count
        self.budget.spend(count * self.of_gradient)
        self.budget.check()

    def goes_on(self) -> bool:
        return self.num_spent < self.num_allowed

    @property
    def num_for_walks(self) -> int:
        """Return how many gradients a search for other modes may take, after the first mode."""
        cheap = _WALK_SECONDS / max(self.of_gradient, 1e-9)
        share = _WALK_SHARE * self.num_allowed
        return int(min(self.num_allowed - self.num_spent, max(cheap, share)))
