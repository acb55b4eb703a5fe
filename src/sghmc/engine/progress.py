"""Show the progress of a long run in a terminal or a notebook."""

import time
from typing import Any

_INSTANT_SECONDS = 1e-9
"""Least time that is divided by, in place of no time at all."""


class TerminalBar:
    """Progress bar in a terminal, by rich."""

    def __init__(self, console: Any, num_steps: int, num_done: int):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("sampling"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[health]}"),
            transient=True,
            console=console,
        )
        self.progress.start()
        self.task = self.progress.add_task(
            "", total=num_steps, completed=num_done, rate="", health=""
        )

    def update(self, num_done: int, num_failed: int, num_chains: int, num_steps: int) -> None:
        speed = self.progress.tasks[0].speed
        health = _health(num_failed, num_chains)
        self.progress.update(
            self.task,
            completed=num_done,
            total=num_steps,
            rate=f"{speed:,.0f} steps/s" if speed else "",
            health=f"[red]{health}" if num_failed else health,
        )

    def stop(self) -> None:
        self.progress.stop()


class NotebookBar:
    """Progress bar of the browser; rich's needs ipywidgets, which not every notebook has."""

    def __init__(self):
        from IPython import display  # pyright: ignore[reportMissingImports]

        self.html = display.HTML
        self.first: tuple[int, float] | None = None
        """Steps and time after the first block, most of which is compilation."""
        self.handle = display.display(self.html(""), display_id=True)

    def update(self, num_done: int, num_failed: int, num_chains: int, num_steps: int) -> None:
        bar = f'<progress value="{num_done}" max="{num_steps}"></progress>'
        parts = [f"{bar} {num_done / num_steps:.0%}"]
        if self.first is None:
            self.first = num_done, time.monotonic()
        else:
            speed = (num_done - self.first[0]) / max(
                time.monotonic() - self.first[1], _INSTANT_SECONDS
            )
            left = (num_steps - num_done) / max(speed, _INSTANT_SECONDS)
            parts += [f"{speed:,.0f} steps/s", f"{left:,.0f} s left"]
        self.handle.update(self.html(", ".join([*parts, _health(num_failed, num_chains)])))

    def stop(self) -> None:
        self.handle.update(self.html(""))


def _health(num_failed: int, num_chains: int) -> str:
    return f"{num_failed} of {num_chains} chains not finite" if num_failed else "all finite"
