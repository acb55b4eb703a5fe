"""Seeds of two methods compared in pairs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_LEVEL = 0.95
_ROUNDING = 1e-12
"""Differences that vary less, relative to the values, are equal: their spread is rounding."""


def mean_and_sd(values: np.ndarray) -> dict[str, float]:
    """One value has no spread."""
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sd": sd}


def compare(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """The mean difference, its 95 % interval and p-value by the paired t-test.

    Positive where the reference is smaller. The last two are None where there is no spread to judge
    by.
    """
    from scipy import stats

    differences = np.subtract(values, reference)
    mean, count = float(differences.mean()), len(differences)
    if count < 2 or differences.std() <= _ROUNDING * np.abs(values).max():
        return {"difference": mean, "interval": None, "p_value": None}
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(_LEVEL)
    return {
        "difference": mean,
        "interval": [float(low), float(high)],
        "p_value": float(test.pvalue),  # pyright: ignore[reportAttributeAccessIssue]
    }
