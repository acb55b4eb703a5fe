"""A statement holds where it holds, and nowhere else."""

import math

import pytest

from sghmc.paper.theorems.statement import Statement


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
