"""Pilot runs: settings for a gradient noise, short chains, and what these say."""

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from sghmc import theory
from sghmc.engine.options import RunOptions
from sghmc.engine.run import run
from sghmc.gradients.base import Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.target import Target
from sghmc.results import diagnostics
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.whitened import Whitened
from sghmc.tuning.region import Region

_FRICTION = 1.5
"""Between 1 and 2 friction serves means and variances alike."""
_SMALL_STEP = 0.05
"""Below this more friction takes over: C/ε is what gradient noise asks for."""
_LARGEST_DECAY = 0.5
LARGEST_RATIO = 1_000.0
"""C/ε beyond which a draw is too dear: rather a promise of less."""
NOISE_SHARE = 0.4
"""Of the tolerance; the rest is for what is not Gaussian."""
_HOT = 1.5
"""A kinetic temperature, 1 when right."""
_NUM_BURNIN = 20
_LARGEST_THINNING = 64
"""Steps of a pilot's draw: with dear gradients a pilot makes fewer independent draws."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Step size and friction in whitened coordinates, for a gradient noise Ṽ."""

    step_size: float
    friction: float
    noise: float

    @property
    def law(self) -> theory.FrictionLaw:
        return theory.friction_law(
            self.step_size, self.friction, gradient_noise=self.noise, observe="middle"
        )

    @property
    def thinning(self) -> int:
        """About an autocorrelation time; a power of two, so that pilots share programs."""
        steps = min(self.law.autocorrelation_time, _LARGEST_THINNING)
        return 2 ** max(2, math.ceil(math.log2(steps)))

    def sampler(self, region: Region) -> Whitened:
        inner = SGHMC(self.step_size, self.friction, observe="middle")
        return Whitened(inner, region.center_tree, region.factor_tree)

    def halved(self) -> "Settings":
        return dataclasses.replace(self, step_size=self.step_size / 2)

    @classmethod
    def for_noise(cls, noise: float, tolerance: float, largest_step: float) -> "Settings":
        """The quickest settings whose error stays below the tolerance."""
        # On a Gaussian gradient noise makes an error of εṼ/4C.
        ratio = min(noise / (4 * NOISE_SHARE * tolerance), LARGEST_RATIO)
        ratio = max(ratio, _FRICTION / largest_step)
        step_size = _FRICTION / ratio
        if step_size < min(_SMALL_STEP, largest_step):
            step_size = min(_SMALL_STEP, largest_step, math.sqrt(_LARGEST_DECAY / ratio))
        return cls(step_size, ratio * step_size, noise)


class Trial:
    """Draws of pilot chains, axes (chain, draw, raveled parameter), and what they say.

    `heat` holds the kinetic temperatures, axes (chain, draw).
    """

    def __init__(self, draws: np.ndarray, heat: np.ndarray):
        self.draws, self.heat = draws, heat

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

    def joined(self, other: "Trial") -> "Trial":
        draws = np.concatenate([self.draws, other.draws], axis=1)
        return Trial(draws, np.concatenate([self.heat, other.heat], axis=1))

    @property
    def autocorrelation_time(self) -> float:
        """1 + Σρ in draws, of the slowest parameter or square of one."""
        away = self.draws - self.draws.mean((0, 1))
        times = [diagnostics.autocorrelation_time(each).max() for each in (away, away**2)]
        return float(max(times))

    def moments(self) -> "Moments":
        mean = self.draws.mean((0, 1))
        squares = ((self.draws - mean) ** 2).mean(1)
        root = math.sqrt(len(squares))
        return Moments(
            mean=mean,
            mean_error=self.draws.mean(1).std(0, ddof=1) / root,
            log_spread=np.log(squares.mean(0)) / 2,
            log_spread_error=squares.std(0, ddof=1) / root / (2 * squares.mean(0)),
        )


class Moments(NamedTuple):
    """Mean and log of the standard deviation of each parameter, with Monte Carlo errors."""

    mean: np.ndarray
    mean_error: np.ndarray
    log_spread: np.ndarray
    log_spread_error: np.ndarray


def run_pilot(
    key: jax.Array,
    target: Target,
    gradient: Gradient,
    region: Region,
    settings: Settings,
    places: np.ndarray,
    *,
    num_draws: int,
    gibbs: Gibbs | None,
) -> Trial:
    """Chains from each of `places`, raveled parameters, about an autocorrelation time a draw."""
    samples = run(
        key,
        target,
        settings.sampler(region),
        region.params(places),
        RunOptions(
            gradient=gradient,
            num_samples=num_draws,
            num_burnin=_NUM_BURNIN,
            thinning=settings.thinning,
            num_chains=len(places),
            init_axis=0,
            gibbs=gibbs,
            progress=False,
            throw=False,
        ),
    )
    leaves = [
        leaf.reshape(len(places), num_draws, -1) for leaf in jax.tree.leaves(samples.positions)
    ]
    draws = np.concatenate(leaves, -1, dtype=np.float64)
    # A chain on its way out is still finite when its potential no longer is.
    draws[~np.isfinite(samples.info.potential)] = np.nan
    assert samples.info.kinetic_temperature is not None
    return Trial(draws, samples.info.kinetic_temperature)
