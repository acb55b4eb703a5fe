"""Theorem 3.2: π stays, and does not where friction and noise are a hundredth apart."""

import jax
import pytest

from sghmc.paper.theorems import statement, stationarity
from statements import failed, failed_with

BOTH = ["Thm 3.2: ∂π/∂t with friction, largest", "Cor 3.1: ∂π/∂t without friction, rms"]


def test_both_statements_hold():
    assert failed(stationarity.check(jax.random.key(3))) == []


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_both_fail_where_noise_and_friction_differ(monkeypatch, factor):
    faults = {"_NOISE": factor * statement.FRICTION}
    assert failed_with(monkeypatch, stationarity, faults, jax.random.key(3)) == BOTH
