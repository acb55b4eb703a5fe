"""Into which loops a run is cut: the numbers of a plan, case by case, by hand."""

import types
from typing import Any

import jax.numpy as jnp
import pytest

from marked import LazyMarkedKernel, MarkedKernel
from sghmc.engine import chain
from sghmc.engine.chain import Blocking
from sghmc.engine.layout import Layout


def program(
    size=2, num_chains=1, thinning=1, gibbs=0, renew=None, fisher=0, adapt=0, is_lazy=False,
    num_gradients=1, has_info=True, **functions: Any
):  # fmt: skip
    def every(number) -> Any:
        return types.SimpleNamespace(every=number) if number else None

    kind = LazyMarkedKernel if is_lazy else MarkedKernel
    kernel = kind(estimate=every(fisher), gradients=num_gradients)
    return types.SimpleNamespace(
        **{"keep": None, "averages": {}, "trace": None} | functions,
        kernel=kernel,
        layout=Layout.of(jnp.zeros(size), num_chains),
        thinning=thinning,
        gibbs=every(gibbs),
        adapt=every(adapt),
        estimator=types.SimpleNamespace(renew_every=renew),
        has_info=has_info,
    )


def planned(num_normals=2, num_rows=3, capacity=100, must_watch=False, **parts) -> Blocking:
    made: Any = program(**parts)
    return Blocking.of(made, num_normals, num_rows, capacity, must_watch)


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr(chain.runtime, "has_accelerator", lambda: True)


def test_a_small_model_has_the_variates_of_many_draws_together():
    found = planned(num_normals=20, num_rows=12, thinning=7)
    assert found.draws_per_block == 65_536 // 32 // 7
    assert found.block_has_motion
    assert found.is_watched
    assert not found.is_padded
    assert found.burnin == "kept"
    assert not found.records_after


def test_a_model_is_small_where_eight_steps_fit_into_a_block():
    small, large = (planned(num_normals=n, num_rows=0) for n in (8192, 8193))
    assert (small.draws_per_block, small.block_has_motion) == (8, True)
    assert (large.draws_per_block, large.block_has_motion) == (0, False)
    assert small.burnin == "kept"
    assert large.burnin == "skipped"
    rows = planned(num_normals=8000, num_rows=193)
    assert rows.draws_per_block == 0


def test_no_variates_at_all_are_no_division_by_zero():
    assert planned(num_normals=0, num_rows=0).draws_per_block == 65_536


def test_updates_are_asked_for_at_steps_where_one_may_be_due():
    assert planned(thinning=12).period == 12
    assert planned(thinning=12, gibbs=8).period == 4
    assert planned(thinning=12, renew=10).period == 2
    assert planned(thinning=12, fisher=9).period == 3
    assert planned(thinning=12, gibbs=18, fisher=8).period == 2
    # An adaptation counts in a program of burn-in, and where all draws have one program.
    assert planned(thinning=12, adapt=9, capacity=0).period == 3
    assert planned(thinning=12, adapt=9, capacity=0).adapts
    assert planned(thinning=12, adapt=9, capacity=5).period == 12
    assert not planned(thinning=12, adapt=9, capacity=5).adapts
    large = planned(num_normals=10**6, thinning=12, adapt=9, capacity=5)
    assert (large.period, large.adapts) == (3, True)
    assert not planned(thinning=12, capacity=0).adapts


def test_a_block_of_a_large_model_has_the_rows_of_a_divisor_of_the_period():
    large: dict[str, Any] = {"num_normals": 10**6}
    # 1,048,576 // 100,000 = 10 steps at the most.
    assert planned(**large, num_rows=100_000, thinning=12).block_length == 6
    assert planned(**large, num_rows=100_000, thinning=4).block_length == 4
    assert planned(**large, num_rows=2_000_000, thinning=4).block_length == 1
    # A prime has no divisor but 1: the last block is cut short.
    assert planned(**large, num_rows=100_000, thinning=13).block_length == 10
    assert planned(**large, num_rows=0, thinning=13).block_length == 13


def test_on_an_accelerator_blocks_are_whole(accelerator):
    prime = planned(num_normals=10**6, num_rows=100_000, thinning=13)
    assert prime.block_length == 1
    assert prime.is_padded
    assert prime.burnin == "apart"
    small = planned()
    assert (small.draws_per_block, small.burnin) == (512, "kept")
    assert planned(num_gradients=3).draws_per_block == 32
    assert planned(num_normals=6000, num_rows=0).draws_per_block == 10
    single = planned(num_normals=10**6, capacity=1)
    assert (single.records_after, single.burnin) == (True, "skipped")


def test_very_many_chains_of_a_small_model_have_blocks_of_a_few_steps():
    wide = planned(num_normals=60_000, num_rows=0, num_chains=3)
    assert (wide.draws_per_block, wide.block_length) == (4, 1)
    assert not wide.block_has_motion
    assert planned(num_normals=11_000, num_rows=0, num_chains=3).draws_per_block == 5
    thinned = planned(num_normals=60_000, num_rows=0, num_chains=3, thinning=8)
    assert (thinned.draws_per_block, thinned.block_length) == (0, 4)
    assert thinned.block_has_motion
    assert not planned(num_normals=60_000, num_rows=0, thinning=8).block_has_motion
    first_axis = planned(size=256, num_normals=60_000, num_rows=0, num_chains=3, thinning=8)
    assert not first_axis.block_has_motion
    assert first_axis.block_length == 8


def test_very_many_chains_are_not_wide_on_an_accelerator(accelerator):
    found = planned(num_normals=60_000, num_rows=0, num_chains=3)
    assert (found.draws_per_block, found.block_has_motion) == (0, False)


def test_every_step_is_watched_where_that_costs_little_or_must_be():
    large: dict[str, Any] = {"num_normals": 10**6}
    assert planned(**large).is_watched  # each step is a draw
    assert not planned(**large, thinning=2).is_watched
    assert planned(thinning=2).is_watched
    assert planned(**large, thinning=2, must_watch=True).is_watched
    assert not planned(has_info=False).is_watched
    assert planned(has_info=False, must_watch=True).is_watched
    assert not planned(is_lazy=True).is_watched


def test_a_lazy_step_counts_all_parameters_of_its_draws():
    assert planned(size=100, num_normals=2, num_rows=0, is_lazy=True).draws_per_block == 655


def test_room_for_one_record_of_a_large_model_is_filled_after_the_loop():
    large: dict[str, Any] = {"num_normals": 10**6}
    assert planned(**large, capacity=1).records_after
    assert not planned(**large, capacity=2).records_after
    assert not planned(capacity=1).records_after


@pytest.mark.parametrize(
    "functions",
    [{"keep": len}, {"averages": {"a": len}}, {"trace": len}, {"adapt": 3}],
)
def test_burnin_has_a_program_of_its_own_where_functions_look_at_draws(functions):
    assert planned(**functions).burnin == "apart"
    assert planned(num_normals=10**6, **functions).burnin == "skipped"


def test_records_have_room_for_whole_blocks(accelerator):
    small, large = planned(), planned(num_normals=10**6)
    assert (small.rows(1), small.rows(512), small.rows(513)) == (512, 512, 1024)
    assert small.rows(1) == 512
    assert (large.rows(5), large.rows(1)) == (5, 1)


def test_records_on_cpus_have_the_room_that_is_asked_for():
    assert (planned().rows(7), planned().rows(1)) == (7, 1)
