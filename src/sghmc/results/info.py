"""What is known of draws besides the draws themselves."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Info:
    """Diagnostics of each kept draw, axes (chain, draw); None where the sampler has none.

    After a run without `info` there is `is_finite` alone.
    """

    potential: Any
    is_finite: np.ndarray
    kinetic_temperature: np.ndarray | None = None
    acceptance: np.ndarray | None = None
    data_share: np.ndarray | None = None


class Growth(NamedTuple):
    """From the kept draw `draw` on the posterior was over `num_examples` rows."""

    draw: int
    num_before: int
    num_examples: int
