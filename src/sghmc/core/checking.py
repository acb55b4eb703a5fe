"""Checks that many arguments share: each error names the argument and what came."""

from typing import Any

import numpy as np


def check_whole(value: Any, name: str, lowest: int) -> None:
    """Refuse what is not a whole number from `lowest`."""
    if not isinstance(value, int | np.integer) or value < lowest:
        raise ValueError(f"{name} must be a whole number from {lowest}, but is {value!r}.")
