"""What one call of a sampler's step does on a Gaussian, seen from outside; NumPy alone."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NUM_CALLS = 1_000_000
NUM_CHAINS, NUM_STEPS = 20_000, 400


class Setting(NamedTuple):
    step_size: float
    friction: float
    noise: float = 0.0


class Seen(NamedTuple):
    """z' = `transition` z + noise of covariance `noise`; the variance of chains after many steps.

    The first coordinate of z is the position.
    """

    transition: list[list[float]]
    noise: list[list[float]]
    chains: float


Step = Callable[[int, np.ndarray], np.ndarray]
"""(seed, states of many chains with axes (chain, coordinate)) → states one step later."""


def look(step: Step, size: int) -> Seen:
    """`step` with the same seed must use the same random numbers."""
    origin = step(0, np.zeros((8, size)))
    columns = [step(0, np.tile(row, (8, 1))) - origin for row in np.eye(size)]
    transition = np.stack([column.mean(0) for column in columns], axis=1)
    noise = np.cov(step(1, np.zeros((NUM_CALLS, size))), rowvar=False).reshape(size, size)
    chains = np.random.default_rng(0).normal(size=(NUM_CHAINS, size))
    for t in range(NUM_STEPS):
        chains = step(2 + t, chains)
    return Seen(transition.tolist(), noise.tolist(), float(np.var(chains[:, 0])))


def stationary_variance(transition: np.ndarray, noise: np.ndarray) -> float:
    """Of the position, from S = F S Fᵀ + Q; infinite where there is none."""
    if np.max(np.abs(np.linalg.eigvals(transition))) >= 1:
        return float("inf")
    total = np.linalg.solve(
        np.eye(transition.size) - np.kron(transition, transition), noise.ravel()
    )
    return float(total[0])
