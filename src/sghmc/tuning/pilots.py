"""Pilot runs: short runs of the chains that the real run will have, within a budget."""

import math
import warnings
from typing import NamedTuple

import jax
import numpy as np

from sghmc.engine.options import RunOptions
from sghmc.engine.run import run
from sghmc.gradients import Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.sources import DataError
from sghmc.posterior.target import Target
from sghmc.results import convergence
from sghmc.results.health import temperature_complaint
from sghmc.samplers import Sampler
from sghmc.tuning.budget import Budget, Costs
from sghmc.tuning.whitening import Whitening

# A mean kinetic temperature (1 is right) from which on steps are far too large.
_HOT_TEMPERATURE = 1.5
# With more parameters than this, the slowest of a short run is not known.
_MAX_WAITED_FOR = 500
# Monte Carlo errors are estimated from about so many parts of the chains.
_NUM_PARTS = 16


class PilotRun(NamedTuple):
    """Draws of pilot chains and their diagnostics.

    | field | meaning |
    | --- | --- |
    | `draws` | axes (chain, draw, raveled parameter) |
    | `temperature` | kinetic temperatures, axes (chain, draw); NaN if the sampler has none |
    | `acceptance` | acceptance probabilities, likewise |
    | `potential` | potentials of the draws, likewise |
    """

    draws: np.ndarray
    temperature: np.ndarray
    acceptance: np.ndarray
    potential: np.ndarray

    @property
    def num_draws(self) -> int:
        return self.draws.shape[1]

    @property
    def is_finite(self) -> bool:
        return bool(np.all(np.isfinite(self.draws)))

    @property
    def is_hot(self) -> bool:
        """Whether the momenta show that steps are far too large, though no chain is lost yet."""
        return bool(np.mean(self.temperature) > _HOT_TEMPERATURE)

    @property
    def is_sound(self) -> np.ndarray:
        """Return which chains are finite and, by their potential, where the other chains are.

        The potential of d parameters varies by √(d/2) in equilibrium.
        """
        is_finite = np.all(np.isfinite(self.draws), axis=(1, 2))
        if not is_finite.any():
            return is_finite
        ends = self.potential[:, -1]
        margin = 50 + 10 * math.sqrt(self.draws.shape[2] / 2)
        with np.errstate(invalid="ignore"):
            return is_finite & (ends < np.median(ends[is_finite]) + margin)

    @property
    def lowest_acceptance(self) -> float:
        """Return the mean acceptance of the worst chain; trajectories that were lost count as 0."""
        return float(np.nan_to_num(self.acceptance).mean(1).min())

    @property
    def r_hat(self) -> float:
        """Return the largest R-hat of any parameter; NaN for a single chain."""
        return float(convergence.r_hat(convergence.by_quantity(self.draws)).max())

    @property
    def autocorrelation_time(self) -> float:
        """Return 1 + Σρ, in draws, of the slowest parameter or square of one.

        Of very many the largest estimate is mostly noise, so the slowest fiftieth is left out.
        """
        away = convergence.by_quantity(self.draws) - self.draws.mean((0, 1))[:, None, None]
        times = [convergence.autocorrelation_time(x) for x in (away, away**2)]
        return float(np.quantile(times, 1.0 if len(away) <= _MAX_WAITED_FOR else 0.98))

    def after(self, count: int) -> "PilotRun":
        """Return the run without the first `count` draws of each chain."""
        return PilotRun(*(part[:, count:] for part in self))

    def joined(self, other: "PilotRun") -> "PilotRun":
        """Return this run followed by another one of the same chains."""
        return PilotRun(*(np.concatenate(pair, axis=1) for pair in zip(self, other, strict=True)))

    def moments(self) -> "PilotMoments":
        """Estimate moments, and their errors from parts of chains much longer than their memory."""
        num_chains, num_draws, size = self.draws.shape
        cuts = max(1, min(math.ceil(_NUM_PARTS / num_chains), num_draws // 2))
        length = num_draws // cuts
        parts = self.draws[:, : cuts * length].reshape(num_chains * cuts, length, size)
        mean = parts.mean((0, 1))
        squares = ((parts - mean) ** 2).mean(1)
        root = math.sqrt(len(squares))
        return PilotMoments(
            mean=mean,
            mean_error=parts.mean(1).std(0, ddof=1) / root,
            log_sd=np.log(squares.mean(0)) / 2,
            log_sd_error=squares.std(0, ddof=1) / root / (2 * squares.mean(0)),
        )


class PilotMoments(NamedTuple):
    """Mean and log standard deviation of each parameter, with Monte Carlo errors."""

    mean: np.ndarray
    mean_error: np.ndarray
    log_sd: np.ndarray
    log_sd_error: np.ndarray


class HalvingTest(NamedTuple):
    """How much half the step size changes: nothing that matters, if the step size is good.

    `change` is the largest change of a log standard deviation and `noise` its Monte Carlo error.
    """

    change: float = math.nan
    noise: float = math.nan
    is_passed: bool = False


def compare_halved(
    whole: PilotRun, half: PilotRun, tolerance: float, *, is_dense: bool
) -> HalvingTest:
    """Compare a run with one of half the step size, in means, standard deviations and temperature.

    With many parameters (`is_dense` False) only their average change is known well enough.
    """
    if not (whole.is_finite and half.is_finite):
        return HalvingTest(math.inf, 0.0)
    before, after = whole.moments(), half.moments()
    change = np.abs(before.log_sd - after.log_sd)
    error = np.hypot(before.log_sd_error, after.log_sd_error)
    sd = np.exp(after.log_sd)
    shift = np.abs(before.mean - after.mean) / sd
    shift_error = np.hypot(before.mean_error, after.mean_error) / sd
    # The bias falls with the square of the step size: half the step leaves a quarter of it, so the
    # bias is a third more than the change.
    is_small = np.all(change <= tolerance / 3 + 2 * error)
    is_still = np.all(shift <= tolerance + 2 * shift_error)
    # A change that all parameters share is seen beyond the noise of each.
    common = abs(np.mean(before.log_sd - after.log_sd))
    agrees = common <= tolerance / 3 + np.mean(error)
    if is_dense:
        agrees = agrees and is_small and is_still
    worst = int(np.argmax(change - 2 * error))
    # Momenta feel what is wrong with the forces.
    is_warm = temperature_complaint(whole.temperature, tolerance) is None
    return HalvingTest(float(change[worst]), float(error[worst]), bool(agrees and is_warm))


class Pilots:
    """Run pilot chains: as many as the real run has, so that both share compiled programs.

    A run is made in pieces of at most `max_draws` draws; the budget is checked between them.
    """

    def __init__(
        self,
        key: jax.Array,
        target: Target,
        num_chains: int,
        max_draws: int,
        budget: Budget,
        gibbs: Gibbs | None = None,
        costs: Costs | None = None,
    ):
        self.key, self.num_runs = key, 0
        self.target, self.num_chains, self.max_draws = target, num_chains, max_draws
        self.budget, self.gibbs = budget, gibbs
        self.costs = Costs() if costs is None else costs

    def run(
        self,
        sampler: Sampler,
        gradient: Gradient,
        whitening: Whitening,
        starts: np.ndarray,
        num_draws: int,
        thinning: int = 1,
    ) -> PilotRun:
        """Run `sampler` in whitened coordinates from each of `starts`, rows of raveled parameters.

        The run is shorter if the budget ends or a chain is lost.
        """
        count = min(num_draws, self.max_draws)
        found = self._piece(sampler, gradient, whitening, starts, count, thinning)
        while found.num_draws < num_draws and found.is_finite and self.budget.left > 0:
            count = min(num_draws - found.num_draws, self.max_draws)
            more = self._piece(sampler, gradient, whitening, found.draws[:, -1], count, thinning)
            found = found.joined(more)
        return found

    def _piece(
        self,
        sampler: Sampler,
        gradient: Gradient,
        whitening: Whitening,
        starts: np.ndarray,
        num_draws: int,
        thinning: int,
    ) -> PilotRun:
        self.num_runs += 1
        steps = num_draws * thinning * len(starts)
        self.budget.spend(self.costs.of_steps(sampler, gradient, steps))
        self.budget.show(f"pilot runs, number {self.num_runs}")
        options = RunOptions(
            gradient=gradient,
            num_samples=num_draws,
            thinning=thinning,
            num_chains=len(starts),
            init_axis=0,
            gibbs=self.gibbs,
            progress=False,
            throw=False,
        )
        key = jax.random.fold_in(self.key, self.num_runs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Interrupted", category=UserWarning)
            init = whitening.params(starts)
            samples = run(key, self.target, whitening.wrap(sampler), init, options)
        if samples.is_interrupted:
            raise KeyboardInterrupt("Ctrl-C while tuning.")
        if samples.num_draws < num_draws:
            raise DataError("The data could not be read while tuning: a warning has said why.")
        info, shape = samples.info, (len(starts), num_draws)
        leaves = [leaf.reshape(*shape, -1) for leaf in jax.tree.leaves(samples.positions)]
        draws = np.concatenate(leaves, -1, dtype=np.float64)
        # A chain on its way out is still finite when its potential no longer is.
        draws[~np.isfinite(info.potential)] = np.nan
        unknown = np.full(shape, np.nan)
        return PilotRun(
            draws,
            unknown if info.kinetic_temperature is None else info.kinetic_temperature,
            unknown if info.acceptance is None else info.acceptance,
            np.asarray(info.potential),
        )

    def complaint(self) -> str:
        """Return what a report says if the pilot runs have not settled."""
        if self.budget.left < 0:
            return (
                f"the pilot runs had not settled when the {self.budget} was spent: give more by "
                f"until=sghmc.Until(seconds=…)"
            )
        return (
            "the pilot runs did not settle: the posterior is far from Gaussian, or has several "
            "modes; look at R-hat and at traces"
        )
