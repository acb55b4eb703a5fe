"""Programs that take turns, and what their times say of each other."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Program = Callable[[], float]
"""Runs once and returns seconds a step (of one chain, where a workload says so)."""


class Bar(NamedTuple):
    """What `program` may take at most, in times of `base`."""

    program: str
    base: str
    limit: float


class Table(NamedTuple):
    """Seconds a step of programs that took turns; a row, a program."""

    title: str
    unit: str
    base: str
    seconds: dict[str, list[float]]
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()

    def middle(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, base: str) -> float:
        """The median of the ratios in one turn: the machine's moods cancel."""
        turns = zip(self.seconds[name], self.seconds[base], strict=True)
        return statistics.median(mine / theirs for mine, theirs in turns)

    def judged(self) -> list[dict[str, Any]]:
        return [
            {
                "title": self.title,
                "what": f"{bar.program} / {bar.base}",
                "measured": (measured := self.ratio(bar.program, bar.base)),
                "limit": bar.limit,
                "is_met": measured <= bar.limit,
            }
            for bar in self.bars
            if bar.program in self.seconds and bar.base in self.seconds
        ]

    def markdown(self) -> str:
        scale = {"ns": 1e9, "µs": 1e6, "ms": 1e3, "s": 1.0}[self.unit]
        has_base = self.base in self.seconds
        lines = [
            f"### {self.title}",
            "",
            f"| program | {self.unit}, median | lowest to highest | × {self.base} |",
            "| --- | ---: | ---: | ---: |",
        ]
        for name, seconds in self.seconds.items():
            low, high = scale * min(seconds), scale * max(seconds)
            ratio = f"{self.ratio(name, self.base):.3g}" if has_base else ""
            lines.append(
                f"| {name} | {scale * self.middle(name):,.4g} | {low:,.4g} to {high:,.4g} "
                f"| {ratio} |"
            )
        return "\n".join([*lines, "", *self.notes])


def take_turns(programs: dict[str, Program], repeats: int) -> dict[str, list[float]]:
    """Each once to compile and warm up, then all in turn, `repeats` times."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats + 1):
        for name, run in programs.items():
            measured = run()
            if turn:
                seconds[name].append(measured)
    return seconds


def clocked(work: Callable[[], Any], num_steps: int) -> Program:
    """Seconds a step of `work`, which ends when its result is there."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) / num_steps

    return run
