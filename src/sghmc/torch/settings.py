"""Checks of what a user gives: the number that came, and the remedy."""

import math


def number(value, name: str, *, positive: bool = False) -> float:
    """A setting as a float, refused where it cannot be."""
    try:
        given = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}.") from None
    wanted = "positive" if positive else "zero or more"
    if not math.isfinite(given) or given < 0 or (positive and given == 0):
        raise ValueError(f"{name} must be {wanted} and finite, but is {given:g}.")
    return given


def given(value, name: str, remedy: str):
    """What must be given: nothing is assumed of it."""
    if value is REQUIRED:
        raise TypeError(f"{name} is missing: {remedy}")
    return value


class _Required:
    def __repr__(self) -> str:
        return "…"


REQUIRED = _Required()
"""The default of what has none."""


def whole_number(value, name: str, *, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, but is {value!r}.")
    return int(value)


def check_decay(decay: float, limit: float) -> None:
    if decay >= limit:
        raise ValueError(
            f"The momentum decay εC/M reaches {decay:g}, but every chain diverges from {limit:g} "
            f"on, whatever the target: take a smaller step_size or friction (1 is SGLD), or BAOAB."
        )
