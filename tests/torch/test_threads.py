# ruff: noqa: E402
"""All tasks are done, whichever thread is free; nobody waits for one that never began."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import pieces


@pytest.fixture(params=[1, 3])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_task_is_done_once(num_threads):
    done = []
    pieces.run_in_threads(lambda i=i: done.append(i) for i in range(20))
    assert sorted(done) == list(range(20))


def test_tasks_are_side_by_side_and_without_gradients():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    barrier, modes = threading.Barrier(2, timeout=30), []

    def task():
        barrier.wait()
        modes.append(torch.is_grad_enabled())

    try:
        pieces.run_in_threads([task, task])
    finally:
        torch.set_num_threads(before)
    assert modes == [False, False]


def test_nobody_waits_for_a_thread_that_never_began(monkeypatch):
    """All threads of the pool are busy: the tasks are done without them."""
    before, free = torch.get_num_threads(), threading.Event()
    pool = pieces._pool()
    for _ in range(pool._max_workers):
        pool.submit(free.wait, 60)
    torch.set_num_threads(2)
    done = []
    try:
        pieces.run_in_threads([lambda: done.append(0), lambda: done.append(1)])
        assert not free.is_set()
    finally:
        free.set()
        torch.set_num_threads(before)
    assert done == [0, 1]


def test_an_error_is_raised_after_all_have_ended(num_threads):
    def fail():
        raise ArithmeticError

    done = []
    with pytest.raises(ArithmeticError):
        pieces.run_in_threads([lambda: done.append(0), fail])
    assert done == [0]
