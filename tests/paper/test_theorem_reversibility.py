"""Skew reversibility: between mid-drift points, at no other, and for exp(−H/τ)."""

import pytest

from sghmc.paper.theorems import reversibility, statement
from statements import failed, failed_with

FAULTS = {
    "Thm S.1: skew asymmetry at mid-drift": {
        "half_drift_back": lambda step_size: statement.half_drift_back(1.1 * step_size)
    },
    "Thm S.1: order of it at the step's end": {
        "sampler": lambda step_size: statement.sampler(step_size**2)
    },
    "θ-law at mid-drift less exp(−U/τ)": {"TEMPERATURE": 1.01 * statement.TEMPERATURE},
}


def test_all_statements_hold():
    assert failed(reversibility.check()) == []


@pytest.mark.parametrize("words", FAULTS)
def test_a_statement_fails_where_it_is_wrong(monkeypatch, words):
    assert words in failed_with(monkeypatch, reversibility, FAULTS[words])
