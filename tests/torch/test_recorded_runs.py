# ruff: noqa: E402
"""Results of all samplers of `sghmc.torch` are those that were recorded, to rounding."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import recorded_runs
import torch_recorded_runs

RECORDED = json.loads(recorded_runs.PATH.read_text("utf-8"))
RUNS = torch_recorded_runs.by_name()


@pytest.mark.parametrize("name", RUNS)
def test_results_are_those_that_were_recorded(name):
    run = RUNS[name]
    assert recorded_runs.differences(RECORDED[name], run.results(), run.tolerance) == []


def test_all_runs_are_recorded_and_none_besides():
    assert {name for name in RECORDED if name.startswith("torch ")} == RUNS.keys()
