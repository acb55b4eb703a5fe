"""What the processes of a run say to one another, with jax's own messages written by the test."""

import os
import sys
import types

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.core import runtime


@pytest.fixture
def many(monkeypatch):
    """Makes this process number `index` of three, which say what the test has them say."""
    utils = types.ModuleType("jax.experimental.multihost_utils")
    monkeypatch.setitem(sys.modules, "jax.experimental.multihost_utils", utils)
    monkeypatch.setattr(jax.experimental, "multihost_utils", utils, raising=False)
    utils.broadcast_one_to_all = lambda numbers: numbers  # pyright: ignore[reportAttributeAccessIssue]

    def set_index(index, **functions):
        monkeypatch.setattr(jax, "process_count", lambda: 3)
        monkeypatch.setattr(jax, "process_index", lambda: index)
        for name, function in functions.items():
            setattr(utils, name, function)

    return set_index


def test_one_process_leads_itself_and_hears_itself():
    assert not runtime.is_multiprocess()
    assert runtime.is_leader()
    assert runtime.broadcast([3, 4]).tolist() == [3, 4]
    assert runtime.on_leader(lambda: 7) == 7
    with pytest.raises(KeyError, match="mine"):
        runtime.on_leader(lambda: {}["mine"])
    assert runtime.together(lambda: 8, "Reading") == 8
    with pytest.raises(KeyError, match="gone"):
        runtime.together(lambda: {}["gone"], "Reading")
    fetched = runtime.fetch({"a": jnp.arange(3)})
    assert isinstance(fetched["a"], np.ndarray)


def test_others_hear_the_leaders_numbers_in_their_own_types(many):
    many(1, broadcast_one_to_all=lambda numbers: np.asarray(numbers, np.float64) + 0.0)
    assert runtime.is_multiprocess()
    assert not runtime.is_leader()
    heard = runtime.broadcast_tree({"a": np.arange(3, dtype=np.int32)})
    assert heard["a"].dtype == np.int32


def test_a_function_runs_on_the_leader_alone(many):
    many(0, process_allgather=others("", ""))
    assert runtime.on_leader(lambda: 7) == 7
    assert runtime.on_leader(runtime.is_multiprocess) is False, "it would wait for the others"
    assert runtime.is_multiprocess()
    many(2, process_allgather=others("", ""))
    assert runtime.on_leader(lambda: 7) is None
    many(0, process_allgather=others("", ""))
    assert runtime.text_of_leader(lambda: "mine") == "mine"


def others(*texts, first=None):
    """Answers of jax's gathering: what this process sent, or `first`, and texts of the others."""
    said = [text.encode() for text in ((*texts,) if first is None else (first, *texts[:-1], ""))]

    def gather(sent):
        mine = [sent] if first is None else []
        if sent.ndim == 0:
            return np.array([*mine, *map(len, said)])
        rows = [np.frombuffer(text.ljust(len(sent), b"\0"), np.uint8) for text in said]
        return np.array([*mine, *rows])

    return gather


def test_where_the_leader_fails_all_do_and_say_what_it_said(many):
    many(0, process_allgather=others("", ""))
    with pytest.raises(ValueError, match="too ö much"):
        runtime.on_leader(lambda: int("too ö much"))
    many(1, process_allgather=others("", "", first="ValueError: too ö much"))
    with pytest.raises(
        runtime.ProcessError, match=r"in process 0 of 3. It says: ValueError: too ö much"
    ):
        runtime.on_leader(lambda: None)


def test_processes_hear_each_others_texts(many):
    assert runtime.gather_texts("alone") == ["alone"]
    many(0, process_allgather=others("", "the third's ö"))
    assert runtime.gather_texts("mine") == ["mine", "", "the third's ö"]
    many(0, process_allgather=others("", ""))
    assert runtime.gather_texts("") == ["", "", ""]


def test_a_fault_of_one_process_is_told_in_the_others(many):
    many(0, process_allgather=others("", "DataError: x.npy is gone"))
    message = r"Reading failed in process 2 of 3. It says: DataError: x.npy is gone"
    with pytest.raises(runtime.ProcessError, match=message):
        runtime.together(lambda: 8, "Reading")
    with pytest.raises(KeyError, match="mine"):
        runtime.together(lambda: {}["mine"], "Reading")
    many(0, process_allgather=others("", ""))
    assert runtime.together(lambda: 8, "Reading") == 8


def test_arrays_that_lie_elsewhere_are_gathered(many, monkeypatch):
    many(0, process_allgather=lambda leaf, tiled: ("gathered", tiled))

    class Elsewhere:
        is_fully_addressable = False

    class Here(Elsewhere):
        is_fully_addressable = True

        def __array__(self, dtype=None, copy=None):
            return np.arange(2)

    monkeypatch.setattr(jax, "Array", Elsewhere)  # none of several devices is to be had here
    found = runtime.fetch({"elsewhere": Elsewhere(), "here": Here(), "plain": 5})
    assert found["elsewhere"] == ("gathered", True)
    assert found["here"].tolist() == [0, 1]
    assert found["plain"] == 5


@pytest.mark.parametrize(
    "sign", ["Gloo all-reduce failed", "NCCL", "UNAVAILABLE: x", "heartbeat timeout"]
)
def test_a_lost_process_is_told_from_other_errors(sign, many, monkeypatch, capsys):
    registered = []
    monkeypatch.setattr(runtime.atexit, "register", lambda *call: registered.append(call))
    many(1)
    message = r"Process 1 of 3 has lost another process .* ends: .*Start the run again"
    with pytest.raises(runtime.LostProcessError, match=message), runtime.detect_lost_peer():
        raise RuntimeError(f"{sign}\nand more")
    assert "sghmc: Process 1 of 3" in capsys.readouterr().err
    assert registered == [(runtime._leave, 1)]
    with pytest.raises(RuntimeError, match="a bug of mine"), runtime.detect_lost_peer():
        raise RuntimeError("a bug of mine")
    assert len(registered) == 1


def test_alone_no_process_can_be_lost():
    with pytest.raises(RuntimeError, match=r"^gloo$"), runtime.detect_lost_peer():
        raise RuntimeError("gloo")


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has this")
def test_threads_of_several_processes_are_not_preempted(many, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda thread, kind, _: asked.update({thread: kind})
    )
    many(0)
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_OTHER)
    runtime.avoid_preemption()
    assert asked[os.getpid()] == os.SCHED_BATCH
    asked.clear()
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_FIFO)
    runtime.avoid_preemption()
    assert asked == {}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_OTHER)
    runtime.avoid_preemption()
    assert asked == {}
