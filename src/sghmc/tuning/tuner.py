"""The search for settings: pilot runs refine the coordinates, halved steps test the result.

The arithmetic is that of a Gaussian in coordinates where it has spread 1 (`theory.friction_law`).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.gradients.base import Gradient
from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.fisher import mean_gradient_noise
from sghmc.gradients.minibatch import Minibatch
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.potential import Potential
from sghmc.results.health import heat_fault
from sghmc.tuning.pilot import Settings, Trial, run_pilot
from sghmc.tuning.region import Region, draw_starts

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
_MANY_BATCHES = 100
"""Data of so many batches are not looked at as a whole in every step, whatever that would gain."""


class Tuner:
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
        for attempt in range(_NUM_ROUNDS):
            self.choose()
            if attempt == 0 and self._is_dear:
                self._approach()
                self.choose()
            trial = self.run(self.settings)
            if not trial.is_hot:
                self.places = self._sound_places(trial)
            if trial.is_hot or not trial.is_finite:
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

    @property
    def _is_dear(self) -> bool:
        """Whether batches are of no use here, and all data are many."""
        if not isinstance(self.target, Posterior) or not self.region.is_dense or self.gibbs:
            return False
        is_long = self.target.num_examples > _FEW_BATCHES * self.batch_size
        return bool(is_long and (self.misses or isinstance(self.gradient, FullBatch)))

    def _approach(self) -> None:
        """Go to where most draws lie by few rows in place of all.

        The mode of a hierarchical model may lie far off, and gradients are noisy on the way.
        """
        assert isinstance(self.target, Posterior)
        count = int(self.target.num_examples)
        chosen = self.rng.choice(count, _FEW_BATCHES * self.batch_size, replace=False)
        rows = self.target.rows(jnp.asarray(chosen))
        thinned = Potential(lambda params: self.target.estimate(params, rows))
        key = jax.random.fold_in(self.key, 0)
        scout = Tuner(key, thinned, self.region, self.batch_size, self.tolerance, None)
        scout.refine()
        self.region, self.places = scout.region, scout.places
        self.largest_step = self.most = scout.largest_step

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
        if count <= _MANY_BATCHES * batch:
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
