"""Work that goes on beside the run."""

import concurrent.futures
from collections.abc import Callable
from typing import Any


class Background:
    """A thread that does one thing at a time, while the caller goes on."""

    def __init__(self):
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "sghmc-draws")
        self._pending: concurrent.futures.Future | None = None

    def do(self, work: Callable, *arguments: Any) -> None:
        self.wait()  # so that no more than these arguments are held
        self._pending = self._thread.submit(work, *arguments)

    def wait(self) -> None:
        """Until all is done; raises what went wrong."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self._thread.shutdown()
