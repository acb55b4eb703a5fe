"""Theorems on a Gaussian target: statements hold where they hold, and nowhere else.

Nothing in the case is special, and orders are read off right. Each statement fails where its
mathematics is wrong.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg

from sghmc import paper, theory
from sghmc.paper import gaussian_laws
from sghmc.paper.gaussian_laws import Statement, half_drift_back, sampler
from sghmc.samplers.langevin import SGLD
from statements import ReplacedTheory, failed, failed_with


@pytest.mark.parametrize(
    ("measured", "expected", "tolerance", "relation", "holds"),
    [
        (1.0, 1.0, 0.0, "=", True),
        (1.04, 1.0, 0.05, "=", True),
        (0.96, 1.0, 0.05, "=", True),
        (1.06, 1.0, 0.05, "=", False),
        (0.94, 1.0, 0.05, "=", False),
        (-1.0, 1.0, 0.05, "=", False),
        (math.nan, 1.0, 0.05, "=", False),
        (1.0, math.nan, 0.05, "=", False),
        (math.inf, 1.0, 0.05, "=", False),
        (0.99, 1.0, 0.0, "<", True),
        (1.0, 1.0, 0.0, "<", False),
        (1.01, 1.0, 0.5, "<", False),
        (math.nan, 1.0, 0.0, "<", False),
    ],
)
def test_a_statement_holds(measured, expected, tolerance, relation, holds):
    statement = Statement("of something", measured, expected, tolerance, relation)
    assert statement.holds() is holds
    judged = statement.judged()
    assert judged["passed"] is holds
    assert (judged["statement"], judged["relation"]) == ("of something", relation)


def test_the_matrices_hide_no_factor():
    """None commutes with another or is near a multiple of the identity."""
    named = [
        gaussian_laws.PRECISION,
        gaussian_laws.MASS,
        gaussian_laws.FRICTION,
        gaussian_laws.GRADIENT_NOISE,
    ]
    for i, one in enumerate(named):
        assert np.linalg.cond(one) > 1.5
        for other in named[:i]:
            assert np.abs(one @ other - other @ one).max() > 0.05


@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_an_order_is_the_exponent_of_the_step_size(exponent):
    errors = list(0.3 * gaussian_laws.STEP_SIZES**exponent)
    assert gaussian_laws.order(errors) == pytest.approx(exponent)


def test_half_a_drift_back_undoes_half_a_drift():
    z = np.array([0.3, -0.2, 1.0, 2.0])
    velocity = np.linalg.solve(gaussian_laws.MASS, z[2:])
    back = half_drift_back(0.2) @ z
    np.testing.assert_allclose(back, [*(z[:2] - 0.1 * velocity), *z[2:]])


def test_block_diagonal():
    joined = gaussian_laws.block_diagonal(gaussian_laws.MASS, gaussian_laws.FRICTION)
    np.testing.assert_array_equal(joined[:2, :2], gaussian_laws.MASS)
    np.testing.assert_array_equal(joined[2:, 2:], gaussian_laws.FRICTION)
    assert not joined[:2, 2:].any()


# Every statement, and faults in it.

NOISE, ZERO = gaussian_laws.GRADIENT_NOISE, gaussian_laws.ZERO
INVARIANCE_FAULTS = {
    "Prop 3.1: order of error in ε, B̂ = B": {
        "_ESTIMATES": {"corrected": 0.9 * NOISE, "uncorrected": ZERO}
    },
    "Prop 3.1: the same with B̂ = 0": {"_ESTIMATES": {"corrected": NOISE, "uncorrected": NOISE}},
    "§3.2: SGHMC at εC = M less SGLD": {
        "SGLD": lambda step_size, *settings: SGLD(1.01 * step_size, *settings)
    },
}
REVERSIBILITY_FAULTS = {
    "Thm S.1: skew asymmetry at mid-drift": {
        "half_drift_back": lambda step_size: half_drift_back(1.1 * step_size)
    },
    "Thm S.1: order of it at the step's end": {"sampler": lambda step_size: sampler(step_size**2)},
    "θ-law at mid-drift less exp(−U/τ)": {"TEMPERATURE": 1.01 * gaussian_laws.TEMPERATURE},
}


def warm_sampler(step_size, estimate, temperature):
    return sampler(step_size, estimate, 1.01 * temperature)


def wrong_divergence(law, exact):
    return theory.chi_squared(law, 1.001 * exact)


class Unsolved:
    """A Lyapunov equation whose solution is a thousandth off."""

    def solve_continuous_lyapunov(self, *matrices):
        return 1.001 * scipy.linalg.solve_continuous_lyapunov(*matrices)


def tight_bound(found):
    """Three fifths of the bound."""
    return 0.6 * gaussian_laws._DELTAS * found["speed"].max() / found["rate"].min()


CONVERGENCE_FAULTS = {
    "π̃ for V = C: temperature 1 + δ/2": {"sampler": warm_sampler},
    "χ² for V = C, largest δ": {"theory": ReplacedTheory(chi_squared=wrong_divergence)},
    "Thm S.2: δ∂χ²/λχ² at π̃, worst": {"scipy": SimpleNamespace(linalg=Unsolved())},
    "Thm S.2: χ²/bound, V = C, largest": {"_bound": tight_bound},
    "Thm S.2: χ²/bound, other V, largest": {"_bound": tight_bound},
}
CHECKS = {
    gaussian_laws.check_invariance: INVARIANCE_FAULTS,
    gaussian_laws.check_reversibility: REVERSIBILITY_FAULTS,
    gaussian_laws.check_convergence: CONVERGENCE_FAULTS,
}


@pytest.mark.slow_cases("check_convergence", "check_invariance")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_all_statements_hold(check):
    assert failed(check()) == []


@pytest.mark.parametrize(
    ("check", "words", "faults"),
    [(check, words, faults) for check, of in CHECKS.items() for words, faults in of.items()],
    ids=[words for of in CHECKS.values() for words in of],
)
def test_a_statement_fails_where_it_is_wrong(monkeypatch, check, words, faults):
    found = failed_with(monkeypatch, check, faults)
    assert words in found
    if check is gaussian_laws.check_invariance:
        assert found == [words]


def test_a_wrong_temperature_is_an_error_of_order_zero(monkeypatch):
    found = failed_with(
        monkeypatch,
        gaussian_laws.check_invariance,
        {"TEMPERATURE": 1.01 * gaussian_laws.TEMPERATURE},
    )
    assert "Prop 3.1: order of error in ε, B̂ = B" in found


@pytest.mark.parametrize(("factor", "is_seen"), [(1.00015, True), (1.00005, False)])
def test_the_balance_is_judged_to_a_part_in_ten_thousand(monkeypatch, factor, is_seen):
    whole = gaussian_laws._divergences

    def faster(noise):
        found = whole(noise)
        return found | {"speed": factor * found["speed"]}

    monkeypatch.setattr(gaussian_laws, "_divergences", faster)
    words = "Thm S.2: δ∂χ²/λχ² at π̃, worst"
    assert (words in failed(gaussian_laws.check_convergence())) == is_seen


def test_the_picture_has_both_laws_and_the_bound():
    axis = paper.panels(1, (4, 3))[1][0]
    curve = {"deltas": [1, 2], "special": [3, 4], "closed_form": [5, 6], "bound": [7, 8]}
    gaussian_laws.draw_convergence(axis, curve)
    assert [line.get_ydata().tolist() for line in axis.lines] == [[3, 4], [5, 6], [7, 8]]
    assert axis.get_xlabel() == r"$\delta$"
