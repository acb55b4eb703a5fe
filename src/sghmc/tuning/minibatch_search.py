"""Settings for SGHMC on batches: pilot runs refine the coordinates, halved steps test the result.

The arithmetic is that of a Gaussian with standard deviation 1 in z (`theory.friction_law`).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.gradients import FullBatch
from sghmc.posterior.host_potential import HostPotential
from sghmc.posterior.posterior import RowPosterior
from sghmc.posterior.target import Potential
from sghmc.results.health import temperature_complaint
from sghmc.tuning.budget import Costs
from sghmc.tuning.choices import FEW_BATCHES, FrictionSettings, GradientCandidates, GradientChoice
from sghmc.tuning.exact_search import ExactSearch
from sghmc.tuning.pilots import HalvingTest, PilotRun, Pilots, compare_halved
from sghmc.tuning.result import Tuned, TuneReport
from sghmc.tuning.whitening import Whitening, gaussian_misfit

# At a tolerance of 5 %. Draws from the middle of drifts have no error from the step size on a
# Gaussian; other posteriors have one of its square.
_MAX_STEP = 0.3
_NUM_BURNIN = 20
_MAX_ROUNDS = 16
_MAX_HALVINGS = 5
_MAX_PROLONGATIONS = 10
# Draws of all chains in a pilot run, for a dense and for a diagonal factor.
_PILOT_DRAWS, _PILOT_DRAWS_DIAGONAL = 3_200, 96
_MAX_R_HAT = 1.2
# Draws at which the potential is compared with a Gaussian's: four passes, with the center.
_NUM_COMPARED_DRAWS = 31
# A first pilot run from a peak is so many times shorter. It may show that the potential is a
# Gaussian's; then there is nothing to refine or to test.
_FIRST_RUN_DIVISOR = 4
# Minimum number of rows in the subsample that stands in for all data.
_MIN_SUBSAMPLE_ROWS = 1_000
# Share of the tolerance to which pilot runs know standard deviations before they are compared.
_MONTE_CARLO_SHARE = 1 / 6


class MinibatchSearch:
    """Search coordinates, gradient estimator, step size and friction for SGHMC.

    `whitening`, `starts`, `choice` and `halving` are the best so far.
    """

    def __init__(
        self,
        pilots: Pilots,
        potential: HostPotential,
        whitening: Whitening,
        starts: np.ndarray,
        candidates: GradientCandidates,
    ):
        self.pilots, self.potential = pilots, potential
        self.whitening, self.starts = whitening, starts
        self.candidates, self.tolerance = candidates, candidates.tolerance
        self.max_step = min(0.5, _MAX_STEP * math.sqrt(self.tolerance / 0.05))
        self.step_limit = self.max_step if whitening.is_gaussian else self.max_step / 4
        self.complaints: list[str] = []
        self.unsettled: list[str] = []
        self.notes: list[str] = []
        self.is_quadratic = False
        self.halving = HalvingTest()
        settings = FrictionSettings.for_noise(0.0, self.tolerance, self.step_limit)
        self.choice = GradientChoice(FullBatch(), settings, {})
        self.thinning = settings.thinning

    @property
    def settings(self) -> FrictionSettings:
        return self.choice.settings

    @property
    def is_too_noisy(self) -> bool:
        """Whether gradient noise alone makes a larger error than the tolerance."""
        return self.settings.law.standard_deviation_error > self.tolerance

    def search(self) -> Tuned:
        pilot = self._first_run() or self._refine()
        if pilot is None or not (self.complaints or self.unsettled or self._check_quadratic(pilot)):
            pilot = self._verify()
        return _tuned(self, pilot)

    def _first_run(self) -> PilotRun | None:
        """Return a short pilot run if it shows all there is to know, else None."""
        if not self.whitening.is_local or not self.whitening.is_dense:
            return None
        self._choose()
        if self._needs_all_data:
            return None
        pilot = self._run(self.settings, num_draws=_PILOT_DRAWS // _FIRST_RUN_DIVISOR)
        if not pilot.is_finite:
            return None
        is_good = self.whitening.fit(pilot.draws).is_good
        return pilot if is_good and self._check_quadratic(pilot) else None

    def _choose(self) -> None:
        """Choose gradient estimator and settings for the present coordinates."""
        self.choice = self.candidates.best(self.whitening, self.starts, self.step_limit)
        # Another number of steps per draw would be another program to compile.
        if not self.thinning / 4 <= self.settings.thinning <= 2 * self.thinning:
            self.thinning = self.settings.thinning

    @property
    def _needs_all_data(self) -> bool:
        """Whether batches are of no use here although the data are many."""
        target = self.pilots.target
        if not isinstance(target, RowPosterior) or not self.whitening.is_dense or self.pilots.gibbs:
            return False
        is_long = target.num_examples > FEW_BATCHES * self.candidates.batch_size
        return bool(is_long and (self.is_too_noisy or isinstance(self.choice.gradient, FullBatch)))

    def _refine(self) -> PilotRun | None:
        """Make pilot runs until their draws have standard deviation 1 in z; return the last one.

        Steps that lose chains become smaller, and larger again once nothing is lost. None: the
        settings have changed since the last run.
        """
        is_good = False
        for attempt in range(_MAX_ROUNDS):
            if attempt and self.pilots.budget.left < 0:
                break
            self._choose()
            if attempt == 0 and self._needs_all_data:
                _approach(self)
                self.step_limit = self.max_step
                self._choose()
            pilot = self._run(self.settings)
            if not pilot.is_hot:
                self.starts = self._sound_ends(pilot)
            if pilot.is_hot or not pilot.is_finite:
                self.step_limit = self.settings.step_size / (2 if is_good else 4)
                if is_good:
                    self._choose()
                    return None
                continue
            fit = self.whitening.fit(pilot.draws)
            is_good = fit.is_good
            if is_good and self.step_limit == self.max_step:
                return pilot
            if not self.whitening.is_dense and pilot.r_hat > _MAX_R_HAT:
                # Standard deviations of chains that still move would mislead.
                self.unsettled.append(
                    "the chains of the pilot runs had not forgotten their starts, as those of "
                    "networks do not: look at predictions, not at single parameters"
                )
                return pilot
            if not is_good:
                self.whitening = self.whitening.refined(fit)
            self.step_limit = min(2 * self.step_limit, self.max_step)
        self._choose()
        self.unsettled.append(self.pilots.complaint())
        return None

    def _check_quadratic(self, pilot: PilotRun) -> bool:
        """Whether the potential is so near a Gaussian's that the step size makes no error.

        Draws from the middle of drifts have none on a Gaussian; the part of the potential beyond it
        makes one of ε² times its own size.
        """
        if self.is_quadratic:
            return True
        if self.is_too_noisy or not self.whitening.is_local:
            return False
        if temperature_complaint(pilot.temperature, self.tolerance) is not None:
            return False
        every = max(1, pilot.num_draws // _NUM_COMPARED_DRAWS)
        draws = pilot.draws[:, ::-every].reshape(-1, pilot.draws.shape[-1])
        misfit = gaussian_misfit(self.potential, self.whitening, draws[:_NUM_COMPARED_DRAWS])
        self.is_quadratic = self.settings.step_size**2 * misfit <= self.tolerance / 3
        if self.is_quadratic:
            self.notes.append(
                f"the potential is a Gaussian's up to ± {misfit:.2g}: the step size makes no error "
                f"to speak of, so half of it was not tried"
            )
        return self.is_quadratic

    def _sound_ends(self, pilot: PilotRun) -> np.ndarray:
        """Return where chains ended; chains that were lost go on from sound ones."""
        sound = np.flatnonzero(pilot.is_sound)
        if len(sound) == 0:
            return self.starts
        return pilot.draws[sound[np.arange(len(pilot.draws)) % len(sound)], -1]

    def _run(
        self,
        settings: FrictionSettings,
        starts: np.ndarray | None = None,
        num_draws: int | None = None,
    ) -> PilotRun:
        """Run pilot chains for the same time whatever the step; `num_draws` is of all chains."""
        if num_draws is None:
            num_draws = _PILOT_DRAWS if self.whitening.is_dense else _PILOT_DRAWS_DIAGONAL
        longer = max(1, settings.thinning // self.thinning)
        per_chain = longer * math.ceil(num_draws / self.pilots.num_chains) + _NUM_BURNIN
        starts = self.starts if starts is None else starts
        gradient = self.choice.gradient
        pilot = self.pilots.run(
            settings.sampler, gradient, self.whitening, starts, per_chain, self.thinning
        )
        return pilot.after(_NUM_BURNIN)

    def _measure(self, settings: FrictionSettings) -> PilotRun:
        """Run pilot chains until their standard deviations are known well enough to be judged."""
        pilot = self._run(settings)
        # Of many parameters only the average is judged, which is known soon.
        for _ in range(1, _MAX_PROLONGATIONS if self.whitening.is_dense else 2):
            enough = self.tolerance * _MONTE_CARLO_SHARE
            if not pilot.is_finite or pilot.moments().log_sd_error.max() < enough:
                break
            if self.pilots.budget.left < 0:
                break
            pilot = pilot.joined(self._run(settings, pilot.draws[:, -1]))
        return pilot

    def _verify(self) -> PilotRun:
        """Halve the step size until that changes no mean and no standard deviation by much."""
        if self.is_too_noisy:  # the tolerance is missed anyway, so there is nothing to test
            return self._run(self.settings)
        pilot = self._measure(self.settings)
        for _ in range(_MAX_HALVINGS):
            if self.pilots.budget.left < 0:
                break
            half = self._measure(self.settings.halved)
            self.halving = compare_halved(
                pilot, half, self.tolerance, is_dense=self.whitening.is_dense
            )
            if self.halving.is_passed:
                return pilot
            self.choice = self.choice._replace(settings=self.settings.halved)
            pilot = half
            self.starts = self._sound_ends(half)
        complaint = "halving the step size did not end its effect: see the traces"
        if self.pilots.budget.left < 0:
            complaint = "the budget ended before half the step size was tried"
        self.complaints.append(
            temperature_complaint(pilot.temperature, self.tolerance) or complaint
        )
        return pilot


def _approach(search: MinibatchSearch) -> None:
    """Move the search to where most draws are, with a subsample of rows instead of all.

    The mode of a hierarchical model may be far off, and gradients are noisy on the way.
    """
    pilots, candidates = search.pilots, search.candidates
    target = pilots.target
    assert isinstance(target, RowPosterior)
    number = int(target.num_examples)
    count = max(FEW_BATCHES * candidates.batch_size, _MIN_SUBSAMPLE_ROWS)
    chosen = candidates.rng.choice(number, min(count, number), replace=False)
    rows = target.rows(jnp.asarray(chosen))
    subsampled = Potential(lambda params: target.estimate(params, rows))
    key = jax.random.fold_in(pilots.key, 0)
    costs = Costs.count(subsampled, search.whitening.like, pilots.num_chains)
    budget = pilots.budget
    scouts = Pilots(key, subsampled, pilots.num_chains, pilots.max_draws, budget, costs=costs)
    scout = ExactSearch(scouts, search.whitening, search.starts, search.tolerance, _PILOT_DRAWS)
    scout.search()
    search.whitening, search.starts = scout.whitening, scout.starts


def _tuned(search: MinibatchSearch, pilot: PilotRun) -> Tuned:
    """Return the settings of a search with their report; `pilot` is the last run with them."""
    settings, whitening, complaints = search.settings, search.whitening, list(search.complaints)
    time, temperature, starts = settings.law.autocorrelation_time, math.nan, search.starts
    if pilot.is_finite:
        starts, temperature = pilot.draws[:, -1], float(np.mean(pilot.temperature))
        if not search.is_quadratic:  # on a Gaussian theory is better than a short run
            time = pilot.autocorrelation_time * search.thinning
    else:
        complaints.append(
            "pilot runs did not stay finite: take larger batches, or look at the model's tails"
        )
    error = settings.law.standard_deviation_error
    if search.is_too_noisy:
        needed = settings.rows_needed(search.candidates.batch_size, search.tolerance)
        complaints.append(
            f"gradient noise alone makes standard deviations {100 * error:.0f} % too wide: "
            f"batches of about {needed:,} would do"
        )
    report = TuneReport(
        engine="minibatch",
        num_parameters=len(whitening.center),
        distance=whitening.distance,
        estimator=type(search.choice.gradient).__name__,
        step_size=settings.step_size,
        friction=settings.friction,
        kinetic_temperature=temperature,
        autocorrelation_time=time,
        tolerance=search.tolerance,
        gradient_noise=search.choice.noises,
        predicted_error=error,
        halving_change=search.halving.change,
        halving_noise=search.halving.noise,
        complaints=tuple(complaints),
        unsettled=tuple(search.unsettled),
        notes=tuple(search.notes),
    )
    # A multiple of the pilots' thinning; many parameters are not waited for.
    multiple = max(1, round(time / search.thinning)) if whitening.is_dense else 1
    return Tuned(
        sampler=whitening.wrap(settings.sampler),
        gradient=search.choice.gradient,
        init=whitening.params(starts),
        thinning=search.thinning * multiple,
        report=report,
    )
