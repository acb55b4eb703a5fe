"""Settings for SGHMC on batches: pilot runs refine the coordinates, halved steps test the result.

The arithmetic is that of a Gaussian in coordinates where it has spread 1 (`theory.friction_law`).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.gradients.exact import FullBatch
from sghmc.posterior.potential import Potential
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.posterior.surface import Surface
from sghmc.results.health import heat_fault
from sghmc.tuning.estimators import FEW_BATCHES, Choice, Estimators, Settings
from sghmc.tuning.exact import Exact
from sghmc.tuning.pilot import Pilots, Trial
from sghmc.tuning.region import Region, excess
from sghmc.tuning.report import Outcome

_LARGEST_STEP = 0.3
"""At a tolerance of 5 %. Drawn in the middle of drifts a Gaussian has no error from the step size;
others have one of its square."""
_NUM_BURNIN = 20
_NUM_ROUNDS = 16
_NUM_HALVINGS = 5
_NUM_PROLONGATIONS = 10
_NUM_DRAWS, _NUM_DRAWS_OF_MANY = 3_200, 96
"""Draws of all chains in a pilot run, and where the parameters are many."""
_LARGEST_R_HAT = 1.2
_NUM_LOOKS = 31
"""Draws at which the potential is compared with a Gaussian's: four passes, with its center."""
_GLANCE = 4
"""A first pilot run, from a peak with a curvature, is so many times shorter: it may show that the
potential is a Gaussian's, and then there is nothing to refine or to test."""
_LEAST_ROWS = 1_000
"""Of few that stand for all, however small batches are."""
_MONTE_CARLO_SHARE = 1 / 6
"""Of the tolerance: how well pilot runs know standard deviations before they are compared."""


class Batches:
    """A search: the region so far, the estimator, the settings."""

    def __init__(
        self,
        pilots: Pilots,
        surface: Surface,
        region: Region,
        places: np.ndarray,
        estimators: Estimators,
    ):
        self.pilots, self.surface, self.region, self.places = pilots, surface, region, places
        self.estimators, self.tolerance = estimators, estimators.tolerance
        self.most = min(0.5, _LARGEST_STEP * math.sqrt(self.tolerance / 0.05))
        self.largest_step = self.most if region.is_gaussian else self.most / 4
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.is_quadratic = False
        self.change = self.change_noise = math.nan
        settings = Settings.for_noise(0.0, self.tolerance, self.largest_step)
        self.choice = Choice(FullBatch(), settings, {})
        self.thinning = settings.thinning

    @property
    def settings(self) -> Settings:
        return self.choice.settings

    def search(self) -> Outcome:
        trial = self._glance() or self._refine()
        if trial is not None and (self.faults or self._is_quadratic(trial)):
            return _outcome(self, trial)
        return _outcome(self, self._verify())

    def _glance(self) -> Trial | None:
        """A short pilot run, where it shows all there is to know."""
        if not self.region.is_local or not self.region.is_dense:
            return None
        self._choose()
        if self._is_dear:
            return None
        trial = self._run(self.settings, length=_NUM_DRAWS // _GLANCE)
        if not trial.is_finite:
            return None
        seen = self.region.spread_of(trial.draws.reshape(-1, trial.draws.shape[-1]))
        return trial if seen.fits() and self._is_quadratic(trial) else None

    def _choose(self) -> None:
        self.choice = self.estimators.best(self.region, self.places, self.largest_step)
        # Another number of steps a draw would be another program.
        if not self.thinning / 4 <= self.settings.thinning <= 2 * self.thinning:
            self.thinning = self.settings.thinning

    def _refine(self) -> Trial | None:
        """Pilot runs until their draws have spread 1 in the region's coordinates: the last of them.

        Steps that lose chains become smaller; once nothing is lost, larger again. None: the
        settings have changed since the last run.
        """
        fits = False
        for attempt in range(_NUM_ROUNDS):
            if attempt and self.pilots.budget.left < 0:
                break
            self._choose()
            if attempt == 0 and self._is_dear:
                self.region, self.places = _approach(self)
                self.largest_step = self.most
                self._choose()
            trial = self._run(self.settings)
            if not trial.is_hot:
                self.places = self._sound_places(trial)
            if trial.is_hot or not trial.is_finite:
                self.largest_step = self.settings.step_size / (2 if fits else 4)
                if fits:
                    self._choose()
                    return None
                continue
            seen = self.region.spread_of(trial.draws.reshape(-1, trial.draws.shape[-1]))
            fits = seen.fits()
            if fits and self.largest_step == self.most:
                return trial
            if not self.region.is_dense and trial.r_hat > _LARGEST_R_HAT:
                # Spreads of chains that are still under way would lead astray.
                self.faults.append(
                    "the chains of the pilot runs had not forgotten their starts, as those of "
                    "networks do not: look at predictions, not at single parameters"
                )
                return trial
            if not fits:
                self.region = self.region.refined(seen)
            self.largest_step = min(2 * self.largest_step, self.most)
        self._choose()
        self.faults.append(self.pilots.fault())
        return None

    def _is_quadratic(self, trial: Trial) -> bool:
        """Whether the potential is so near a Gaussian's that no step size makes an error.

        Drawn in the middle of drifts a Gaussian has none; what a potential has beyond it makes one
        of the square of the step size, times its own size.
        """
        if self.is_quadratic:
            return True
        if self.misses or not self.region.is_local:
            return False
        if heat_fault(trial.heat, self.tolerance) is not None:
            return False
        late = trial.draws[:, :: -max(1, trial.num_draws // _NUM_LOOKS)].reshape(
            -1, trial.draws.shape[-1]
        )
        beyond = excess(self.surface, self.region, late[:_NUM_LOOKS])
        if self.settings.step_size**2 * beyond > self.tolerance / 3:
            return False
        self.notes.append(
            f"the potential is a Gaussian's up to ± {beyond:.2g}: the step size makes no error to "
            f"speak of, so half of it was not tried"
        )
        self.is_quadratic = True
        return True

    @property
    def _is_dear(self) -> bool:
        """Whether batches are of no use here, and all data are many."""
        target = self.pilots.target
        if not isinstance(target, RowPosterior) or not self.region.is_dense or self.pilots.gibbs:
            return False
        is_long = target.num_examples > FEW_BATCHES * self.estimators.batch_size
        return bool(is_long and (self.misses or isinstance(self.choice.gradient, FullBatch)))

    def _sound_places(self, trial: Trial) -> np.ndarray:
        """Where the chains are; those that were lost go back to where sound ones are."""
        sound = np.flatnonzero(trial.is_sound)
        if len(sound) == 0:
            return self.places
        return trial.last[sound[np.arange(len(trial.draws)) % len(sound)]]

    def _run(
        self, settings: Settings, places: np.ndarray | None = None, length: int | None = None
    ) -> Trial:
        """Pilot chains from `places`, as long for smaller steps; `length` draws of all."""
        whole = length or (_NUM_DRAWS if self.region.is_dense else _NUM_DRAWS_OF_MANY)
        share = max(1, settings.thinning // self.thinning)
        num_draws = share * math.ceil(whole / self.pilots.num_chains) + _NUM_BURNIN
        trial = self.pilots.run(
            settings.sampler(self.region),
            self.choice.gradient,
            self.region,
            self.places if places is None else places,
            num_draws,
            self.thinning,
        )
        return trial.after(_NUM_BURNIN)

    def _measure(self, settings: Settings) -> Trial:
        """Pilot chains for as long as their standard deviations are too uncertain to judge."""
        trial = self._run(settings)
        # Of many parameters only the average is judged: that is known soon.
        for _ in range(1, _NUM_PROLONGATIONS if self.region.is_dense else 2):
            enough = self.tolerance * _MONTE_CARLO_SHARE
            if not trial.is_finite or trial.moments().log_spread_error.max() < enough:
                break
            if self.pilots.budget.left < 0:
                break
            trial = trial.joined(self._run(settings, trial.last))
        return trial

    def _verify(self) -> Trial:
        """Halve the step size until that changes no mean and no standard deviation by much.

        The momenta must have their temperature too: they feel what is wrong with the forces.
        """
        if self.misses:  # nothing is promised, so there is nothing to test
            return self._run(self.settings)
        trial = self._measure(self.settings)
        for _ in range(_NUM_HALVINGS):
            if self.pilots.budget.left < 0:
                break
            half = self._measure(self.settings.halved())
            self.change, self.change_noise, agrees = compare(
                trial, half, self.tolerance, is_dense=self.region.is_dense
            )
            if agrees and heat_fault(trial.heat, self.tolerance) is None:
                return trial
            self.choice = self.choice._replace(settings=self.settings.halved())
            trial = half
            self.places = self._sound_places(half)
        fault = "halving the step size did not end its effect: see the traces"
        if self.pilots.budget.left < 0:
            fault = "the budget ended before half the step size was tried"
        self.faults.append(heat_fault(trial.heat, self.tolerance) or fault)
        return trial

    @property
    def misses(self) -> bool:
        """Whether gradient noise alone makes a larger error than the tolerance."""
        return self.settings.law.standard_deviation_error > self.tolerance

    def total_thinning(self, steps: float) -> int:
        """A multiple of that of the pilots; of many parameters none, however long they remember."""
        most = math.inf if self.region.is_dense else 1
        return self.thinning * int(min(most, max(1, round(steps / self.thinning))))


def _approach(search: Batches) -> tuple[Region, np.ndarray]:
    """Region and places where most draws lie, found by few rows in place of all.

    The mode of a hierarchical model may lie far off, and gradients are noisy on the way.
    """
    pilots, rng = search.pilots, search.estimators.rng
    target = pilots.target
    assert isinstance(target, RowPosterior)
    count = max(FEW_BATCHES * search.estimators.batch_size, _LEAST_ROWS)
    number = int(target.num_examples)
    chosen = rng.choice(number, min(count, number), replace=False)
    rows = target.rows(jnp.asarray(chosen))
    thinned = Potential(lambda params: target.estimate(params, rows))
    key = jax.random.fold_in(pilots.key, 0)
    scouts = Pilots(key, thinned, pilots.num_chains, pilots.most_draws, pilots.budget)
    found = Exact(scouts, search.region, search.places, search.tolerance, _NUM_DRAWS).search()
    return found.region, found.starts


def compare(
    whole: Trial, half: Trial, tolerance: float, *, is_dense: bool
) -> tuple[float, float, bool]:
    """The largest change of a standard deviation, its error, and whether all are small."""
    if not (whole.is_finite and half.is_finite):
        return math.inf, 0.0, False
    before, after = whole.moments(), half.moments()
    change = np.abs(before.log_spread - after.log_spread)
    error = np.hypot(before.log_spread_error, after.log_spread_error)
    spread = np.exp(after.log_spread)
    shift = np.abs(before.mean - after.mean) / spread
    shift_error = np.hypot(before.mean_error, after.mean_error) / spread
    # The bias falls with the square of the step size: a third more than what half of it took.
    is_small = np.all(change <= tolerance / 3 + 2 * error)
    is_still = np.all(shift <= tolerance + 2 * shift_error)
    is_each = not is_dense or (is_small and is_still)
    # A change that all share stands out of their noise.
    common = abs(np.mean(before.log_spread - after.log_spread))
    is_apart = common <= tolerance / 3 + np.mean(error)
    worst = int(np.argmax(change - 2 * error))
    return float(change[worst]), float(error[worst]), bool(is_each and is_apart)


def _outcome(search: Batches, trial: Trial) -> Outcome:
    settings, faults = search.settings, search.faults
    steps, starts = settings.law.autocorrelation_time, search.places
    heat = math.nan
    if trial.is_finite:
        starts = trial.last
        if not search.is_quadratic:  # of a Gaussian theory knows it better than a short run
            steps = trial.autocorrelation_time * search.thinning
        heat = float(np.mean(trial.heat))
    else:
        faults.append(
            "pilot runs did not stay finite: take larger batches, or look at the model's tails"
        )
    error = settings.law.standard_deviation_error
    if search.misses:
        needed = settings.rows_needed(search.estimators.batch_size, search.tolerance)
        faults.append(
            f"gradient noise alone makes standard deviations {100 * error:.0f} % too wide: "
            f"batches of about {needed:,} would do"
        )
    return Outcome(
        engine="minibatch",
        region=search.region,
        sampler=settings.sampler(search.region),
        gradient=search.choice.gradient,
        starts=starts,
        thinning=search.total_thinning(steps),
        step_size=settings.step_size,
        friction=settings.friction,
        kinetic_temperature=heat,
        autocorrelation_time=steps,
        gradient_noise=search.choice.noises,
        predicted_error=error,
        halving_change=search.change,
        halving_noise=search.change_noise,
        faults=faults,
        notes=search.notes,
    )
