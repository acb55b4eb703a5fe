"""What an estimate of the learning coefficient is worth."""

import dataclasses
import math

import numpy as np

from sghmc.complexity.spectrum import Spectrum
from sghmc.gradients.base import Gradient
from sghmc.results import convergence
from sghmc.results.verdict import Verdict
from sghmc.samplers.base import Sampler


@dataclasses.dataclass(frozen=True)
class LlcSettings:
    """What was run: given, or chosen by rule. A draw is `thinning` steps, burn-in counts draws."""

    num_examples: int
    inverse_temperature: float
    localization: float
    sampler: Sampler
    gradient: Gradient | None
    num_samples: int
    num_burnin: int
    thinning: int
    num_chains: int

    @property
    def num_steps(self) -> int:
        """Of all chains."""
        return self.num_chains * self.thinning * (self.num_burnin + self.num_samples)

    def halved(self) -> "LlcSettings":
        """Half the step size, for as much time."""
        return dataclasses.replace(
            self, sampler=self.sampler.rescaled(0.5), thinning=2 * self.thinning
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LearningCoefficient(Verdict):
    """λ̂ = Nβ (E[L] − L(w*)) and what it rests on; `print` it.

    | field | meaning |
    | --- | --- |
    | `estimate`, `standard_error` | λ̂, and its Monte Carlo error |
    | `chains` | λ̂ of each chain |
    | `trace` | Nβ (L(w) − L(w*)) of each draw, axes (chain, draw) |
    | `effective` | how many independent draws know the mean as well |
    | `r_hat` | 1 where chains agree |
    | `halving_change`, `halving_error` | what half the step size changed, and its standard error |
    | `gaussian` | λ̂ if the loss were quadratic, by the spectrum of its Hessian |
    | `sensitivity` | the share by which half the localization would raise that |
    | `num_steps` | gradients of all chains, those of the check included |
    | `settings` | what was run |
    | `reasons` | what is wrong, with a remedy; empty for a sound estimate |
    """

    estimate: float
    standard_error: float
    chains: np.ndarray
    trace: np.ndarray
    effective: float
    r_hat: float
    halving_change: float
    halving_error: float
    gaussian: float
    sensitivity: float
    num_steps: int
    settings: LlcSettings
    reasons: tuple[str, ...]

    @property
    def evidence(self) -> dict[str, str]:
        ran, changed = self.settings, "not tried"
        if not math.isnan(self.halving_change):
            changed = f"{self.halving_change:+.3g} ± {self.halving_error:.2g}"
        return {
            "local learning coefficient": f"{self.estimate:.4g} ± {self.standard_error:.2g}",
            "if the loss were quadratic": f"{self.gaussian:.4g}",
            "half the localization would add there": f"{self.sensitivity:.1%}",
            "half the step size changed": changed,
            "effective draws, R-hat": f"{self.effective:.0f}, {self.r_hat:.3f}",
            "N, β, γ": f"{ran.num_examples:,}, {ran.inverse_temperature:.4g}, "
            f"{ran.localization:.4g}",
            "sampler": f"{ran.sampler}, {self.num_steps:,} gradients",
        }


_LARGEST_R_HAT = 1.05
"""The variance between chains is then a tenth of that within, as in `Samples.health`."""
_LEAST_EFFECTIVE = 10
"""Independent draws: their number is known well enough for an error bar."""
_ERRORS = 3
"""Standard errors that chance is granted: normal ones are beyond in 1 of 370 runs."""
_MATTERS = 0.01
"""A relative change that is not worth a word."""
_MOST = 1.1
"""Times d/2, the coefficient of a regular model: what chance and a finite N may add to it."""


def error_of(trace: np.ndarray) -> tuple[float, float]:
    """The Monte Carlo error of the mean of draws with axes (chain, draw), and their worth."""
    effective = float(convergence.effective_size(trace[None])[0])
    return float(trace.std(ddof=1)) / math.sqrt(effective), effective


def change(coarse: np.ndarray, fine: np.ndarray) -> tuple[float, float]:
    """How far the means of two runs are apart, and the standard error of that."""
    return float(fine.mean() - coarse.mean()), math.hypot(error_of(coarse)[0], error_of(fine)[0])


def agree(coarse: np.ndarray, fine: np.ndarray) -> bool:
    """Whether the two means differ by no more than chance and what does not matter."""
    apart, error = change(coarse, fine)
    return abs(apart) <= _ERRORS * error + _MATTERS * abs(float(fine.mean()))


def judged(
    trace: np.ndarray,
    fine: np.ndarray | None,
    settings: LlcSettings,
    spectrum: Spectrum,
    num_steps: int,
) -> LearningCoefficient:
    """`fine` is the trace with half the step size, where that was tried."""
    error, effective = error_of(trace)
    r_hat = float(convergence.r_hat(trace[None])[0])
    moved = (math.nan, math.nan) if fine is None else change(trace, fine)
    gaussian = spectrum.effective(settings.localization)
    sensitivity = spectrum.effective(settings.localization / 2) / gaussian - 1 if gaussian else 0.0
    estimate = float(trace.mean())
    reasons = []
    if not np.all(np.isfinite(trace)):
        reasons.append("a chain became non-finite: the step size is too large for this loss")
    elif fine is not None and not agree(trace, fine):
        reasons.append(
            f"half the step size changes the estimate by {moved[0]:+.3g}: give a sampler with a "
            f"smaller step, or a gradient with less noise"
        )
    if r_hat > _LARGEST_R_HAT and trace.mean(1).std() > _MATTERS * abs(estimate):
        reasons.append(
            f"chains disagree (R-hat {r_hat:.2f}): give more num_burnin and num_samples, or more "
            f"localization"
        )
    if effective < _LEAST_EFFECTIVE:
        reasons.append(f"only {effective:.0f} effective draws: give more num_samples")
    if estimate > _MOST * spectrum.size / 2:
        reasons.append(
            f"the estimate is above half the number of parameters, {spectrum.size / 2:g}, which no "
            f"learning coefficient is: the chains have left the neighbourhood of params, or the "
            f"loss is not what params were trained for; give more localization"
        )
    if float(trace.min()) < 0 and estimate < _ERRORS * float(trace.std()):
        below = float(np.mean(trace < 0))
        if below > 0.5 or spectrum.least < -0.01 * spectrum.largest:
            reasons.append(
                f"the loss is lower than at params in {below:.0%} of the draws: params are no "
                f"minimum; train on, or give more localization"
            )
    return LearningCoefficient(
        estimate=estimate,
        standard_error=error,
        chains=trace.mean(1),
        trace=trace,
        effective=effective,
        r_hat=r_hat,
        halving_change=moved[0],
        halving_error=moved[1],
        gaussian=gaussian / 2,
        sensitivity=sensitivity,
        num_steps=num_steps,
        settings=settings,
        reasons=tuple(reasons),
    )
