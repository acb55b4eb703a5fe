"""Pilot runs without chains: draws of a known Gaussian, for tests of what is made of them."""

from typing import Any

import numpy as np

from sghmc.tuning.budget import Budget
from sghmc.tuning.pilots import PilotRun, Pilots


def pilot_run(draws, temperature: Any = 1.0, acceptance: Any = 1.0, potential: Any = 0.0):
    """A pilot run of draws with axes (chain, draw, parameter); numbers serve for all draws."""
    shape = draws.shape[:2]
    parts = (np.broadcast_to(part, shape) for part in (temperature, acceptance, potential))
    return PilotRun(draws, *parts)


class SyntheticPilots(Pilots):
    """Draws of N(mean, covariance), whatever the sampler; `acceptance(step_size)` is what it says.

    `spread(step_size)` scales the draws, as a bias would; `memory` is neighbours' correlation.
    """

    def __init__(
        self,
        mean,
        covariance,
        *,
        num_chains=4,
        acceptance=lambda step_size: 0.85,
        spread=lambda step_size: 1.0,
        temperature=1.0,
        memory=0.0,
        seconds=1e3,
    ):
        self.mean, self.root = np.asarray(mean), np.linalg.cholesky(covariance)
        self.num_chains, self.acceptance, self.spread = num_chains, acceptance, spread
        self.temperature, self.memory = temperature, memory
        self.max_draws, self.gibbs = 1_000, None
        self.budget = Budget(seconds)
        self.rng = np.random.default_rng(0)
        self.target, self.key = None, None
        self.steps, self.lengths = [], []
        """Step sizes and numbers of draws that were asked for."""

    def run(self, sampler: Any, gradient, whitening, starts, num_draws, thinning=1):
        step_size = float(sampler.step_size)
        self.steps.append(step_size)
        self.lengths.append(num_draws)
        shape = (len(starts), num_draws, len(self.mean))
        z = self.rng.normal(size=shape)
        for i in range(1, num_draws if self.memory else 0):
            z[:, i] = self.memory * z[:, i - 1] + np.sqrt(1 - self.memory**2) * z[:, i]
        draws = self.mean + self.spread(step_size) * z @ self.root.T
        temperature = self.temperature + 0.1 * self.rng.normal(size=shape[:2])
        return pilot_run(draws, temperature, self.acceptance(step_size))
