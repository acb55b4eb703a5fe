"""Settings for HMC with its accept step: no bias, for data where a pass over all rows is cheap.

In coordinates where the posterior has standard deviation 1, trajectories of length 1.9 make nearly
independent draws: on a Gaussian neighbouring draws have correlation cos 1.9 = −0.32, and their
squares cos² 1.9 = 0.10. So no length is adapted: pilot runs find the coordinates, and the step size
by the acceptance.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Self

import numpy as np

from sghmc.gradients import FullBatch
from sghmc.posterior.posterior import RowPosterior
from sghmc.samplers.hmc import HMC
from sghmc.tuning.pilots import PilotRun, Pilots
from sghmc.tuning.result import Tuned, TuneReport
from sghmc.tuning.whitening import Whitening, WhiteningFit

TRAJECTORY_LENGTH = 1.9
# Random share of the step size: where the posterior is not Gaussian, no direction then makes whole
# turns only.
_STEP_JITTER = 0.25
_MAX_STEPS = 1_024
# With smaller steps a trajectory gets nowhere: the search ends, rather than go on for long.
_MIN_STEP = 1e-4
_BEST_ACCEPTANCE = 0.85
_MIN_ACCEPTANCE = 0.75
# Above this acceptance steps could be larger, which pays if a trajectory has more than three.
_MAX_ACCEPTANCE = 0.95
_MAX_FIRST_STEP = 0.64
# A diagonal factor has less to learn than a matrix.
_MAX_ROUNDS, _MAX_ROUNDS_DIAGONAL = 30, 8
# Draws of all chains in a pilot run; half as many as long as the coordinates are far off.
PILOT_DRAWS = 400
_MIN_DRAWS_PER_CHAIN = 25
_MAX_R_HAT = 1.1
# Rows that the run may evaluate: beyond that, correlated draws are better than a dearer run.
_MAX_RUN_ROWS = 10**9


class Trajectories:
    """A step size, and the number of such steps in a trajectory of the right length."""

    def __init__(self, step_size: float):
        steps = math.ceil(TRAJECTORY_LENGTH / step_size - 1e-9)
        self.num_steps = min(max(2, steps), _MAX_STEPS)
        self.step_size = min(step_size, TRAJECTORY_LENGTH / self.num_steps)

    @classmethod
    def first(cls, whitening: Whitening) -> Self:
        """Guess before any run; without a peak the coordinates are a guess, too."""
        return cls.of_size(len(whitening.center), 1.0 if whitening.is_gaussian else 1 / 3)

    @classmethod
    def of_size(cls, num_parameters: int, share: float = 1.0) -> Self:
        """Guess from the number of parameters, with which energy errors grow."""
        return cls(share * min(_MAX_FIRST_STEP, 1.2 * num_parameters**-0.25))

    @property
    def sampler(self) -> HMC:
        return HMC(self.step_size, self.num_steps, jitter=_STEP_JITTER, most_steps=_MAX_STEPS)

    def after(self, acceptance: float) -> "Trajectories":
        """Return the steps with which the acceptance would be the best, by at most a factor.

        A Gaussian energy error of variance s² is accepted with probability 2Φ(−s/2), and s is
        proportional to the square of the step size.
        """
        ratio = _energy_error(_BEST_ACCEPTANCE) / _energy_error(acceptance)
        return Trajectories(self.step_size * min(max(math.sqrt(ratio), 0.3), 1.5))


def _energy_error(acceptance: float) -> float:
    """Return the standard deviation of the energy error that gives this acceptance."""
    return -2 * NormalDist().inv_cdf(min(max(acceptance, 1e-3), 1 - 1e-4) / 2)


class ExactSearch:
    """Warm up HMC by pilot runs, until their draws have standard deviation 1 in z.

    `num_draws` is how many draws the run will make, of all chains together. `whitening` and
    `starts` are those of the last pilot run. `slopes` evaluates gradients, which tell low ranks.
    """

    def __init__(
        self,
        pilots: Pilots,
        whitening: Whitening,
        starts: np.ndarray,
        tolerance: float,
        num_draws: int,
        slopes: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.slopes = slopes
        self.pilots, self.whitening, self.starts = pilots, whitening, starts
        self.tolerance, self.num_draws = tolerance, num_draws
        self.trajectories = Trajectories.first(whitening)

    def search(self) -> Tuned:
        pilot = None
        num_draws = self._draws_per_chain(1.0 if self.whitening.is_gaussian else 0.5)
        size = len(self.whitening.center)
        max_draws = self._draws_per_chain(max(4.0, 20 * size / PILOT_DRAWS))
        for _ in range(_MAX_ROUNDS if self.whitening.is_dense else _MAX_ROUNDS_DIAGONAL):
            if pilot is not None and self.pilots.budget.left < 0:
                break
            pilot = self.pilots.run(
                self.trajectories.sampler, FullBatch(), self.whitening, self.starts, num_draws
            )
            self.starts = pilot.draws[:, -1]
            # The first quarter is burn-in.
            fit = self.whitening.fit(pilot.after(pilot.num_draws // 4).draws, self.slopes)
            if fit.is_good and self._is_settled(pilot, fit):
                return self._tuned(pilot, ())
            if not fit.is_good and pilot.lowest_acceptance > 0.2:
                self.whitening = self.whitening.refined(fit)
                num_draws = (
                    self._draws_per_chain(0.5) if fit.is_far else min(2 * num_draws, max_draws)
                )
            self.trajectories = self.trajectories.after(pilot.lowest_acceptance)
            if self.trajectories.step_size < _MIN_STEP:
                break
        assert pilot is not None
        return self._tuned(pilot, (self.whitening.funnel or self.pilots.complaint(),))

    def _draws_per_chain(self, factor: float) -> int:
        return max(_MIN_DRAWS_PER_CHAIN, math.ceil(factor * PILOT_DRAWS / self.pilots.num_chains))

    def _is_settled(self, pilot: PilotRun, fit: WhiteningFit) -> bool:
        """Whether chains agree, and the acceptance is neither too low nor needlessly high."""
        acceptance = pilot.lowest_acceptance
        is_timid = acceptance > _MAX_ACCEPTANCE and self.trajectories.num_steps > 3
        agree = not pilot.r_hat > _MAX_R_HAT + fit.slack / 2
        return agree and acceptance > _MIN_ACCEPTANCE and not is_timid

    def _thinning(self, num_independent: float) -> int:
        """Return how many trajectories make a draw; `num_independent` make an independent one.

        As many as the tolerance needs, but no more than make draws independent, or than is cheap.
        n independent draws have an error of 1/√(2n) in a standard deviation. The worst of d is
        about √(2 ln d) such errors off, or two if d is small; one more is a margin.
        """
        num_errors = max(2.0, math.sqrt(2 * math.log(len(self.whitening.center)))) + 1
        share = (num_errors / self.tolerance) ** 2 / 2 / self.num_draws
        target = self.pilots.target
        num_rows = int(target.num_examples) if isinstance(target, RowPosterior) else 1
        run_rows = (self.trajectories.num_steps + 1) * num_rows * self.num_draws
        largest = max(1, _MAX_RUN_ROWS // run_rows)
        return max(1, min(largest, round(min(1.0, share) * num_independent)))

    def _tuned(self, pilot: PilotRun, unsettled: tuple[str, ...]) -> Tuned:
        time = pilot.autocorrelation_time
        report = TuneReport(
            engine="exact",
            num_parameters=len(self.whitening.center),
            distance=self.whitening.distance,
            estimator="FullBatch",
            step_size=self.trajectories.step_size,
            num_steps=self.trajectories.num_steps,
            acceptance=float(np.nan_to_num(pilot.acceptance).mean()),
            kinetic_temperature=float(np.mean(pilot.temperature)),
            autocorrelation_time=time,
            tolerance=self.tolerance,
            unsettled=unsettled,
        )
        sampler = self.whitening.wrap(self.trajectories.sampler)
        init = self.whitening.params(pilot.draws[:, -1])
        return Tuned(sampler, FullBatch(), init, self._thinning(2 * time - 1), report)
