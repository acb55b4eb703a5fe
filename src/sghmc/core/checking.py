"""Checks of single arguments: each error names the argument, what came, and what may."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def check_count(
    value: Any, name: str, lowest: int = 1, *, or_none: str | None = None, reason: str = ""
) -> None:
    """Refuse what is no whole number from `lowest` on.

    `or_none` says what None means, where that may be given; `reason`, why `lowest`.

    >>> check_count(0, "every")
    Traceback (most recent call last):
    ValueError: every must be a whole number from 1, but is 0.
    """
    if value is None and or_none is not None:
        return
    if isinstance(value, int | np.integer) and type(value) is not bool and value >= lowest:
        return
    wanted = f"a whole number from {lowest}{reason and f', {reason}'}"
    if or_none is not None:
        wanted = f"None{or_none and f', {or_none},'} or {wanted}"
    raise ValueError(f"{name} must be {wanted}, but is {value!r}.")


def check_choice(value: Any, name: str, choices: Sequence[Any]) -> None:
    """Refuse what is none of the `choices`.

    >>> check_choice("start", "observe", ("end", "middle"))
    Traceback (most recent call last):
    ValueError: observe must be "end" or "middle", but is 'start'.
    """
    # By type too: 1 is not True.
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return
    *others, last = (f'"{each}"' if isinstance(each, str) else str(each) for each in choices)
    raise ValueError(f"{name} must be {', '.join(others)} or {last}, but is {value!r}.")
