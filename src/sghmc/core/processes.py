"""The processes of one run: one leads and writes, all agree, none waits for one that is gone."""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from sghmc.types import PyTree

_LONGEST = 2000
"""Characters of the leader's error that the others are told."""
_SIGNS = ("gloo", "nccl", "coordination service", "heartbeat", "connection reset", "unavailable:")
"""Words in the error of a collective operation whose other side is gone."""


class LostProcessError(RuntimeError):
    """Another process of the run ended, or cannot be reached."""


class ProcessError(RuntimeError):
    """Process 0 of the run failed; the message is its own."""


def are_many() -> bool:
    return jax.process_count() > 1


def is_leader() -> bool:
    return jax.process_index() == 0


def avoid_preemption() -> None:
    """Ask the system not to preempt a thread of this process when another one wakes.

    gloo has a thread that wakes when numbers come in, and then polls until the thread that adds
    them up lets go of a lock. Where the first has interrupted the second, on a core of both, it
    does so for a whole time slice: 4 ms for a sum that takes 0.14 ms.
    """
    if not are_many() or jax.default_backend() != "cpu" or not hasattr(os, "SCHED_BATCH"):
        return
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def broadcast(numbers: Any) -> np.ndarray:
    """The leader's numbers, in every process."""
    numbers = np.asarray(numbers)
    if not are_many():
        return numbers
    from jax.experimental import multihost_utils

    with detect_lost_peer():
        return np.asarray(multihost_utils.broadcast_one_to_all(numbers))


def broadcast_tree(tree: PyTree) -> PyTree:
    """The leader's arrays; the others give the same structure, shapes and dtypes."""
    return jax.tree.map(lambda leaf: broadcast(leaf).astype(leaf.dtype), tree)


def on_leader(function: Callable[[], Any]) -> Any:
    """What `function` returns on the leader, None elsewhere; where it fails, all processes do."""
    outcome, fault = None, None
    if is_leader():
        try:
            outcome = function()
        except Exception as error:
            fault = error
    if are_many():
        text = "" if fault is None else f"{type(fault).__name__}: {fault}"
        room = np.zeros(_LONGEST, np.uint8)
        written = np.frombuffer(text.encode()[:_LONGEST], np.uint8)
        room[: len(written)] = written
        heard = broadcast(room).tobytes().rstrip(b"\0").decode(errors="replace")
        if heard and fault is None:
            raise ProcessError(f"Process 0 of the run failed. It says: {heard}")
    if fault is not None:
        raise fault
    return outcome


def fail_together(fault: Exception | None, what: str) -> None:
    """Raise this process's fault; in the others, say which process has one."""
    if are_many():
        from jax.experimental import multihost_utils

        with detect_lost_peer():
            flags = multihost_utils.process_allgather(np.asarray(fault is not None))
        failed = np.flatnonzero(flags)
        if fault is None and len(failed):
            raise ProcessError(
                f"{what} failed in process {failed[0]} of {jax.process_count()}: its own output "
                f"says why."
            )
    if fault is not None:
        raise fault


def fetch(tree: PyTree) -> PyTree:
    """Arrays on the host, in every process, wherever their parts are."""
    if not are_many():
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    def of_leaf(leaf):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    with detect_lost_peer():
        return jax.tree.map(of_leaf, tree)


@contextlib.contextmanager
def detect_lost_peer() -> Iterator[None]:
    """Turns the error of an operation whose other side is gone into `LostProcessError`."""
    try:
        yield
    except Exception as error:  # which type, differs from one kind of network to the next
        text = str(error).lower()
        if not are_many() or not any(sign in text for sign in _SIGNS):
            raise
        message = (
            f"Process {jax.process_index()} of {jax.process_count()} has lost another process of "
            f"the run, and ends: {str(error).splitlines()[0][:200]}. Start the run again on the "
            f"processes that are left, with the same arguments: with a checkpoint it goes on from "
            f"its last save."
        )
        # At once: jax may end this process before anything is said of an exception.
        print(f"sghmc: {message}", file=sys.stderr, flush=True)
        atexit.register(_leave)
        raise LostProcessError(message) from error


def _leave() -> None:
    """End at once: jax would wait for the lost process first, and then end in a stack of C++."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
