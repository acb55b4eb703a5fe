"""Settings without a mode: where a search for one is hopeless, chains alone say what fits.

Mixtures and networks have many modes, or one that is not typical. Scales are those of pilot draws;
the step size is the largest that half of it does not contradict.
"""

import math

import numpy as np

from sghmc.gradients.base import Gradient
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.minibatch import Minibatch
from sghmc.posterior.base import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.results.health import heat_fault
from sghmc.tuning.estimators import Settings
from sghmc.tuning.minibatch import compare
from sghmc.tuning.pilot import Pilots, Trial
from sghmc.tuning.region import Region
from sghmc.tuning.report import Outcome
from sghmc.types import PyTree

DEFAULT_GRADIENTS = 200_000
"""Of all chains: some seconds on most targets."""
_FRICTION = 1.5
"""Where the posterior has spread 1: serves means and variances alike."""
_LEAST_DECAY = 0.1
"""Of momenta in a step: while units do not fit, friction 1.5 would not cool a fall in time."""
_THINNING = 8
_COST = _THINNING + 1
"""Gradients of a draw: its steps, and a look at the potential."""
_LARGEST_STEP = 0.5
_NUM_GLANCES, _GLANCE = 40, 6
"""Trials of a step size at the most, and draws of each."""
_NUM_ROUNDS = 6
_ROUND_SHARE = 1 / 16
"""Of the gradients, for each round that measures scales."""
_NUM_HALVINGS = 4
_LARGEST_R_HAT = 1.2
_DENSE = 50
"""Up to so many parameters their correlations are measured, too."""


def blank_region(start: np.ndarray, like: PyTree) -> Region:
    """Around the start, with spread 1: what is known before anything was run."""
    factor = np.eye(start.size) if start.size <= _DENSE else np.ones(start.size)
    return Region(like, start, factor, distance=math.nan, is_gaussian=False)


def plain_gradient(target: Target, batch_size: int) -> Gradient:
    """Batches, unless all data are hardly more. A control variate would need a center."""
    is_long = isinstance(target, AbstractPosterior) and target.num_examples > 2 * batch_size
    return Minibatch(batch_size) if is_long else FullBatch()


class Modeless:
    """A search by pilot chains from one place, within a number of gradients; it always ends."""

    def __init__(
        self,
        pilots: Pilots,
        region: Region,
        gradient: Gradient,
        tolerance: float,
        num_gradients: int,
    ):
        self.pilots, self.region, self.gradient = pilots, region, gradient
        self.tolerance, self.num_gradients, self.spent = tolerance, num_gradients, 0
        self.places = np.repeat(region.center[None], pilots.num_chains, 0)
        self.step = 1.0
        self.change = self.change_noise = math.nan
        self.faults: list[str] = []

    def search(self) -> Outcome:
        self._cool()
        self._settle()
        self._cool()
        return self._outcome(self._verify())

    @property
    def draws_left(self) -> int:
        """Draws of each chain that there are gradients and seconds for."""
        if self.pilots.budget.left < 0:
            return 0
        return (self.num_gradients - self.spent) // (_COST * self.pilots.num_chains)

    def _run(self, step: float, num_draws: int) -> Trial:
        """Pilot chains from where the last ones ended."""
        self.spent += _COST * self.pilots.num_chains * num_draws
        return self.pilots.run(
            _settings(step).sampler(self.region),
            self.gradient,
            self.region,
            self.places,
            num_draws,
            _THINNING,
        )

    def _cool(self) -> None:
        """Smaller steps until chains stay finite and do not climb.

        Momenta of chains that fall from a start far off are hot whatever the step.
        """
        for _ in range(_NUM_GLANCES):
            if self.draws_left < _GLANCE:
                return
            trial = self._run(self.step, _GLANCE)
            if trial.is_finite and (_fall(trial) > 0 or not trial.is_hot):
                self.places = trial.last
                return
            self.step /= 2

    def _settle(self) -> None:
        """Scales from draws, until these have spread 1 in them; each round starts where it was."""
        for _ in range(_NUM_ROUNDS):
            share = int(self.num_gradients * _ROUND_SHARE / _COST / self.pilots.num_chains)
            if self.draws_left < 2 * share or share < 2 * _GLANCE:
                return
            trial = self._run(self.step, share)
            late = trial.after(share // 2)
            if not trial.is_finite or (late.is_hot and _fall(trial) <= 0):
                self.step /= 2
                continue
            self.places = trial.last
            if _fall(trial) > 0:  # still on the way: no spread of anything
                continue
            seen = self.region.spread_of(late.draws.reshape(-1, late.draws.shape[-1]))
            if seen.fits():
                return
            self.region = self.region.refined(seen)
            self.step = _LARGEST_STEP
            self._cool()

    def _verify(self) -> Trial:
        """The largest step that half of it does not contradict, as far as gradients reach.

        A comparison takes three times the gradients of its first run.
        """
        # A third of what is left for the first pair; the pairs after it run as long.
        num_draws = max(2 * _GLANCE, self.draws_left // 9)
        trial = self._run(self.step, num_draws)
        self._burn(trial)
        for _ in range(_NUM_HALVINGS):
            if self.draws_left < 2 * num_draws:
                break
            half = self._run(self.step / 2, 2 * num_draws)
            self.change, self.change_noise, agrees = compare(
                trial, half, self.tolerance, is_dense=self.region.is_dense
            )
            if agrees and heat_fault(trial.heat, self.tolerance) is None:
                return self._judged(trial)
            self._burn(half)
            self.step, trial, num_draws = self.step / 2, half, 2 * num_draws
        told = heat_fault(trial.heat, self.tolerance) if trial.is_finite else None
        self.faults.append(told or f"half the step size was not reached: {self._more}")
        return self._judged(trial)

    def _burn(self, trial: Trial) -> None:
        if trial.is_finite:
            self.places = trial.last

    @property
    def _more(self) -> str:
        return f"give more by sghmc.tune(…, mode=False, num_gradients={4 * self.num_gradients:,})"

    def _judged(self, trial: Trial) -> Trial:
        if not trial.is_finite:
            self.faults.append(
                "pilot runs did not stay finite: take larger batches, or start elsewhere"
            )
        elif trial.r_hat > _LARGEST_R_HAT:
            self.faults.append(
                f"the pilot chains disagree (R-hat {trial.r_hat:.2f}): they sit in different "
                f"modes, or have not settled; look at predictions, or {self._more}"
            )
        elif self.change_noise > self.tolerance:
            self.faults.append(
                f"the pilot runs know standard deviations to {self.change_noise:.0%} only: "
                f"{self._more}"
            )
        return trial

    def _outcome(self, trial: Trial) -> Outcome:
        settings = _settings(self.step)
        steps = settings.law.autocorrelation_time
        if trial.is_finite:
            steps = max(steps, trial.autocorrelation_time * _THINNING)
        return Outcome(
            engine="minibatch",
            region=self.region,
            sampler=settings.sampler(self.region),
            gradient=self.gradient,
            starts=trial.last if trial.is_finite else self.places,
            thinning=_THINNING * max(1, round(steps / _THINNING)),
            step_size=self.step,
            friction=settings.friction,
            kinetic_temperature=float(np.mean(trial.heat)) if trial.is_finite else math.nan,
            autocorrelation_time=steps,
            predicted_error=settings.law.standard_deviation_error,
            halving_change=self.change,
            halving_noise=self.change_noise,
            faults=self.faults,
            notes=[f"{self.spent:,} gradients of pilot chains"],
        )


def _settings(step: float) -> Settings:
    return Settings(step, max(_FRICTION, _LEAST_DECAY / step), 0.0)


def _fall(trial: Trial) -> float:
    """How far potentials have fallen from a run's first half to its second, beyond chance.

    That of d parameters varies by √(d/2) in equilibrium.
    """
    first, second = np.array_split(trial.potential, 2, axis=1)
    return float(np.mean(first) - np.mean(second)) - 5 - 3 * math.sqrt(trial.draws.shape[2] / 2)
