"""Which gradient estimator makes an independent draw for the least work, and with what settings."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import theory
from sghmc.core.double import double_precision
from sghmc.gradients.base import Gradient
from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.fisher import mean_gradient_noise
from sghmc.gradients.minibatch import Minibatch
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.posterior.target import Target
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.whitened import Whitened
from sghmc.tuning.region import Region

_FRICTION = 1.5
"""Between 1 and 2 friction serves means and variances alike."""
_SMALL_STEP = 0.05
"""Below this more friction takes over: C/ε is what gradient noise asks for."""
_LARGEST_DECAY = 0.5
_LARGEST_RATIO = 1_000.0
"""C/ε beyond which a draw is too dear: rather a promise of less."""
_NOISE_SHARE = 0.4
"""Of the tolerance; the rest is for what is not Gaussian."""
_LARGEST_THINNING = 64
"""Steps of a pilot's draw: with dear gradients a pilot makes fewer independent draws."""
_STEP_OVERHEAD = 50
"""What a step costs besides its examples, in examples."""
_NUM_POINTS, _NUM_ROWS = 32, 512
FEW_BATCHES = 4
"""Data of so few batches are looked at as a whole: nothing is gained by less."""
_MANY_BATCHES = 100
"""Data of so many batches are not looked at as a whole in every step, whatever that would gain."""


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
        """About an independent draw; a power of two, so that pilots share programs."""
        steps = min(2 * self.law.autocorrelation_time, _LARGEST_THINNING)
        return 2 ** max(2, round(math.log2(steps)))

    def sampler(self, region: Region) -> Whitened:
        inner = SGHMC(self.step_size, self.friction, observe="middle")
        return Whitened(inner, region.center_tree, region.factor_tree)

    def halved(self) -> "Settings":
        return dataclasses.replace(self, step_size=self.step_size / 2)

    @classmethod
    def for_noise(cls, noise: float, tolerance: float, largest_step: float) -> "Settings":
        """The quickest settings whose error stays below the tolerance."""
        # On a Gaussian gradient noise makes an error of εṼ/4C.
        ratio = min(noise / (4 * _NOISE_SHARE * tolerance), _LARGEST_RATIO)
        ratio = max(ratio, _FRICTION / largest_step)
        step_size = _FRICTION / ratio
        if step_size < min(_SMALL_STEP, largest_step):
            step_size = min(_SMALL_STEP, largest_step, math.sqrt(_LARGEST_DECAY / ratio))
        return cls(step_size, ratio * step_size, noise)

    def rows_needed(self, batch_size: int, tolerance: float) -> int:
        """Of a batch whose noise the tolerance has room for."""
        ratio = self.noise / (4 * _NOISE_SHARE * tolerance)
        return math.ceil(batch_size * ratio / _LARGEST_RATIO)


class Estimators:
    """The gradient estimators that come into question for a target."""

    def __init__(self, target: Target, batch_size: int, tolerance: float, rng):
        self.target, self.batch_size = target, batch_size
        self.tolerance, self.rng = tolerance, rng

    def best(self, region: Region, places: np.ndarray, largest_step: float) -> "Choice":
        """The one with the cheapest independent draw, its settings, and the noise of all."""
        noises, best = {}, None
        for name, (gradient, num_rows) in self._candidates(region).items():
            noise = self.noise(gradient, region, places)
            if not isinstance(gradient, FullBatch):
                noises[name] = noise
            settings = Settings.for_noise(noise, self.tolerance, largest_step)
            misses = settings.law.standard_deviation_error > self.tolerance
            work = settings.law.autocorrelation_time * (num_rows + _STEP_OVERHEAD)
            if best is None or (misses, work) < best[0]:
                best = (misses, work), gradient, settings
            if settings.step_size == largest_step:
                break  # what comes later has more noise, or more rows
        assert best is not None
        return Choice(best[1], best[2], noises)

    def _candidates(self, region: Region) -> dict[str, tuple[Gradient, int]]:
        """Estimators by name, with the examples that a step of each looks at."""
        if not isinstance(self.target, RowPosterior):
            return {"exact": (FullBatch(), 0)}
        count, batch = int(self.target.num_examples), self.batch_size
        if count <= FEW_BATCHES * batch:
            return {"all data": (FullBatch(), count)}
        # Distinct rows help where a batch is a good part of the data, and are dearer to draw.
        replacement = batch < count / 10
        center = region.center_tree
        candidates: dict[str, tuple[Gradient, int]] = {}
        if region.is_gaussian:  # away from a mode gradients differ from those at a center by much
            control = ControlVariate(batch, center, replacement, shared=True)
            candidates["control variate"] = control, 2 * batch
        candidates["minibatch"] = Minibatch(batch, replacement), batch
        if count <= _MANY_BATCHES * batch:
            candidates["all data"] = (FullBatch(), count)
        return candidates

    def noise(self, gradient: Gradient, region: Region, places: np.ndarray) -> float:
        """Ṽ: the largest eigenvalue of LᵀVL, V averaged over where the chains are."""
        if isinstance(gradient, FullBatch):
            return 0.0
        assert isinstance(self.target, RowPosterior)
        count = int(self.target.num_examples)
        points = places[np.arange(_NUM_POINTS) % len(places)]
        rows = self.rng.integers(0, count, (len(points), min(_NUM_ROWS, 4 * count)))
        with double_precision():
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), region.like
            )
            positions = dataclasses.replace(region, like=like).params(points)
            estimator = gradient.prepare(self.target, jax.tree.map(lambda x: x[0], positions))
            covariance = mean_gradient_noise(
                estimator,
                self.target,
                jax.tree.map(jnp.asarray, positions),
                jnp.asarray(rows, jnp.int32),
                diagonal=not region.is_dense,
            )
            whitened = region.whitened(np.asarray(covariance))
        if region.is_dense:
            return float(np.linalg.eigvalsh(whitened)[-1])
        return float(np.mean(whitened))


class Choice(NamedTuple):
    gradient: Gradient
    settings: Settings
    noises: dict[str, float]
