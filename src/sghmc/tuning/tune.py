"""Settings without hand work: estimator, whitening, step size and friction for a posterior."""

import dataclasses
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.engine import checks
from sghmc.gradients.base import Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.stacked import StackedPosterior
from sghmc.posterior.target import Target
from sghmc.samplers.whitened import Whitened
from sghmc.tuning.pilot import LARGEST_RATIO, NOISE_SHARE, Trial
from sghmc.tuning.region import find_region
from sghmc.tuning.tuner import Tuner
from sghmc.types import PyTree


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
    positions = checks.initial_positions(init, None, 1)
    start = jax.tree.map(lambda leaf: leaf[0], positions)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), start)
    checks.check_functions(target, like)
    began = time.perf_counter()
    tuner = Tuner(key, target, find_region(target, start), batch_size, tolerance, gibbs)
    tuner.refine()
    trial = tuner.verify()
    return _finish(tuner, trial, num_chains, time.perf_counter() - began)


def _check(target, batch_size, tolerance) -> None:
    if isinstance(target, StackedPosterior):
        raise TypeError("tune takes one posterior at a time: tune one of the stack.")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1, but is {batch_size!r}.")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, but is {tolerance!r}.")


def _finish(tuner: Tuner, trial: Trial, num_chains: int, seconds: float) -> Tuned:
    error = tuner.settings.law.standard_deviation_error
    steps = tuner.settings.law.autocorrelation_time
    if trial.is_finite:
        steps = trial.autocorrelation_time * tuner.settings.thinning
    else:
        trial = Trial(tuner.places[:, None], np.full((len(tuner.places), 1), np.nan))
        tuner.faults.append(
            "pilot runs did not stay finite: take larger batches, or look at the model's tails"
        )
    if tuner.misses:
        needed = tuner.batch_size * tuner.settings.noise / (4 * NOISE_SHARE * tuner.tolerance)
        tuner.faults.append(
            f"gradient noise alone makes standard deviations {100 * error:.0f} % too wide: "
            f"batches of about {math.ceil(needed / LARGEST_RATIO):,} would do"
        )
    if not tuner.region.is_gaussian:
        tuner.notes.append(
            "no single mode was found or looked for: the coordinates are those of pilot runs, "
            "and errors are predicted as if the posterior were Gaussian there"
        )
    pool = trial.draws[:, :: -max(1, trial.draws.shape[1] // 8)]
    order = pool.swapaxes(0, 1).reshape(-1, pool.shape[-1])
    starts = order[np.arange(num_chains) % len(order)]
    report = TuneReport(
        num_parameters=len(tuner.region.center),
        num_examples=int(tuner.target.num_examples)
        if isinstance(tuner.target, Posterior)
        else None,
        distance=tuner.region.distance,
        gradient_noise=tuner.noises,
        estimator=type(tuner.gradient).__name__,
        step_size=tuner.settings.step_size,
        friction=tuner.settings.friction,
        predicted_error=error,
        halving_change=tuner.change,
        halving_noise=tuner.change_noise,
        kinetic_temperature=float(np.mean(trial.heat)),
        autocorrelation_time=steps,
        tolerance=tuner.tolerance,
        is_met=not tuner.faults,
        notes=(*tuner.faults, *tuner.notes),
        seconds=seconds,
    )
    return Tuned(
        tuner.settings.sampler(tuner.region),
        tuner.gradient,
        jax.tree.map(jnp.asarray, tuner.region.params(starts)),
        max(1, math.ceil(steps)),
        report,
    )
