"""Settings without hand work: estimator, whitening, step size and friction for a posterior.

The arithmetic is that of a Gaussian in coordinates where it has spread 1 (`theory.friction_law`);
pilot runs refine the coordinates, and halving the step size tests the result.
"""

import dataclasses
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import checks
from sghmc.control import ControlVariate
from sghmc.gibbs import Gibbs
from sghmc.gradients import FullBatch, Gradient, Minibatch
from sghmc.health import heat_fault
from sghmc.noise import mean_gradient_noise
from sghmc.pilot import LARGEST_RATIO, NOISE_SHARE, Settings, Trial, run_pilot
from sghmc.posterior import Posterior, StackedPosterior, Target
from sghmc.region import Region, draw_starts, find_region
from sghmc.samplers.whitened import Whitened
from sghmc.types import PyTree

_LARGEST_STEP = 0.3
"""At a tolerance of 5 %. Drawn in the middle of drifts a Gaussian has no error from the step size;
others have one of its square."""
_STEP_OVERHEAD = 50
"""What a step costs besides its examples, in examples."""
_NUM_NOISE_POINTS, _NUM_NOISE_ROWS = 32, 512
_NUM_ROUNDS = 16
_NUM_HALVINGS = 5
_NUM_PROLONGATIONS = 10
_MONTE_CARLO_SHARE = 1 / 6
"""Of the tolerance: how well pilot runs know standard deviations before they are compared."""
_FEW_BATCHES = 4
"""Data of so few batches are looked at as a whole: nothing is gained by less."""


@dataclasses.dataclass(frozen=True)
class TuneReport:
    """What was measured, what was chosen, and what it promises; `print` it.

    | field | meaning |
    | --- | --- |
    | `distance` | of the mode found from the true one, in standard deviations |
    | `gradient_noise` | Ṽ of each estimator, in units where the posterior has spread 1 |
    | `predicted_error` | of standard deviations, relative, by theory on a Gaussian |
    | `halving_change` | what half the step size changed: the largest of any standard deviation, |
    | `halving_noise` | and the Monte Carlo error of that |
    | `kinetic_temperature` | of the momenta in the pilot runs: 1 when right |
    | `autocorrelation_time` | 1 + Σρ in steps, of the slowest parameter in the pilot runs |
    | `is_met` | whether all this keeps within `tolerance` |
    """

    num_parameters: int
    num_examples: int | None
    distance: float
    gradient_noise: dict[str, float]
    estimator: str
    step_size: float
    friction: float
    predicted_error: float
    halving_change: float
    halving_noise: float
    kinetic_temperature: float
    autocorrelation_time: float
    tolerance: float
    is_met: bool
    notes: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        data = "a potential" if self.num_examples is None else f"{self.num_examples:,} examples"
        noises = ", ".join(f"{name} {value:.3g}" for name, value in self.gradient_noise.items())
        lines = [
            f"{self.num_parameters:,} parameters, {data}; tuned in {self.seconds:.1f} s",
            f"gradient: {self.estimator}" + (f" (gradient noise: {noises})" if noises else ""),
            f"step size {self.step_size:.3g}, friction {self.friction:.3g}, whitened; one "
            f"independent draw in about {2 * self.autocorrelation_time:.0f} steps",
            f"standard deviations: {100 * self.predicted_error:.1f} % too wide by theory; "
            f"{self._halving}",
            f"verdict: {self.verdict}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    @property
    def _halving(self) -> str:
        if math.isnan(self.halving_change):
            return "half the step size was not tried"
        change, noise = 100 * self.halving_change, 100 * self.halving_noise
        return f"half the step size changed them by at most {change:.1f} % (± {noise:.1f} %)"

    @property
    def verdict(self) -> str:
        aim = f"errors of standard deviations below {100 * self.tolerance:.3g} %"
        return f"{aim} are {'to be expected' if self.is_met else 'NOT to be expected'}"


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """Settings for a posterior; `init` has a leading chain axis, for `sample(…, init_axis=0)`.

    `thinning` steps a draw make neighbouring draws nearly independent.
    """

    sampler: Whitened
    gradient: Gradient
    init: PyTree
    thinning: int
    report: TuneReport


def tune(
    key: jax.Array,
    target: Target,
    init: PyTree,
    *,
    batch_size: int = 500,
    tolerance: float = 0.05,
    num_chains: int = 4,
    gibbs: Gibbs | None = None,
) -> Tuned:
    """Choose sampler, gradient estimator and starts for a posterior.

    | argument | meaning |
    | --- | --- |
    | `init` | a point to search the mode from |
    | `batch_size` | examples a step may look at |
    | `tolerance` | largest relative error of any standard deviation |
    | `num_chains` | how many starts to return |
    | `gibbs` | updates of hyperparameters that will run too |

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(jnp.array([1e6, 1.0]) * theta**2) / 2)
    >>> tuned = sghmc.tune(jax.random.key(0), target, jnp.ones(2))
    >>> tuned.report.is_met
    True
    """
    checks.check_key(key)
    _check(target, batch_size, tolerance)
    positions = checks.start_positions(init, None, 1)
    start = jax.tree.map(lambda leaf: leaf[0], positions)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), start)
    checks.check_functions(target, like)
    began = time.perf_counter()
    tuner = _Tuner(key, target, find_region(target, start), batch_size, tolerance, gibbs)
    tuner.refine()
    trial = tuner.verify()
    return tuner.finish(trial, num_chains, time.perf_counter() - began)


def _check(target, batch_size, tolerance) -> None:
    if isinstance(target, StackedPosterior):
        raise TypeError("tune takes one posterior at a time: tune one of the stack.")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1, but is {batch_size!r}.")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, but is {tolerance!r}.")


class _Tuner:
    """The state of a tuning: the region so far, the estimator, the settings."""

    def __init__(self, key, target, region: Region, batch_size, tolerance, gibbs):
        self.key, self.num_runs = key, 0
        self.target, self.region, self.gibbs = target, region, gibbs
        self.batch_size, self.tolerance = batch_size, tolerance
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        self.most = min(0.5, _LARGEST_STEP * math.sqrt(tolerance / 0.05))
        self.largest_step = self.most if region.is_gaussian else self.most / 4
        self.num_chains, self.num_draws = (16, 200) if region.is_dense else (4, 24)
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.change = self.change_noise = math.nan
        self.places = draw_starts(target, region, self.rng, self.num_chains)
        self.noises: dict[str, float] = {}
        self.gradient: Gradient = FullBatch()
        self.settings = Settings.for_noise(0.0, tolerance, self.largest_step)

    def refine(self) -> None:
        """Pilot runs until their draws have spread 1 in the region's coordinates.

        Steps that lose chains become smaller; once nothing is lost, larger again.
        """
        fits = False
        for _ in range(_NUM_ROUNDS):
            self.choose()
            trial = self.run(self.settings)
            self.places = self._sound_places(trial)
            if not trial.is_finite:
                self.largest_step = self.settings.step_size / (2 if fits else 4)
                if fits:
                    return self.choose()
                continue
            z = self.region.inward(trial.draws.reshape(-1, trial.draws.shape[-1]))
            fits = self._fits(z)
            if fits and self.largest_step == self.most:
                return None
            if not fits:
                self.region = self.region.refined(z.mean(0), self._scatter(z))
            self.largest_step = min(2 * self.largest_step, self.most)
        self.choose()
        self.faults.append(
            "the pilot runs did not settle: the posterior is far from Gaussian, or has several "
            "modes; look at R-hat and at traces"
        )

    def _sound_places(self, trial: Trial) -> np.ndarray:
        """Where the chains are; those that were lost go back to where sound ones are."""
        sound = np.flatnonzero(np.all(np.isfinite(trial.draws), axis=(1, 2)))
        if len(sound) == 0:
            return self.places
        return trial.last[sound[np.arange(self.num_chains) % len(sound)]]

    def _scatter(self, z: np.ndarray) -> np.ndarray:
        """Covariance or variances of z, drawn to 1 by as much as the draws may lack."""
        if not self.region.is_dense:
            return (z.var(0) * len(z) + 10) / (len(z) + 10)
        count, size = z.shape
        covariance = np.cov(z.T).reshape(size, size)
        return (count * covariance + size * np.eye(size)) / (count + size)

    def _fits(self, z: np.ndarray) -> bool:
        """Whether mean and spread are those of the region, up to what pilots can tell."""
        count, size = z.shape
        slack = 2 * math.sqrt(2 * size / count) if self.region.is_dense else 1.0
        scatter = self._scatter(z)
        spreads = np.linalg.eigvalsh(scatter) if self.region.is_dense else scatter
        is_centered = np.abs(z.mean(0)).max() < 0.35 + slack
        return bool(is_centered and spreads.min() > 0.6 - slack and spreads.max() < 1.6 + slack)

    def choose(self) -> None:
        """The estimator with the cheapest independent draw, and its settings."""
        candidates = self._candidates()
        self.noises, best = {}, None
        for name, (gradient, num_rows) in candidates.items():
            noise = self._noise(gradient)
            if num_rows is not None and not isinstance(gradient, FullBatch):
                self.noises[name] = noise
            settings = Settings.for_noise(noise, self.tolerance, self.largest_step)
            misses = settings.law.standard_deviation_error > self.tolerance
            time_per_draw = settings.law.autocorrelation_time * ((num_rows or 0) + _STEP_OVERHEAD)
            if best is None or (misses, time_per_draw) < best[0]:
                best = (misses, time_per_draw), gradient, settings
        assert best is not None
        _, self.gradient, self.settings = best

    def _candidates(self) -> dict[str, tuple[Gradient, int | None]]:
        """Estimators by name, with the examples that a step of each looks at."""
        if not isinstance(self.target, Posterior):
            return {"exact": (FullBatch(), None)}
        count = int(self.target.num_examples)
        if self.batch_size >= count:
            note = f"the batch of {self.batch_size} has room for all {count} examples: all are used"
            if note not in self.notes:
                self.notes.append(note)
            return {"all data": (FullBatch(), count)}
        if count <= _FEW_BATCHES * self.batch_size:
            return {"all data": (FullBatch(), count)}
        # Distinct rows help where a batch is a good part of the data, and are dearer to draw.
        replacement = self.batch_size < count / 10
        center = self.region.center_tree
        batch = self.batch_size
        candidates: dict[str, tuple[Gradient, int | None]] = {
            "control variate": (
                ControlVariate(batch, center, replacement, shared=True),
                2 * batch,
            ),
            "minibatch": (Minibatch(batch, replacement), batch),
        }
        if count <= 20 * batch:
            candidates["all data"] = (FullBatch(), count)
        return candidates

    def _noise(self, gradient: Gradient) -> float:
        """Ṽ: the largest eigenvalue of LᵀVL, V averaged over where the chains are."""
        if isinstance(gradient, FullBatch):
            return 0.0
        assert isinstance(self.target, Posterior)
        count = int(self.target.num_examples)
        points = self.places[np.arange(_NUM_NOISE_POINTS) % len(self.places)]
        rows = self.rng.integers(0, count, (len(points), min(_NUM_NOISE_ROWS, 4 * count)))
        with jax.enable_x64(True):
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), self.region.like
            )
            positions = dataclasses.replace(self.region, like=like).params(points)
            estimator = gradient.prepare(self.target, jax.tree.map(lambda x: x[0], positions))
            covariance = mean_gradient_noise(
                estimator,
                self.target,
                jax.tree.map(jnp.asarray, positions),
                jnp.asarray(rows, jnp.int32),
                diagonal=not self.region.is_dense,
            )
            whitened = self.region.whitened(np.asarray(covariance))
        if self.region.is_dense:
            return float(np.linalg.eigvalsh(whitened)[-1])
        return float(np.mean(whitened))

    def run(self, settings: Settings, places: np.ndarray | None = None) -> Trial:
        """Pilot chains from `places`."""
        self.num_runs += 1
        return run_pilot(
            jax.random.fold_in(self.key, self.num_runs),
            self.target,
            self.gradient,
            self.region,
            settings,
            self.places if places is None else places,
            num_draws=self.num_draws,
            gibbs=self.gibbs,
        )

    def measure(self, settings: Settings) -> Trial:
        """Pilot chains for as long as their standard deviations are too uncertain to judge."""
        trial = self.run(settings)
        # Of many parameters only the average is judged: that is known soon.
        for _ in range(1, _NUM_PROLONGATIONS if self.region.is_dense else 2):
            enough = self.tolerance * _MONTE_CARLO_SHARE
            if not trial.is_finite or trial.moments().log_spread_error.max() < enough:
                break
            trial = trial.joined(self.run(settings, trial.last))
        return trial

    def verify(self) -> Trial:
        """Halve the step size until that changes no mean and no standard deviation by much.

        The momenta must have their temperature too: they feel what is wrong with the forces.
        """
        if self.misses:  # nothing is promised, so there is nothing to test
            return self.run(self.settings)
        trial = self.measure(self.settings)
        for _ in range(_NUM_HALVINGS):
            half = self.measure(self.settings.halved())
            self.change, self.change_noise, agrees = self._compare(trial, half)
            if agrees and heat_fault(trial.heat, self.tolerance) is None:
                return trial
            self.settings, trial = self.settings.halved(), half
            self.places = self._sound_places(half)
        fault = "halving the step size did not end its effect: see the traces"
        self.faults.append(heat_fault(trial.heat, self.tolerance) or fault)
        return trial

    @property
    def misses(self) -> bool:
        """Whether gradient noise alone makes a larger error than the tolerance."""
        return self.settings.law.standard_deviation_error > self.tolerance

    def _compare(self, whole: Trial, half: Trial) -> tuple[float, float, bool]:
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
        is_small = np.all(change <= self.tolerance / 3 + 2 * error)
        is_still = np.all(shift <= self.tolerance + 2 * shift_error)
        is_each = not self.region.is_dense or (is_small and is_still)
        # A change that all share stands out of their noise.
        common = abs(np.mean(before.log_spread - after.log_spread))
        is_apart = common <= self.tolerance / 3 + np.mean(error)
        worst = int(np.argmax(change - 2 * error))
        return float(change[worst]), float(error[worst]), bool(is_each and is_apart)

    def finish(self, trial: Trial, num_chains: int, seconds: float) -> Tuned:
        error = self.settings.law.standard_deviation_error
        steps = self.settings.law.autocorrelation_time
        if trial.is_finite:
            steps = trial.autocorrelation_time * self.settings.thinning
        else:
            trial = Trial(self.places[:, None], np.full((len(self.places), 1), np.nan))
            self.faults.append(
                "pilot runs did not stay finite: take larger batches, or look at the model's tails"
            )
        if self.misses:
            needed = self.batch_size * self.settings.noise / (4 * NOISE_SHARE * self.tolerance)
            self.faults.append(
                f"gradient noise alone makes standard deviations {100 * error:.0f} % too wide: "
                f"batches of about {math.ceil(needed / LARGEST_RATIO):,} would do"
            )
        if not self.region.is_gaussian:
            self.notes.append(
                "no single mode was found or looked for: the coordinates are those of pilot runs, "
                "and errors are predicted as if the posterior were Gaussian there"
            )
        pool = trial.draws[:, :: -max(1, trial.draws.shape[1] // 8)]
        order = pool.swapaxes(0, 1).reshape(-1, pool.shape[-1])
        starts = order[np.arange(num_chains) % len(order)]
        report = TuneReport(
            num_parameters=len(self.region.center),
            num_examples=int(self.target.num_examples)
            if isinstance(self.target, Posterior)
            else None,
            distance=self.region.distance,
            gradient_noise=self.noises,
            estimator=type(self.gradient).__name__,
            step_size=self.settings.step_size,
            friction=self.settings.friction,
            predicted_error=error,
            halving_change=self.change,
            halving_noise=self.change_noise,
            kinetic_temperature=float(np.mean(trial.heat)),
            autocorrelation_time=steps,
            tolerance=self.tolerance,
            is_met=not self.faults,
            notes=(*self.faults, *self.notes),
            seconds=seconds,
        )
        return Tuned(
            self.settings.sampler(self.region),
            self.gradient,
            jax.tree.map(jnp.asarray, self.region.params(starts)),
            max(1, math.ceil(steps)),
            report,
        )
