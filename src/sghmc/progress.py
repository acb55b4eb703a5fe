"""The terminal's side of a long run: a progress bar, and Ctrl-C between blocks."""

import signal
import threading
from typing import Any

import numpy as np

from sghmc.program import NEVER


class Bar:
    """Steps a second, time left, and how many chains are sound. Costs nothing inside the loop."""

    def __init__(self, is_shown: bool, num_steps: int, num_done: int = 0):
        self.is_shown, self.num_steps, self.num_done = is_shown, num_steps, num_done
        self.progress: Any = None

    def __enter__(self) -> "Bar":
        if self.is_shown:
            from rich import get_console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            console = get_console()
            self.progress = Progress(
                TextColumn("sampling"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[health]}"),
                transient=True,
                disable=not (console.is_terminal or console.is_jupyter),
            )
            self.progress.start()
            self.task = self.progress.add_task(
                "", total=self.num_steps, completed=self.num_done, rate="", health=""
            )
        return self

    def update(self, num_done: int, failed_at: np.ndarray) -> None:
        if self.progress is None:
            return
        speed = self.progress.tasks[0].speed
        failed = int((failed_at < NEVER).sum())
        self.progress.update(
            self.task,
            completed=num_done,
            rate=f"{speed:,.0f} steps/s" if speed else "",
            health=f"[red]{failed} of {len(failed_at)} chains not finite"
            if failed
            else "all finite",
        )

    def __exit__(self, *exception) -> None:
        if self.progress is not None:
            self.progress.stop()


class Interruption:
    """Ctrl-C asks the run to stop after the current block; a second one stops at once."""

    def __init__(self):
        self.happened = False
        self._previous: Any = None

    def __enter__(self) -> "Interruption":
        # Python delivers signals to the main thread only; elsewhere there is nothing to catch.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, signum, frame) -> None:
        self.happened = True
        signal.signal(signal.SIGINT, self._previous)

    def __exit__(self, *exception) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
