"""What a run returns."""

import dataclasses
from typing import Any

import numpy as np

from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True)
class Info:
    """Diagnostics of each kept draw, axes (chain, draw); None where the sampler has none."""

    potential: np.ndarray
    is_finite: np.ndarray
    kinetic_temperature: np.ndarray | None = None
    acceptance: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Samples:
    """The draws of a run, on the host.

    | field | what |
    | --- | --- |
    | `positions` | what `keep` returned (default: the parameters); axes (chain, draw, …) |
    | `hyper` | the hyperparameters of each draw, or None |
    | `averages` | mean of each averaged function over the kept draws; leading chain axis |
    | `trace` | what `trace` made of the averages at each draw, or None; axes (chain, draw, …) |
    | `info` | potential estimate, kinetic temperature, acceptance, finiteness of each draw |
    | `num_steps` | sampler steps made, burn-in and thinning included |
    | `seconds` | wall-clock time of the run, compilation included |
    """

    positions: PyTree
    hyper: PyTree
    averages: dict[str, Any]
    trace: PyTree
    info: Info
    num_steps: int
    seconds: float

    def __repr__(self) -> str:
        chains, draws = self.info.potential.shape
        return f"Samples({chains} chains × {draws} draws, {self.num_steps} steps)"


class DivergenceError(FloatingPointError):
    """A chain left the finite numbers. `samples` holds everything drawn until then."""

    def __init__(self, message: str, samples: Samples):
        super().__init__(message)
        self.samples = samples
