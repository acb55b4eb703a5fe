"""What a result says of itself: whether to trust it, and what that rests on."""

import abc
import textwrap

from sghmc.display import notebook


class Verdict(abc.ABC):
    """`reasons` say what is wrong, each with a remedy; where there is none, the result is sound."""

    reasons: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return not self.reasons

    @property
    def verdict(self) -> str:
        return "; ".join(self.reasons) if self.reasons else "no sign of trouble"

    @property
    @abc.abstractmethod
    def evidence(self) -> dict[str, str]:
        """What the verdict rests on, in words."""

    def __str__(self) -> str:
        """Lines for a terminal of 80 columns."""
        told = {"verdict": self.verdict, **self.evidence}
        lines = [textwrap.fill(f"{name}: {words}", 80) for name, words in told.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.facts(f"Verdict: {self.verdict}", self.evidence)
