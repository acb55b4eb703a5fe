"""The host of a run: how much it asks for at a time, what it says of failures, when it saves."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from marked import MarkedKernel
from sghmc.engine import driver, run
from sghmc.engine.chain import NEVER
from sghmc.engine.driver import Driver, StoredDraws, capacity_for
from sghmc.engine.layout import DrawInfo, DrawRecord, Layout
from sghmc.engine.options import RunOptions
from sghmc.gradients.noise import RunningNoise
from sghmc.results.samples import Growth
from sghmc.results.until import Watch


def record(shape, dtype=jnp.float32) -> DrawRecord:
    kept = jax.ShapeDtypeStruct(shape, dtype)
    return DrawRecord(kept, None, None, DrawInfo(None, None, None, None, None))  # pyright: ignore


def test_a_block_holds_as_many_draws_as_bytes_or_work_allow():
    small = Layout.of(jnp.zeros(1000), 1)
    assert capacity_for(record((1000,)), small) == 2**23 // 4000
    assert capacity_for(record((1000,), jnp.bfloat16), small) == 2**23 // 2000
    assert capacity_for(record((2**24,)), small) == 1
    # Of a large model that keeps little: 2³⁰ parameters of all draws, or 1,024 draws.
    large = Layout.of(jax.ShapeDtypeStruct((2**18,), jnp.float32), 1)
    assert capacity_for(record(()), large) == 2**12
    huge = Layout.of(jax.ShapeDtypeStruct((2**25,), jnp.float32), 1)
    assert capacity_for(record(()), huge) == 2**10


def test_a_run_that_has_started_has_draws_with_all_axes_but_no_draw():
    target, options = sghmc.Potential(lambda theta: jnp.sum(theta**2)), RunOptions(num_chains=4)
    sampler, key = sghmc.SGHMC(0.1, friction=1.0), jax.random.key(0)
    parts = run.checked(key, target, sampler, jnp.zeros((2, 3)), options)
    spec = run.prepared(parts, key, target, options)
    made = Driver(spec, parts.positions, parts.is_kept, None, None, None, parts.place)
    made.start()
    found = made._samples()
    assert found.positions.shape == (4, 0, 2, 3)
    assert found.info.is_finite.shape == (4, 0)
    assert found.clock is not None
    assert found.clock.shape == (0,)


def bare(**parts) -> Any:
    """A host with nothing but what a test gives it."""
    made = Driver.__new__(Driver)
    usual = {"folder": None, "reader": None, "capacity": 100, "done": 0, "has_warned": False}
    usual |= {"watch": Watch(None, 4, ()), "store": types.SimpleNamespace(num_kept=0)}
    usual["blocking"] = types.SimpleNamespace(burnin="kept")
    for name, value in (usual | parts).items():
        setattr(made, name, value)
    return made


def test_the_first_draw_that_is_not_finite_tells_its_last_step():
    is_finite = np.array([[True, True, True], [True, False, False], [False, True, True]])
    records = DrawRecord(np.zeros((3, 3)), None, None, DrawInfo(None, None, None, None, is_finite))  # pyright: ignore
    carry = types.SimpleNamespace(failed_at=jnp.full(3, NEVER, jnp.int32))
    place = types.SimpleNamespace(
        advance=lambda *_, capacity: (carry, records), fetch_records=lambda layout, records: records
    )
    spec, stored = types.SimpleNamespace(thinning=4, layout=None), []
    made = bare(
        done=10, began=0.0, place=place, spec=spec, carry=carry,
        store=types.SimpleNamespace(append=stored.append),
    )  # fmt: skip
    assert made._advance(3, True).tolist() == [NEVER, (11 + 1) * 4 - 1, (10 + 1) * 4 - 1]
    assert made.done == 13
    assert stored[0].clock.shape == (1, 3)


def test_growth_is_told_in_kept_draws():
    reader: Any = types.SimpleNamespace(growth=[Growth(3, 10, 20), Growth(6, 20, 30)])
    info = DrawInfo(None, None, None, None, np.ones((1, 3), bool))  # pyright: ignore
    draws = StoredDraws(np.zeros((1, 3)), None, None, info, np.zeros((1, 3)))
    made = bare(
        is_kept=np.array([False, False, True, True, False, True]), reader=reader, done=6,
        store=types.SimpleNamespace(draws=lambda: draws), carry=types.SimpleNamespace(sums=None),
        spec=types.SimpleNamespace(layout=None, thinning=1), began=0.0, startup_seconds=0.0,
        origin=None,
    )  # fmt: skip
    assert made._samples().growth == (Growth(1, 10, 20), Growth(3, 20, 30))
    made.reader = None
    assert made._samples().growth == ()


def test_how_many_draws_may_be_made_before_the_host_looks_up():
    changes = np.array([5, 30, 1000])
    assert bare(changes=changes, done=0)._num_possible(False) == 5
    assert bare(changes=changes, done=5)._num_possible(True) == 25
    assert bare(changes=changes, done=5, capacity=7)._num_possible(True) == 7
    assert bare(changes=changes, done=30, capacity=7)._num_possible(False) == 970
    folder = types.SimpleNamespace(draws_until_check=lambda done: 100 - done)
    assert bare(changes=changes, done=40, folder=folder)._num_possible(True) == 60


def test_a_reader_says_how_far_its_rows_reach():
    asked = []

    def spec_at(draw):
        asked.append(draw)
        return "run with rows", 12

    place = types.SimpleNamespace(place_spec=lambda spec: f"{spec}, placed")
    reader = types.SimpleNamespace(spec_at=spec_at)
    made = bare(changes=np.array([1000]), done=9, reader=reader, place=place)
    assert made._num_possible(True) == 3
    assert asked == [9]
    assert made.spec == "run with rows, placed"


def noise(failed_at):
    numbers = jnp.asarray([8.0, 3.0]), jnp.asarray([2.0, 2.0])
    return RunningNoise(jnp.zeros(2), jnp.zeros(2), jnp.asarray(failed_at, jnp.int32), *numbers)


def judging(failed_at, **parts):
    kernel = MarkedKernel(estimate=sghmc.EmpiricalFisher())
    carry = types.SimpleNamespace(noise=None if failed_at is None else noise(failed_at))
    return bare(carry=carry, spec=types.SimpleNamespace(kernel=kernel), **parts)


def test_too_much_noise_is_said_once_and_only_where_there_is():
    judging([NEVER] * 2)._check_noise(True)
    made = judging([NEVER, 7])
    with pytest.warns(UserWarning, match="in chain 1 from step 7 on"):
        made._check_noise(False)
    assert made.has_warned
    with pytest.raises(sghmc.GradientNoiseError, match=r"from step 7 on \(1 of 2 chains\)"):
        judging([NEVER, 7], _lasting=lambda: None)._check_noise(True)


def test_a_save_has_what_a_run_goes_on_from():
    saved = []
    folder: Any = types.SimpleNamespace(save=saved.append)
    place = types.SimpleNamespace(fetch_state=lambda layout, carry: (layout, carry))
    made = bare(
        done=12, began=driver.time.perf_counter() - 50, startup_seconds=2.5, place=place,
        spec=types.SimpleNamespace(layout="layout"), carry="carry",
        reader=types.SimpleNamespace(sizes=[(0, 9)]),
    )  # fmt: skip
    made._save(folder)
    (save,) = saved
    assert (save.done, save.state, save.startup_seconds) == (12, ("layout", "carry"), 2.5)
    assert save.seconds == pytest.approx(50, abs=5)
    assert save.sizes == [(0, 9)]
    assert made.num_saved == 12
