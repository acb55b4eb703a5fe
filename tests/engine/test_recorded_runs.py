"""Draws are those that were recorded, bit for bit.

A record belongs to a kind of machine and a version of jax; elsewhere there is none, and these tests
are skipped.
"""

import json

import pytest

import recorded_runs

RECORDED = json.loads(recorded_runs.PATH.read_text()).get(recorded_runs.machine())
RUNS = recorded_runs.by_name()


@pytest.mark.skipif(RECORDED is None, reason=f"nothing recorded for {recorded_runs.machine()}")
@pytest.mark.parametrize("name", RUNS)
def test_draws_are_those_that_were_recorded(name):
    assert RECORDED is not None
    assert recorded_runs.checksum(RUNS[name]()) == RECORDED[name]
