"""χ² between π̃ and π: its closed form, its balance, its bound."""

from types import SimpleNamespace

import pytest
import scipy.linalg

from sghmc import theory
from sghmc.paper import pages
from sghmc.paper.theorems import convergence, statement
from statements import ReplacedTheory, failed, failed_with


def warm_sampler(step_size, estimate, temperature):
    return statement.sampler(step_size, estimate, 1.01 * temperature)


def wrong_divergence(law, exact):
    return theory.chi_squared(law, 1.001 * exact)


class Unsolved:
    """A Lyapunov equation whose solution is a thousandth off."""

    def solve_continuous_lyapunov(self, *matrices):
        return 1.001 * scipy.linalg.solve_continuous_lyapunov(*matrices)


def tight_bound(found):
    """Three fifths of the bound."""
    return 0.6 * convergence._DELTAS * found["speed"].max() / found["rate"].min()


FAULTS = {
    "π̃ for V = C: temperature 1 + δ/2": {"sampler": warm_sampler},
    "χ² for V = C, largest δ": {"theory": ReplacedTheory(chi_squared=wrong_divergence)},
    "Thm S.2: δ∂χ²/λχ² at π̃, worst": {"scipy": SimpleNamespace(linalg=Unsolved())},
    "Thm S.2: χ²/bound, V = C, largest": {"_bound": tight_bound},
    "Thm S.2: χ²/bound, other V, largest": {"_bound": tight_bound},
}


@pytest.mark.slow
def test_all_statements_hold():
    assert failed(convergence.check()) == []


@pytest.mark.parametrize("words", FAULTS)
def test_a_statement_fails_where_it_is_wrong(monkeypatch, words):
    assert words in failed_with(monkeypatch, convergence, FAULTS[words])


@pytest.mark.parametrize(("factor", "is_seen"), [(1.00015, True), (1.00005, False)])
def test_the_balance_is_judged_to_a_part_in_ten_thousand(monkeypatch, factor, is_seen):
    whole = convergence._divergences

    def faster(noise):
        found = whole(noise)
        return found | {"speed": factor * found["speed"]}

    monkeypatch.setattr(convergence, "_divergences", faster)
    words = "Thm S.2: δ∂χ²/λχ² at π̃, worst"
    assert (words in failed(convergence.check())) == is_seen


def test_the_picture_has_both_laws_and_the_bound():
    axis = pages.panels(1, (4, 3))[1][0]
    curve = {"deltas": [1, 2], "special": [3, 4], "closed_form": [5, 6], "bound": [7, 8]}
    convergence.draw(axis, curve)
    assert [line.get_ydata().tolist() for line in axis.lines] == [[3, 4], [5, 6], [7, 8]]
    assert axis.get_xlabel() == r"$\delta$"
