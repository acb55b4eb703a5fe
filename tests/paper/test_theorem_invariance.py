"""Proposition 3.1: the orders of the error, and SGLD as the limit."""

import pytest

from sghmc.paper.theorems import invariance, statement
from sghmc.samplers.langevin import SGLD
from statements import failed, failed_with

NOISE, ZERO = statement.GRADIENT_NOISE, statement.ZERO
FAULTS = {
    "Prop 3.1: order of error in ε, B̂ = B": {
        "_ESTIMATES": {"corrected": 0.9 * NOISE, "uncorrected": ZERO}
    },
    "Prop 3.1: the same with B̂ = 0": {"_ESTIMATES": {"corrected": NOISE, "uncorrected": NOISE}},
    "§3.2: SGHMC at εC = M less SGLD": {
        "SGLD": lambda step_size, *settings: SGLD(1.01 * step_size, *settings)
    },
}


@pytest.mark.slow
def test_all_statements_hold():
    assert failed(invariance.check()) == []


@pytest.mark.parametrize("words", FAULTS)
def test_a_statement_fails_where_it_is_wrong(monkeypatch, words):
    assert failed_with(monkeypatch, invariance, FAULTS[words]) == [words]


def test_a_wrong_temperature_is_an_error_of_order_zero(monkeypatch):
    found = failed_with(monkeypatch, invariance, {"TEMPERATURE": 1.01 * statement.TEMPERATURE})
    assert "Prop 3.1: order of error in ε, B̂ = B" in found
