"""What a tuning returns: settings, and a report of what they rest on."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.gradients.base import Gradient
from sghmc.samplers.whitened import Whitened
from sghmc.tuning.region import Region
from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What an engine's search has found; `starts` are raveled parameters, one for each chain."""

    engine: str
    region: Region
    sampler: Whitened
    gradient: Gradient
    starts: np.ndarray
    thinning: int
    step_size: float
    kinetic_temperature: float
    autocorrelation_time: float
    faults: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)
    num_steps: int = 1
    acceptance: float = math.nan
    friction: float = math.nan
    gradient_noise: dict[str, float] = dataclasses.field(default_factory=dict)
    predicted_error: float = 0.0
    halving_change: float = math.nan
    halving_noise: float = math.nan


@dataclasses.dataclass(frozen=True)
class TuneReport:
    """What was measured, what was chosen, and what it promises; `print` it.

    | field | meaning |
    | --- | --- |
    | `engine` | "exact": HMC on all data with an accept step; "minibatch": SGHMC without |
    | `choice` | why that one: the seconds predicted of both |
    | `distance` | of the mode found from the true one, in standard deviations |
    | `gradient_noise` | Ṽ of each estimator, in units where the posterior has spread 1 |
    | `num_steps`, `acceptance` | leapfrog steps of a trajectory, and how many are accepted |
    | `predicted_error` | of standard deviations, relative, by theory on a Gaussian |
    | `halving_change` | what half the step size changed: the largest of any standard deviation, |
    | `halving_noise` | and the Monte Carlo error of that |
    | `kinetic_temperature` | of the momenta in the pilot runs: 1 when right |
    | `autocorrelation_time` | 1 + Σρ in steps, of the slowest parameter in the pilot runs |
    | `monte_carlo_error` | of standard deviations, relative: what chance may do to the worst of |
    | | them in 19 of 20 runs; known after the run |
    | `is_met` | whether all this keeps within `tolerance`, with the draws made |
    | `faults` | what of the tuning itself speaks against it, of `notes`: `health()` says it, too |
    | `stages` | seconds of each stage of the tuning |
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
    engine: str
    choice: str
    num_steps: int
    acceptance: float
    stages: dict[str, float]
    monte_carlo_error: float = math.nan
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        data = "a potential" if self.num_examples is None else f"{self.num_examples:,} examples"
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.stages.items())
        lines = [
            f"{self.num_parameters:,} parameters, {data}; tuned in {self.seconds:.1f} s ({stages})",
            f"engine: {self.engine} ({self.choice})",
            *(self._exact if self.engine == "exact" else self._minibatch),
            f"verdict: {self.verdict}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    @property
    def _exact(self) -> list[str]:
        return [
            f"HMC on all data, whitened: trajectories of {self.num_steps} steps of "
            f"{self.step_size:.3g}, {100 * self.acceptance:.0f} % accepted; one independent draw "
            f"in about {max(1.0, 2 * self.autocorrelation_time - 1):.1f} trajectories"
        ]

    @property
    def _minibatch(self) -> list[str]:
        noises = ", ".join(f"{name} {value:.3g}" for name, value in self.gradient_noise.items())
        return [
            f"gradient: {self.estimator}" + (f" (gradient noise: {noises})" if noises else ""),
            f"step size {self.step_size:.3g}, friction {self.friction:.3g}, whitened; one "
            f"independent draw in about {2 * self.autocorrelation_time:.0f} steps",
            f"standard deviations: {100 * self.predicted_error:.1f} % too wide by theory; "
            f"{self._halving}",
        ]

    @property
    def _halving(self) -> str:
        if math.isnan(self.halving_change):
            return "half the step size was not tried"
        change, noise = 100 * self.halving_change, 100 * self.halving_noise
        return f"half the step size changed them by at most {change:.1f} % (± {noise:.1f} %)"

    @property
    def verdict(self) -> str:
        chance = ""
        if not math.isnan(self.monte_carlo_error):
            chance = f" (± {100 * self.monte_carlo_error:.2g} % of standard deviations)"
        if self.engine == "exact" and self.is_met:
            return f"exact: no error but that of a finite number of draws{chance}"
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


def tuned(
    outcome: Outcome,
    *,
    num_examples: int | None,
    tolerance: float,
    choice: str,
    seconds: float,
    stages: dict[str, float],
) -> Tuned:
    region, notes = outcome.region, list(outcome.notes)
    if not region.is_gaussian:
        notes.append(
            "no single mode was found or looked for: the coordinates are those of pilot runs"
        )
    report = TuneReport(
        num_parameters=len(region.center),
        num_examples=num_examples,
        distance=region.distance,
        gradient_noise=outcome.gradient_noise,
        estimator=type(outcome.gradient).__name__,
        step_size=outcome.step_size,
        friction=outcome.friction,
        predicted_error=outcome.predicted_error,
        halving_change=outcome.halving_change,
        halving_noise=outcome.halving_noise,
        kinetic_temperature=outcome.kinetic_temperature,
        autocorrelation_time=outcome.autocorrelation_time,
        tolerance=tolerance,
        is_met=not outcome.faults,
        notes=(*outcome.faults, *notes),
        faults=tuple(outcome.faults),
        seconds=seconds,
        engine=outcome.engine,
        choice=choice,
        num_steps=outcome.num_steps,
        acceptance=outcome.acceptance,
        stages=stages,
    )
    starts = jax.tree.map(jnp.asarray, region.params(outcome.starts))
    return Tuned(outcome.sampler, outcome.gradient, starts, outcome.thinning, report)
