"""Ctrl-C and SIGTERM while a run, a fit or a tuning is on.

| | Ctrl-C | SIGTERM |
| --- | --- | --- |
| `sample`, while draws are made | returns the draws so far; at once, the second time | saves and \
ends with exit code 143 where there is a checkpoint |
| what is of use only when it is whole: fits, `tune`, `llc` | raises KeyboardInterrupt | ends |

A signal is noted, too. A KeyboardInterrupt that another library swallows, in a callback or while it
is imported, is raised again when control comes back.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import jax

from sghmc.core import runtime

# What a shell says of a process that SIGTERM ended: 128 and the signal's number.
_EXIT_CODE = 128 + signal.SIGTERM


class Interruption:
    """Notes signals until it is left.

    Patient, it has the run go on to the end of its block; the second signal raises all the same.
    Where it `is_whole`, or another one around it is, Ctrl-C leaves no part of the work.
    """

    _open: ClassVar[list["Interruption"]] = []

    def __init__(
        self, *, is_patient: bool = True, is_whole: bool = False, takes_sigterm: bool = False
    ):
        self.is_patient, self.is_whole, self.takes_sigterm = is_patient, is_whole, takes_sigterm
        self.noted, self.has_raised = 0, False
        """The number of the signal that came, SIGTERM before Ctrl-C; 0: none."""
        self._previous: dict[int, Any] = {}

    @property
    def happened(self) -> bool:
        # Handlers run in the main thread: a run on another one asks those that are open there.
        return self.noted > 0 or any(each.noted for each in self._open)

    def agreed(self) -> bool:
        """Return whether a signal came, to any process of the run; all return the same."""
        if runtime.is_multiprocess():
            self.noted = max(map(int, runtime.gather_texts(str(self.noted))))
        return self.happened

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread only; elsewhere there is nothing to catch.
        if threading.current_thread() is threading.main_thread():
            self.noted = self._open[-1].noted if self._open else 0
            signals = [signal.SIGINT]
            # A handler of the user's own, such as one that a cluster's library has set, stays.
            known = signal.getsignal(signal.SIGTERM)
            is_ours = isinstance(getattr(known, "__self__", None), Interruption)
            # jax.distributed handles SIGTERM below Python, but does not end the process.
            takes = self.takes_sigterm or (not self.is_patient and jax.process_count() > 1)
            if takes and (is_ours or known is signal.SIG_DFL):
                signals.append(signal.SIGTERM)
            self._previous = {each: signal.signal(each, self._handle) for each in signals}
            self._open.append(self)
        return self

    def _handle(self, signum: int, frame: Any) -> None:
        is_first = not self.happened
        for each in self._open:
            each.noted = max(each.noted, signum)
        if not (self.is_patient and is_first):
            self.has_raised = True
            if jax.process_count() > 1:  # the others do not know of it: nobody waits for them
                runtime.leave_at_exit(128 + signum)
            raise SystemExit(_EXIT_CODE) if signum == signal.SIGTERM else KeyboardInterrupt

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        is_whole = self.is_whole
        if self._previous:
            for each, previous in self._previous.items():
                signal.signal(each, previous)
            self._open.remove(self)
            is_whole = any(each.is_whole for each in (self, *self._open))
            if self.has_raised and kind is not None and issubclass(kind, Exception):
                # It was raised inside of a callback, which made an error of its own of it.
                raise KeyboardInterrupt from error
        if kind is not None or not self.happened:
            return  # something else has ended it, or nothing came
        if self.noted == signal.SIGTERM:
            raise SystemExit(_EXIT_CODE)
        if is_whole:
            raise KeyboardInterrupt


@contextlib.contextmanager
def whole_or_nothing() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C, wherever it comes: a part of this work is of no use."""
    with Interruption(is_patient=False, is_whole=True):
        yield
