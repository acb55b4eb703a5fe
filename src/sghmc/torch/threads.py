"""Tasks side by side, by as many threads as torch has."""

# pyright: reportPrivateImportUsage=false

import collections
import concurrent.futures
import functools
import os
from collections.abc import Callable, Iterable

import torch


def run(tasks: Iterable[Callable[[], None]]) -> None:
    """Do all tasks, each in one thread; what one of them raises is raised once all have ended."""
    left = collections.deque(tasks)
    count = min(len(left), torch.get_num_threads())
    others = [_pool().submit(_work, left) for _ in range(count - 1)]
    try:
        _work(left)
    finally:
        # One that has not begun has nothing left to do: torch's own threads, which wait for work
        # without sleeping, may keep it from a core for longer than all tasks take.
        for other in others:
            if not other.cancel():
                other.result()


def _work(left: collections.deque[Callable[[], None]]) -> None:
    with torch.no_grad():  # a thread has its own mind about that
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "sghmc-pieces")


if hasattr(os, "register_at_fork"):  # threads stay behind when a process forks
    os.register_at_fork(after_in_child=_pool.cache_clear)
