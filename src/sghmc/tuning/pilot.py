"""Pilot runs: short runs of the chains that the real run will have, and what these say."""

import math
import warnings
from typing import NamedTuple

import jax
import numpy as np

from sghmc.engine.options import RunOptions
from sghmc.engine.run import run
from sghmc.gradients.base import Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.source import DataError
from sghmc.posterior.target import Target
from sghmc.results import convergence
from sghmc.samplers.base import Sampler
from sghmc.tuning.budget import Budget
from sghmc.tuning.region import Region

_HOT = 1.5
"""A kinetic temperature, 1 when right."""
_NUM_PARTS = 16
"""Parts of chains that Monte Carlo errors are estimated from."""


class Trial:
    """Draws of pilot chains, axes (chain, draw, raveled parameter), and what they say.

    `heat` holds the kinetic temperatures, `acceptance` what accept steps said, and `potential` the
    potentials, as far as steps saw them, axes (chain, draw); NaN where there are none.
    """

    def __init__(
        self,
        draws: np.ndarray,
        heat: np.ndarray,
        acceptance: np.ndarray,
        potential: np.ndarray | None = None,
    ):
        self.draws, self.heat, self.acceptance = draws, heat, acceptance
        self.potential = np.zeros(heat.shape) if potential is None else potential

    @property
    def is_finite(self) -> bool:
        return bool(np.all(np.isfinite(self.draws)))

    @property
    def is_hot(self) -> bool:
        """Whether momenta say that steps are far too large, though nothing has run away yet."""
        return bool(np.mean(self.heat) > _HOT)

    @property
    def last(self) -> np.ndarray:
        return self.draws[:, -1]

    @property
    def num_draws(self) -> int:
        return self.draws.shape[1]

    def after(self, count: int) -> "Trial":
        """Without the first `count` draws of each chain."""
        return Trial(*(part[:, count:] for part in self._parts))

    def joined(self, other: "Trial") -> "Trial":
        pairs = zip(self._parts, other._parts, strict=True)
        return Trial(*(np.concatenate(pair, axis=1) for pair in pairs))

    @property
    def _parts(self) -> tuple[np.ndarray, ...]:
        return self.draws, self.heat, self.acceptance, self.potential

    @property
    def is_sound(self) -> np.ndarray:
        """Of every chain, whether it stayed finite, and where other chains are, by its potential.

        That of d parameters varies by √(d/2).
        """
        is_finite = np.all(np.isfinite(self.draws), axis=(1, 2))
        if not is_finite.any():
            return is_finite
        ends = self.potential[:, -1]
        reach = 50 + 10 * math.sqrt(self.draws.shape[2] / 2)
        with np.errstate(invalid="ignore"):
            return is_finite & (ends < np.median(ends[is_finite]) + reach)

    @property
    def lowest_acceptance(self) -> float:
        """The mean acceptance of the chain where it is lowest: trajectories lost count as 0."""
        return float(np.nan_to_num(self.acceptance).mean(1).min())

    @property
    def r_hat(self) -> float:
        """The largest one; NaN of a single chain."""
        return float(convergence.r_hat(self._by_number).max())

    @property
    def autocorrelation_time(self) -> float:
        """1 + Σρ in draws, of the slowest parameter or square of one."""
        away = self._by_number - self.draws.mean((0, 1))[:, None, None]
        return float(max(convergence.autocorrelation_time(x).max() for x in (away, away**2)))

    @property
    def _by_number(self) -> np.ndarray:
        return np.ascontiguousarray(self.draws.transpose(2, 0, 1))

    def moments(self) -> "Moments":
        """With errors from the scatter of parts of the chains, each much longer than memory."""
        num_chains, num_draws, size = self.draws.shape
        cuts = max(1, min(math.ceil(_NUM_PARTS / num_chains), num_draws // 2))
        length = num_draws // cuts
        parts = self.draws[:, : cuts * length].reshape(num_chains * cuts, length, size)
        mean = parts.mean((0, 1))
        squares = ((parts - mean) ** 2).mean(1)
        root = math.sqrt(len(squares))
        return Moments(
            mean=mean,
            mean_error=parts.mean(1).std(0, ddof=1) / root,
            log_spread=np.log(squares.mean(0)) / 2,
            log_spread_error=squares.std(0, ddof=1) / root / (2 * squares.mean(0)),
        )


class Moments(NamedTuple):
    """Mean and log of the standard deviation of each parameter, with Monte Carlo errors."""

    mean: np.ndarray
    mean_error: np.ndarray
    log_spread: np.ndarray
    log_spread_error: np.ndarray


class Pilots:
    """Runs pilot chains: as many as the real run has, so that they share its compiled programs.

    After every `most_draws` it looks at the budget.
    """

    def __init__(
        self,
        key: jax.Array,
        target: Target,
        num_chains: int,
        most_draws: int,
        budget: Budget,
        gibbs: Gibbs | None = None,
    ):
        self.key, self.num_runs = key, 0
        self.target, self.num_chains, self.most_draws = target, num_chains, most_draws
        self.budget, self.gibbs = budget, gibbs

    def run(
        self,
        sampler: Sampler,
        gradient: Gradient,
        region: Region,
        places: np.ndarray,
        num_draws: int,
        thinning: int = 1,
    ) -> Trial:
        """Chains from each of `places`, raveled parameters; shorter once the budget is spent."""
        count = min(num_draws, self.most_draws)
        trial = self._piece(sampler, gradient, region, places, count, thinning)
        while trial.num_draws < num_draws and trial.is_finite and self.budget.left > 0:
            count = min(num_draws - trial.num_draws, self.most_draws)
            more = self._piece(sampler, gradient, region, trial.last, count, thinning)
            trial = trial.joined(more)
        return trial

    def fault(self) -> str:
        """What to say when pilots have not settled."""
        if self.budget.left < 0:
            return (
                f"the pilot runs had not settled when the budget of {self.budget.seconds:g} s was "
                f"spent: give more by sghmc.tune(…, budget=…)"
            )
        return (
            "the pilot runs did not settle: the posterior is far from Gaussian, or has several "
            "modes; look at R-hat and at traces"
        )

    def _piece(self, sampler, gradient, region, places, num_draws: int, thinning: int) -> Trial:
        self.num_runs += 1
        self.budget.tell(f"pilot runs, number {self.num_runs}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Interrupted", category=UserWarning)
            samples = run(
                jax.random.fold_in(self.key, self.num_runs),
                self.target,
                sampler,
                region.params(places),
                RunOptions(
                    gradient=gradient,
                    num_samples=num_draws,
                    thinning=thinning,
                    num_chains=len(places),
                    init_axis=0,
                    gibbs=self.gibbs,
                    progress=False,
                    throw=False,
                ),
            )
        if samples.is_interrupted:
            raise KeyboardInterrupt("Ctrl-C while tuning.")
        if samples.num_draws < num_draws:
            raise DataError("The data could not be read while tuning: a warning has said why.")
        shape = (len(places), num_draws)
        leaves = [leaf.reshape(*shape, -1) for leaf in jax.tree.leaves(samples.positions)]
        draws = np.concatenate(leaves, -1, dtype=np.float64)
        # A chain on its way out is still finite when its potential no longer is.
        draws[~np.isfinite(samples.info.potential)] = np.nan
        unknown = np.full(shape, np.nan)
        heat, acceptance = samples.info.kinetic_temperature, samples.info.acceptance
        return Trial(
            draws,
            unknown if heat is None else heat,
            unknown if acceptance is None else acceptance,
            np.asarray(samples.info.potential),
        )
