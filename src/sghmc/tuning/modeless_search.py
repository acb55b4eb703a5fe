"""Settings for SGHMC without a mode: for mixtures and networks, where a search for one is hopeless.

They have many modes, or one that is not typical. Scales are those of pilot draws; the step size is
the largest that half of it does not contradict.
"""

import math

import numpy as np

from sghmc.gradients import FullBatch, Gradient, Minibatch
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.results.health import temperature_complaint
from sghmc.tuning.choices import FrictionSettings
from sghmc.tuning.pilots import HalvingTest, PilotRun, Pilots, compare_halved
from sghmc.tuning.result import Tuned, TuneReport
from sghmc.tuning.whitening import Whitening
from sghmc.types import PyTree

# Gradients of all chains: some seconds on most targets.
DEFAULT_GRADIENTS = 200_000
# Serves means and variances alike where the posterior has standard deviation 1.
_FRICTION = 1.5
# Momenta lose at least this share in a step: as long as the scales are wrong, friction 1.5 would
# not cool a fall in time.
_MIN_MOMENTUM_DECAY = 0.1
_THINNING = 8
# A draw takes a gradient for each of its steps, and one for its potential.
_GRADIENTS_PER_DRAW = _THINNING + 1
_MAX_STEP = 0.5
# Short runs that look for a stable step size.
_MAX_SHORT_RUNS, _SHORT_RUN_DRAWS = 40, 6
_MAX_ROUNDS = 6
# Share of the gradients for each round that measures scales.
_ROUND_SHARE = 1 / 16
_MAX_HALVINGS = 4
_MAX_R_HAT = 1.2
# Up to this many parameters correlations are measured as well.
_MAX_DENSE = 50


def unit_whitening(start: np.ndarray, like: PyTree) -> Whitening:
    """Return coordinates around the start with scale 1, before anything is known."""
    factor = np.eye(start.size) if start.size <= _MAX_DENSE else np.ones(start.size)
    return Whitening(like, start, factor, distance=math.nan, is_gaussian=False)


def plain_gradient(target: Target, batch_size: int) -> Gradient:
    """Return batches, unless all data are hardly more; a control variate would need a center."""
    is_long = isinstance(target, AbstractPosterior) and target.num_examples > 2 * batch_size
    return Minibatch(batch_size) if is_long else FullBatch()


class ModelessSearch:
    """Search by pilot chains from one place, within a number of gradients of all chains."""

    def __init__(
        self,
        pilots: Pilots,
        whitening: Whitening,
        gradient: Gradient,
        tolerance: float,
        num_gradients: int,
    ):
        self.pilots, self.whitening, self.gradient = pilots, whitening, gradient
        self.tolerance, self.num_gradients, self.spent = tolerance, num_gradients, 0
        self.starts = np.repeat(whitening.center[None], pilots.num_chains, 0)
        self.step_size = 1.0
        self.halving = HalvingTest()
        self.complaints: list[str] = []

    def search(self) -> Tuned:
        self._find_stable_step()
        self._find_scales()
        self._find_stable_step()
        pilot = self._verify()
        self._judge(pilot)
        return self._tuned(pilot)

    @property
    def draws_left(self) -> int:
        """Return the draws of each chain for which gradients and seconds are left."""
        if self.pilots.budget.left < 0:
            return 0
        return (self.num_gradients - self.spent) // (_GRADIENTS_PER_DRAW * self.pilots.num_chains)

    def _run(self, step_size: float, num_draws: int) -> PilotRun:
        """Run pilot chains from where the last ones ended."""
        self.spent += _GRADIENTS_PER_DRAW * self.pilots.num_chains * num_draws
        sampler = _settings(step_size).sampler
        return self.pilots.run(
            sampler, self.gradient, self.whitening, self.starts, num_draws, _THINNING
        )

    def _find_stable_step(self) -> None:
        """Halve the step size until chains stay finite and do not heat up.

        Chains that fall from a start far off are hot whatever the step size, so they are let go on.
        """
        for _ in range(_MAX_SHORT_RUNS):
            if self.draws_left < _SHORT_RUN_DRAWS:
                return
            pilot = self._run(self.step_size, _SHORT_RUN_DRAWS)
            if pilot.is_finite and (_fall(pilot) > 0 or not pilot.is_hot):
                self.starts = pilot.draws[:, -1]
                return
            self.step_size /= 2

    def _find_scales(self) -> None:
        """Refine the coordinates until draws have standard deviation 1 in them."""
        for _ in range(_MAX_ROUNDS):
            gradients = self.num_gradients * _ROUND_SHARE
            num_draws = int(gradients / _GRADIENTS_PER_DRAW / self.pilots.num_chains)
            if self.draws_left < 2 * num_draws or num_draws < 2 * _SHORT_RUN_DRAWS:
                return
            pilot = self._run(self.step_size, num_draws)
            late = pilot.after(num_draws // 2)
            if not pilot.is_finite or (late.is_hot and _fall(pilot) <= 0):
                self.step_size /= 2
                continue
            self.starts = pilot.draws[:, -1]
            if _fall(pilot) > 0:  # still moving: standard deviations would mean nothing
                continue
            fit = self.whitening.fit(late.draws)
            if fit.is_good:
                return
            self.whitening = self.whitening.refined(fit)
            self.step_size = _MAX_STEP
            self._find_stable_step()

    def _verify(self) -> PilotRun:
        """Find the largest step size that half of it does not contradict, if gradients suffice."""
        # A comparison takes three times the gradients of its first run: a third of all for the
        # first pair, so that later pairs can run as long.
        num_draws = max(2 * _SHORT_RUN_DRAWS, self.draws_left // 9)
        pilot = self._run(self.step_size, num_draws)
        for _ in range(_MAX_HALVINGS):
            if pilot.is_finite:
                self.starts = pilot.draws[:, -1]
            if self.draws_left < 2 * num_draws:
                break
            half = self._run(self.step_size / 2, 2 * num_draws)
            self.halving = compare_halved(
                pilot, half, self.tolerance, is_dense=self.whitening.is_dense
            )
            if self.halving.is_passed:
                return pilot
            self.step_size, pilot, num_draws = self.step_size / 2, half, 2 * num_draws
        hot = temperature_complaint(pilot.temperature, self.tolerance) if pilot.is_finite else None
        self.complaints.append(hot or f"half the step size was not reached: {self._remedy}")
        return pilot

    @property
    def _remedy(self) -> str:
        return f"give more by sghmc.tune(…, mode=False, num_gradients={4 * self.num_gradients:,})"

    def _judge(self, pilot: PilotRun) -> None:
        """Add a complaint if the last pilot run does not determine standard deviations."""
        if not pilot.is_finite:
            self.complaints.append(
                "pilot runs did not stay finite: take larger batches, or start elsewhere"
            )
        elif pilot.r_hat > _MAX_R_HAT:
            self.complaints.append(
                f"the pilot chains disagree (R-hat {pilot.r_hat:.2f}): they sit in different "
                f"modes, or have not settled; look at predictions, or {self._remedy}"
            )
        elif self.halving.noise > self.tolerance:
            self.complaints.append(
                f"the pilot runs determine standard deviations to {self.halving.noise:.0%} only: "
                f"{self._remedy}"
            )

    def _tuned(self, pilot: PilotRun) -> Tuned:
        settings = _settings(self.step_size)
        law = settings.law
        time, temperature, starts = law.autocorrelation_time, math.nan, self.starts
        if pilot.is_finite:
            time = max(time, pilot.autocorrelation_time * _THINNING)
            temperature, starts = float(np.mean(pilot.temperature)), pilot.draws[:, -1]
        report = TuneReport(
            engine="minibatch",
            num_parameters=len(self.whitening.center),
            distance=self.whitening.distance,
            estimator=type(self.gradient).__name__,
            step_size=self.step_size,
            friction=settings.friction,
            kinetic_temperature=temperature,
            autocorrelation_time=time,
            tolerance=self.tolerance,
            predicted_error=law.standard_deviation_error,
            halving_change=self.halving.change,
            halving_noise=self.halving.noise,
            complaints=tuple(self.complaints),
            notes=(f"{self.spent:,} gradients of pilot chains",),
        )
        sampler = self.whitening.wrap(settings.sampler)
        thinning = _THINNING * max(1, round(time / _THINNING))
        return Tuned(sampler, self.gradient, self.whitening.params(starts), thinning, report)


def _settings(step_size: float) -> FrictionSettings:
    friction = max(_FRICTION, _MIN_MOMENTUM_DECAY / step_size)
    return FrictionSettings(step_size, friction, noise=0.0)


def _fall(pilot: PilotRun) -> float:
    """Return how far potentials fell from a run's first half to its second, beyond chance.

    The potential of d parameters varies by √(d/2) in equilibrium.
    """
    first, second = np.array_split(pilot.potential, 2, axis=1)
    return float(np.mean(first) - np.mean(second)) - 5 - 3 * math.sqrt(pilot.draws.shape[2] / 2)
