"""Choice of the engine and of the gradient estimator, by predicted costs.

Engines are compared by counted costs, gradient estimators by rows for an independent draw.
"""

import dataclasses
import math
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import theory
from sghmc.core.runtime import double_precision
from sghmc.gradients import FullBatch, Gradient, Minibatch
from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.noise import mean_gradient_noise
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import RowPosterior
from sghmc.posterior.target import Target
from sghmc.samplers.sghmc import SGHMC
from sghmc.tuning.budget import GATHER_COST, WARM_UP_TRAJECTORIES, Budget, BudgetError, Costs
from sghmc.tuning.exact_search import PILOT_DRAWS, Trajectories
from sghmc.tuning.whitening import Whitening

# Data of at most so many batches are always evaluated whole: smaller batches gain nothing.
FEW_BATCHES = 4
# Data of more batches than this are not evaluated whole in every step, whatever that would gain.
_MANY_BATCHES = 100

# Compilations of a gradient's program that each engine makes.
_COMPILATIONS = {"exact": 12, "minibatch": 30}
# Steps of all chains in the pilots of the minibatch engine, and steps of one of its draws.
_PILOT_STEPS, _STEPS_PER_DRAW = 50_000, 16
# Tolerance for which the steps of a draw of plain batches are counted.
_COUNTED_TOLERANCE = 0.05
# An answer without bias is worth so many times the cost.
_EXACTNESS_BONUS = 2.5

# A friction between 1 and 2 serves means and variances alike.
_FRICTION = 1.5
# Below this step size friction is raised instead: gradient noise needs a certain C/ε.
_SMALL_STEP = 0.05
_MAX_MOMENTUM_DECAY = 0.5
# Largest C/ε; beyond it a draw costs too much, so a larger bias is reported instead.
_MAX_FRICTION_RATIO = 1_000.0
# Share of the tolerance for gradient noise; the rest is for what is not Gaussian.
_NOISE_SHARE = 0.4
# Steps of a pilot's draw: with dear gradients a pilot makes fewer independent draws.
_MAX_THINNING = 64
# Cost of a step besides its rows, in rows.
_STEP_OVERHEAD_ROWS = 50
# Points and rows at which gradient noise is measured.
_NUM_NOISE_POINTS, _NUM_NOISE_ROWS = 32, 512


class EngineChoice(NamedTuple):
    """The engine that runs, and why."""

    engine: str
    reason: str


def choose_engine(
    engine: str,
    target: Target,
    whitening: Whitening,
    costs: Costs,
    *,
    batch_size: int,
    num_draws: int,
    gibbs: Gibbs | None,
) -> EngineChoice:
    """Choose HMC on all data or SGHMC on batches, by counted costs if both are possible.

    `num_draws` is that of all chains together.
    """
    if engine != "auto":
        return EngineChoice(engine, "as asked for")
    if gibbs is not None:
        return EngineChoice("minibatch", "Gibbs updates are counted in its short steps")
    if not isinstance(target, RowPosterior):
        return EngineChoice("exact", "a potential has no batches")
    count = int(target.num_examples)
    if count <= FEW_BATCHES * batch_size:
        return EngineChoice("exact", f"{count:,} examples are few beside batches of {batch_size:,}")
    found = predicted_costs(
        costs,
        num_gradients=Trajectories.first(whitening).num_steps + 1,
        batch_size=batch_size,
        num_draws=num_draws,
        num_batches=None if whitening.is_gaussian else count / batch_size,
    )
    is_exact = found["exact"] < _EXACTNESS_BONUS * found["minibatch"]
    counted = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
    preferred = f"exact is preferred up to {_EXACTNESS_BONUS:g} times the cost, as it has no bias"
    reason = f"counted cost in nominal seconds: {counted}; {preferred}"
    if not whitening.is_gaussian:
        reason += ", and minibatches without a mode have no control variate for their noise"
    return EngineChoice("exact" if is_exact else "minibatch", reason)


def predicted_costs(
    costs: Costs,
    *,
    num_gradients: int,
    batch_size: int,
    num_draws: int,
    num_batches: float | None = None,
) -> dict[str, float]:
    """Predict tuning and run of each engine; `num_gradients` is that of a trajectory.

    `num_batches` is that of the data if there is no mode for a control variate: it is the noise Ṽ
    of plain batches, and a draw then takes 2C/ε = Ṽ/(2 · share · tolerance) steps.
    """
    passes = (WARM_UP_TRAJECTORIES + num_draws) * num_gradients
    per_draw = _STEPS_PER_DRAW
    if num_batches is not None:
        per_draw = max(per_draw, num_batches / (2 * _NOISE_SHARE * _COUNTED_TOLERANCE))
    steps = _PILOT_STEPS + per_draw * num_draws
    # A control variate evaluates every row of its batch twice.
    of_batch = 2 * batch_size * GATHER_COST * costs.of_row
    work = {
        "exact": passes * (costs.of_step + costs.of_pass),
        "minibatch": steps * (costs.of_step + of_batch),
    }
    return {name: _COMPILATIONS[name] * costs.compiling + work[name] for name in work}


def check_first_pilot(costs: Costs, whitening: Whitening, budget: Budget) -> None:
    """Raise `BudgetError` if the first pilot run of the exact engine would outlast the budget."""
    num_gradients = Trajectories.first(whitening).num_steps + 1
    seconds = PILOT_DRAWS * num_gradients * costs.of_pass
    if seconds > budget.left:
        raise BudgetError(
            f"A first pilot run over all data would take about {seconds:.3g} s, and of the "
            f"{budget} {max(budget.left, 0):.3g} s are left: give more by "
            f"until=sghmc.Until(seconds={4 * (budget.spent + seconds):.2g}), or take "
            f'engine="minibatch".'
        )


@dataclasses.dataclass(frozen=True)
class FrictionSettings:
    """Step size ε and friction C of SGHMC in whitened coordinates, for gradient noise Ṽ."""

    step_size: float
    friction: float
    noise: float

    @classmethod
    def for_noise(cls, noise: float, tolerance: float, max_step: float) -> Self:
        """Return the fastest settings whose error stays below the tolerance, if there are any.

        On a Gaussian gradient noise makes a relative error of εṼ/4C.
        """
        ratio = min(noise / (4 * _NOISE_SHARE * tolerance), _MAX_FRICTION_RATIO)
        ratio = max(ratio, _FRICTION / max_step)
        step_size = _FRICTION / ratio
        if step_size < min(_SMALL_STEP, max_step):
            step_size = min(_SMALL_STEP, max_step, math.sqrt(_MAX_MOMENTUM_DECAY / ratio))
        return cls(step_size, ratio * step_size, noise)

    @property
    def law(self) -> theory.FrictionLaw:
        """Return the stationary distribution on a Gaussian with standard deviation 1."""
        return theory.friction_law(
            self.step_size, self.friction, gradient_noise=self.noise, observe="middle"
        )

    @property
    def sampler(self) -> SGHMC:
        return SGHMC(self.step_size, self.friction, observe="middle")

    @property
    def thinning(self) -> int:
        """Return the steps of about an independent draw: a power of two, to share programs."""
        steps = min(2 * self.law.autocorrelation_time, _MAX_THINNING)
        return 2 ** max(2, round(math.log2(steps)))

    @property
    def halved(self) -> "FrictionSettings":
        return dataclasses.replace(self, step_size=self.step_size / 2)

    def rows_needed(self, batch_size: int, tolerance: float) -> int:
        """Return the batch size whose noise keeps within the tolerance at the largest C/ε."""
        ratio = self.noise / (4 * _NOISE_SHARE * tolerance)
        return math.ceil(batch_size * ratio / _MAX_FRICTION_RATIO)


class GradientChoice(NamedTuple):
    """A gradient estimator with its settings, and the noise Ṽ of all candidates by name."""

    gradient: Gradient
    settings: FrictionSettings
    noises: dict[str, float]


class GradientCandidates:
    """The gradient estimators that are possible for a target."""

    def __init__(self, target: Target, batch_size: int, tolerance: float, rng: np.random.Generator):
        self.target, self.batch_size = target, batch_size
        self.tolerance, self.rng = tolerance, rng

    def best(self, whitening: Whitening, points: np.ndarray, max_step: float) -> GradientChoice:
        """Choose the estimator with the cheapest independent draw; noise is measured at `points`.

        One that keeps within the tolerance is preferred to any that does not.
        """
        noises, best = {}, None
        for name, (gradient, num_rows) in self._candidates(whitening).items():
            noise = self.noise(gradient, whitening, points)
            if not isinstance(gradient, FullBatch):
                noises[name] = noise
            settings = FrictionSettings.for_noise(noise, self.tolerance, max_step)
            is_biased = settings.law.standard_deviation_error > self.tolerance
            cost = settings.law.autocorrelation_time * (num_rows + _STEP_OVERHEAD_ROWS)
            if best is None or (is_biased, cost) < best[0]:
                best = (is_biased, cost), gradient, settings
            if settings.step_size == max_step:
                break  # later candidates have more noise or more rows
        assert best is not None
        return GradientChoice(best[1], best[2], noises)

    def _candidates(self, whitening: Whitening) -> dict[str, tuple[Gradient, int]]:
        """Return estimators by name, each with the rows that a step of it evaluates."""
        if not isinstance(self.target, RowPosterior):
            return {"exact": (FullBatch(), 0)}
        count, batch = int(self.target.num_examples), self.batch_size
        if count <= FEW_BATCHES * batch:
            return {"all data": (FullBatch(), count)}
        # Distinct rows help if a batch is a good part of the data, and cost more to draw.
        replacement = batch < count / 10
        candidates: dict[str, tuple[Gradient, int]] = {}
        if whitening.is_gaussian:  # away from a mode, a center tells little about gradients
            center = whitening.params(whitening.center)
            control = ControlVariate(batch, center, replacement, shared=True)
            candidates["control variate"] = control, 2 * batch
        candidates["minibatch"] = Minibatch(batch, replacement), batch
        if count <= _MANY_BATCHES * batch:
            candidates["all data"] = (FullBatch(), count)
        return candidates

    def noise(self, gradient: Gradient, whitening: Whitening, points: np.ndarray) -> float:
        """Return Ṽ: the largest eigenvalue of LᵀVL, with V averaged over the points.

        With many parameters it is the mean of the diagonal.
        """
        if isinstance(gradient, FullBatch):
            return 0.0
        assert isinstance(self.target, RowPosterior)
        count = int(self.target.num_examples)
        points = points[np.arange(_NUM_NOISE_POINTS) % len(points)]
        rows = self.rng.integers(0, count, (len(points), min(_NUM_NOISE_ROWS, 4 * count)))
        with double_precision():
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64), whitening.like
            )
            positions = dataclasses.replace(whitening, like=like).params(points)
            estimator = gradient.prepare(self.target, jax.tree.map(lambda x: x[0], positions))
            covariance = mean_gradient_noise(
                estimator,
                self.target,
                jax.tree.map(jnp.asarray, positions),
                jnp.asarray(rows, jnp.int32),
                diagonal=not whitening.is_dense,
            )
            whitened = whitening.whitened_noise(np.asarray(covariance))
        if whitening.is_dense:
            return float(np.linalg.eigvalsh(whitened)[-1])
        return float(np.mean(whitened))
