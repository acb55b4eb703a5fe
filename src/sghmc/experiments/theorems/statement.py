"""A statement of a theorem as numbers, and whether it holds."""

from typing import Any, NamedTuple

ROUNDING = 1e-10
"""What double precision leaves of a difference that is 0."""


class Statement(NamedTuple):
    """`relation` is "=" (to within `tolerance`) or "<"."""

    words: str
    measured: float
    expected: float
    tolerance: float
    relation: str = "="

    def holds(self) -> bool:
        difference = self.measured - self.expected
        if self.relation == "<":
            return bool(difference < 0)
        return bool(abs(difference) <= self.tolerance)

    def judged(self) -> dict[str, Any]:
        return {
            "statement": self.words,
            "measured": float(self.measured),
            "relation": self.relation,
            "expected": float(self.expected),
            "tolerance": float(self.tolerance),
            "passed": self.holds(),
        }


class Checked(NamedTuple):
    """What was found of a theorem: statements, and numbers for its picture."""

    statements: list[Statement]
    curve: dict[str, Any]
