"""Settings for HMC with its accept step: exact, where passes over all data are cheap.

In coordinates where a posterior has spread 1, trajectories of a length of 1.9 make nearly
independent draws: on a Gaussian neighbouring draws have correlation cos 1.9 = −0.32, and their
squares cos² 1.9 = 0.10. So there is no length to adapt: pilot runs find the coordinates, and the
step size by the acceptance.
"""

import math
from statistics import NormalDist

import numpy as np

from sghmc.gradients.exact import FullBatch
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.samplers.hmc import HMC
from sghmc.samplers.whitened import Whitened
from sghmc.tuning.pilot import Pilots, Trial
from sghmc.tuning.region import Region, Spread
from sghmc.tuning.report import Outcome

LENGTH = 1.9
_JITTER = 0.25
"""Of the step size: where the posterior is not Gaussian, no direction then makes whole turns."""
_MOST_STEPS = 1_024
_BEST_ACCEPTANCE, _LEAST_ACCEPTANCE = 0.85, 0.75
_WIDE_ACCEPTANCE = 0.95
"""From here on steps could be larger, which pays where a trajectory has more than three."""
_FIRST_STEP = 0.64
_NUM_ROUNDS, _NUM_ROUNDS_OF_MANY = 30, 8
"""Pilot runs at the most; where whitening is by a diagonal, so that there is less to learn."""
NUM_DRAWS = 400
"""Draws of all chains in a pilot run; half of them as long as it is far from settled."""
_LEAST_DRAWS = 25
_LARGEST_R_HAT = 1.1
_MOST_ROWS = 10**9
"""Rows that a run looks at: beyond that draws may remember each other rather than cost more."""


class Trajectories:
    """A step size and the number of such steps that make a trajectory of the right length."""

    def __init__(self, step_size: float):
        self.num_steps = min(max(2, math.ceil(LENGTH / step_size - 1e-9)), _MOST_STEPS)
        self.step_size = min(step_size, LENGTH / self.num_steps)

    def sampler(self, region: Region) -> Whitened:
        inner = HMC(self.step_size, self.num_steps, jitter=_JITTER, most_steps=_MOST_STEPS)
        return Whitened(inner, region.center_tree, region.factor_tree)

    def after(self, acceptance: float) -> "Trajectories":
        """By how much larger or smaller steps the acceptance would be the best.

        A Gaussian energy error of variance s² is accepted with probability 2Φ(−s/2), and s goes
        with the square of the step size.
        """
        ratio = _energy_error(_BEST_ACCEPTANCE) / _energy_error(acceptance)
        return Trajectories(self.step_size * min(max(math.sqrt(ratio), 0.3), 1.5))

    @classmethod
    def first(cls, region: Region) -> "Trajectories":
        """Before anything is known: errors of energy grow with the number of parameters."""
        size = len(region.center)
        step_size = min(_FIRST_STEP, 1.2 * size**-0.25)
        return cls(step_size if region.is_gaussian else step_size / 3)


def _energy_error(acceptance: float) -> float:
    return -2 * NormalDist().inv_cdf(min(max(acceptance, 1e-3), 1 - 1e-4) / 2)


class Exact:
    """A warm-up: pilot runs until their draws have spread 1 in the region's coordinates.

    `num_draws` of all chains are wanted later.
    """

    def __init__(
        self,
        pilots: Pilots,
        region: Region,
        places: np.ndarray,
        tolerance: float,
        num_draws: int,
    ):
        self.pilots, self.region, self.places = pilots, region, places
        self.tolerance, self.num_draws = tolerance, num_draws
        self.settings = Trajectories.first(region)

    def search(self) -> Outcome:
        trial = None
        num_draws = self._length(1.0 if self.region.is_gaussian else 0.5)
        most = self._length(max(4.0, 20 * len(self.region.center) / NUM_DRAWS))
        for _ in range(_NUM_ROUNDS if self.region.is_dense else _NUM_ROUNDS_OF_MANY):
            if trial is not None and self.pilots.budget.left < 0:
                break
            sampler = self.settings.sampler(self.region)
            trial = self.pilots.run(sampler, FullBatch(), self.region, self.places, num_draws)
            self.places = trial.last
            seen = self._seen(trial)
            if seen.fits() and self._is_settled(trial, seen):
                return self._outcome(trial, [])
            if not seen.fits() and trial.lowest_acceptance > 0.2:
                self.region = self.region.refined(seen)
                num_draws = self._length(0.5) if seen.is_far() else min(2 * num_draws, most)
            self.settings = self.settings.after(trial.lowest_acceptance)
        assert trial is not None
        return self._outcome(trial, [self.pilots.fault()])

    def _length(self, factor: float) -> int:
        return max(_LEAST_DRAWS, math.ceil(factor * NUM_DRAWS / self.pilots.num_chains))

    def _seen(self, trial: Trial) -> Spread:
        late = trial.draws[:, trial.num_draws // 4 :]
        return self.region.spread_of(late.reshape(-1, late.shape[-1]))

    def _is_settled(self, trial: Trial, seen: Spread) -> bool:
        acceptance = trial.lowest_acceptance
        is_wide = acceptance > _WIDE_ACCEPTANCE and self.settings.num_steps > 3
        agree = not trial.r_hat > _LARGEST_R_HAT + seen.slack / 2
        return agree and acceptance > _LEAST_ACCEPTANCE and not is_wide

    def _thinning(self, trajectories: float) -> int:
        """So many that standard deviations are known to the tolerance, but no more than it takes to
        make draws independent, or than is cheap; `trajectories` make one that is.

        n independent draws know a standard deviation to 1/√(2n); the worst of d is √(2 ln d) such
        errors off, or two where d is small, and one is to spare.
        """
        errors = max(2.0, math.sqrt(2 * math.log(len(self.region.center)))) + 1
        share = (errors / self.tolerance) ** 2 / 2 / self.num_draws
        target = self.pilots.target
        num_rows = int(target.num_examples) if isinstance(target, RowPosterior) else 1
        rows = (self.settings.num_steps + 1) * num_rows * self.num_draws
        most = max(1, _MOST_ROWS // rows)
        return max(1, min(most, round(min(1.0, share) * trajectories)))

    def _outcome(self, trial: Trial, faults: list[str]) -> Outcome:
        time = trial.autocorrelation_time
        return Outcome(
            engine="exact",
            region=self.region,
            sampler=self.settings.sampler(self.region),
            gradient=FullBatch(),
            starts=trial.last,
            thinning=self._thinning(2 * time - 1),
            step_size=self.settings.step_size,
            num_steps=self.settings.num_steps,
            acceptance=float(np.nan_to_num(trial.acceptance).mean()),
            kinetic_temperature=float(np.mean(trial.heat)),
            autocorrelation_time=time,
            faults=faults,
        )
