"""Pilot runs without chains: draws of a known Gaussian, for tests of what is made of them."""

from typing import Any

import numpy as np

from sghmc.tuning.budget import Budget
from sghmc.tuning.pilot import Pilots, Trial


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
        heat=1.0,
        memory=0.0,
        seconds=1e3,
    ):
        self.mean, self.root = np.asarray(mean), np.linalg.cholesky(covariance)
        self.num_chains, self.acceptance, self.spread = num_chains, acceptance, spread
        self.heat, self.memory, self.most_draws, self.gibbs = heat, memory, 1_000, None
        self.budget = Budget(seconds)
        self.rng = np.random.default_rng(0)
        self.target, self.key = None, None
        self.steps, self.lengths = [], []
        """Step sizes and numbers of draws that were asked for."""

    def run(self, sampler: Any, gradient, region, places, num_draws, thinning=1):
        step_size = float(sampler.sampler.step_size)
        self.steps.append(step_size)
        self.lengths.append(num_draws)
        shape = (len(places), num_draws, len(self.mean))
        z = self.rng.normal(size=shape)
        for i in range(1, num_draws if self.memory else 0):
            z[:, i] = self.memory * z[:, i - 1] + np.sqrt(1 - self.memory**2) * z[:, i]
        draws = self.mean + self.spread(step_size) * z @ self.root.T
        full = np.ones(shape[:2])
        heat = self.heat + 0.1 * self.rng.normal(size=shape[:2])
        return Trial(draws, heat, self.acceptance(step_size) * full)
