"""The exact learning coefficient of deep linear networks, and the verdict on an estimate."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from sghmc.gradients import Gradient
from sghmc.posterior.curvature import Spectrum
from sghmc.results import convergence
from sghmc.results.health import Verdict
from sghmc.samplers import Sampler


def deep_linear_coefficient(widths: Sequence[int], rank: int) -> float:
    """λ of f(x) = W_L … W_1 x where the best product has this rank: what `llc` may be held against.

    `widths` are those of the input, the hidden layers and the output. It is the coefficient at
    parameters whose layers have no larger rank than their product; elsewhere it may be larger.

        λ = ½r(H₀ + H_L − r) + ½ Σ_{i<j∈Σ} ΔᵢΔⱼ − ¼(ℓ − 1)S²/ℓ + a(ℓ − a)/(4ℓ)

    with Δᵢ = Hᵢ − r, S = Σ_{i∈Σ} Δᵢ over the ℓ + 1 narrowest layers Σ, for the ℓ with
    max Δ_Σ ≤ S/ℓ < min of the others, and a = S − ℓ(⌈S/ℓ⌉ − 1).

    Aoyagi, Neural Networks 2024.

    >>> deep_linear_coefficient([3, 4], rank=2)  # one layer: half the number of parameters
    6.0
    >>> deep_linear_coefficient([2, 2, 2], rank=0)  # of 8 parameters
    1.5
    """
    if len(widths) < 2 or not 0 <= rank <= min(widths):
        raise ValueError(f"rank must lie between 0 and the widths {widths}, but is {rank}.")
    spare = sorted(width - rank for width in widths)
    for size in range(2, len(spare) + 1):
        inside, beyond = spare[:size], spare[size:]
        total, layers = sum(inside), size - 1
        if max(inside) * layers <= total and (not beyond or total < layers * beyond[0]):
            break
    else:
        raise AssertionError(f"no layers of {widths} fit")
    remainder = total - layers * (-(-total // layers) - 1)
    pairs = (total**2 - sum(each**2 for each in inside)) / 2
    return (
        rank * (widths[0] + widths[-1] - rank) / 2
        + pairs / 2
        - (layers - 1) * total**2 / (4 * layers)
        + remainder * (layers - remainder) / (4 * layers)
    )


# An effective number of draws is defined from here on.
_MIN_DRAWS = 4


@dataclasses.dataclass(frozen=True)
class LlcSettings:
    """Settings of a run of `llc`; one draw is kept every `thinning` steps, burn-in counts draws.

    `relaxation` is the number of steps in which a flat direction forgets its start, if known.
    """

    num_examples: int
    inverse_temperature: float
    localization: float
    sampler: Sampler
    gradient: Gradient | None
    num_samples: int
    num_burnin: int
    thinning: int
    num_chains: int
    relaxation: int | None = None

    @property
    def most_effective(self) -> float:
        """Largest possible number of independent draws: energies forget twice in a relaxation."""
        if self.relaxation is None:
            return math.inf
        return 2 * self.num_chains * self.num_samples * self.thinning / self.relaxation

    @property
    def num_steps(self) -> int:
        """Return the number of steps of all chains together."""
        return self.num_chains * self.thinning * (self.num_burnin + self.num_samples)

    def within(self, num_steps: int) -> "LlcSettings":
        """Return settings of a run with so many steps of each chain, two fifths of them burn-in."""
        num_draws = num_steps // self.thinning
        num_burnin = 2 * num_draws // 5
        if num_draws - num_burnin < _MIN_DRAWS:
            raise ValueError(
                f"num_gradients leaves each chain {max(0, num_steps)} steps, of which a draw takes "
                f"{self.thinning}: give more, fewer chains, or check=False."
            )
        return dataclasses.replace(self, num_burnin=num_burnin, num_samples=num_draws - num_burnin)

    def halved(self) -> "LlcSettings":
        """Return settings with half the step size and twice the steps."""
        return dataclasses.replace(
            self,
            sampler=self.sampler.rescaled(0.5),
            thinning=2 * self.thinning,
            relaxation=self.relaxation and 2 * self.relaxation,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LearningCoefficient(Verdict):
    """λ̂ = Nβ (E[L] − L(w*)) and what it rests on; `print` it.

    | field | meaning |
    | --- | --- |
    | `estimate`, `standard_error` | of λ: λ̂ at γ, or what follows from it and that at γ/4 for \
γ → 0; Monte Carlo error and `localization_change` together |
    | `localized`, `monte_carlo_error` | λ̂ at γ, and its error by chance |
    | `localization_change`, `localization_error` | what a quarter of γ changed, and its standard \
error; NaN where it was not tried |
    | `chains` | λ̂ at γ of each chain |
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
    localized: float
    monte_carlo_error: float
    localization_change: float
    localization_error: float
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
        ran = self.settings

        def formatted(change: float, error: float) -> str:
            return "not tried" if math.isnan(change) else f"{change:+.3g} ± {error:.2g}"

        return {
            "local learning coefficient": f"{self.estimate:.4g} ± {self.standard_error:.2g}",
            "if the loss were quadratic": f"{self.gaussian:.4g}",
            "half the localization would add there": f"{self.sensitivity:.1%}",
            "at this localization": f"{self.localized:.4g} ± {self.monte_carlo_error:.2g}",
            "a quarter of it changed": formatted(self.localization_change, self.localization_error),
            "half the step size changed": formatted(self.halving_change, self.halving_error),
            "effective draws, R-hat": f"{self.effective:.0f}, {self.r_hat:.3f}",
            "N, β, γ": f"{ran.num_examples:,}, {ran.inverse_temperature:.4g}, "
            f"{ran.localization:.4g}",
            "sampler": f"{ran.sampler}, {self.num_steps:,} gradients",
        }


# The variance between chains is then a tenth of that within, as in `Samples.health`.
_MAX_R_HAT = 1.05
# Independent draws from which an error bar is known well enough.
_MIN_EFFECTIVE_DRAWS = 10
# A difference counts beyond so many standard errors: normal ones are there in 1 of 370 runs.
_NUM_ERRORS = 3
# A relative change that does not matter.
_SMALL_CHANGE = 0.01
# Largest multiple of d/2, the coefficient of a regular model: Monte Carlo error and a finite N may
# add so much.
_MAX_REGULAR_SHARE = 1.1


def error_of(trace: np.ndarray, most: float = math.inf) -> tuple[float, float]:
    """Return the Monte Carlo error of the mean of draws (chain, draw), and their effective number.

    Chains shorter than a relaxation overestimate that number, so it is at most `most`.
    """
    effective = min(float(convergence.effective_size(trace[None])[0]), most)
    if effective == most:
        # Their standard deviation is too small, too: near a minimum the law is a Gamma law.
        spread = max(float(trace.std(ddof=1)), math.sqrt(max(0.0, float(trace.mean()))))
        return spread / math.sqrt(effective), effective
    return float(trace.std(ddof=1)) / math.sqrt(effective), effective


def change(coarse: np.ndarray, fine: np.ndarray) -> tuple[float, float]:
    """Return the difference of the means of two runs, and its standard error."""
    return float(fine.mean() - coarse.mean()), math.hypot(error_of(coarse)[0], error_of(fine)[0])


def agree(coarse: np.ndarray, fine: np.ndarray) -> bool:
    """Whether two means differ by no more than Monte Carlo error and a small change."""
    apart, error = change(coarse, fine)
    return abs(apart) <= _NUM_ERRORS * error + _SMALL_CHANGE * abs(float(fine.mean()))


def judged(
    trace: np.ndarray,
    fine: np.ndarray | None,
    weak: np.ndarray | None,
    settings: LlcSettings,
    spectrum: Spectrum,
    num_steps: int,
) -> LearningCoefficient:
    """Judge the trace of a run and return the estimate.

    `fine` is the trace with half the step size, `weak` that with a quarter of the localization;
    None if not tried.
    """
    error, effective = error_of(trace, settings.most_effective)
    r_hat = float(convergence.r_hat(trace[None])[0])
    moved = (math.nan, math.nan) if fine is None else change(trace, fine)
    gaussian = spectrum.effective(settings.localization)
    sensitivity = spectrum.effective(settings.localization / 2) / gaussian - 1 if gaussian else 0.0
    localized = float(trace.mean())
    estimate, whole_error, eased = localized, error, (math.nan, math.nan)
    if weak is not None:
        eased = change(trace, weak)
        # With λ − λ̂(γ) ∝ √γ it is the rest that a quarter of γ leaves.
        estimate = localized + 2 * eased[0]
        whole_error = math.hypot(2 * error_of(weak)[0], error, eased[0])
    reasons = []
    if not np.all(np.isfinite(trace)) or not math.isfinite(estimate):
        reasons.append("a chain became non-finite: the step size is too large for this loss")
    elif fine is not None and not agree(trace, fine):
        reasons.append(
            f"half the step size changes the estimate by {moved[0]:+.3g}: give a sampler with a "
            f"smaller step, or a gradient with less noise"
        )
    weaker = settings.localization / 4
    if abs(eased[0]) > _NUM_ERRORS * eased[1] + _SMALL_CHANGE * abs(estimate):
        reasons.append(
            f"a quarter of the localization changes the estimate by {eased[0]:+.3g}: directions "
            f"that no Hessian sees count in part at γ = {settings.localization:.3g}, and what is "
            f"added for them dominates the error: give a localization below {weaker:.2g}"
        )
    if r_hat > _MAX_R_HAT and trace.mean(1).std() > _SMALL_CHANGE * abs(localized):
        reasons.append(
            f"chains disagree (R-hat {r_hat:.2f}): give more num_burnin and num_samples, or more "
            f"localization"
        )
    # An error bar that few draws give is not well known, which does not matter if it is small.
    if effective < _MIN_EFFECTIVE_DRAWS and not 2 * error < _SMALL_CHANGE * abs(localized):
        reasons.append(f"only {effective:.0f} effective draws: give more num_samples")
    if estimate > _MAX_REGULAR_SHARE * spectrum.size / 2:
        reasons.append(
            f"the estimate is above half the number of parameters, {spectrum.size / 2:g}, which no "
            f"learning coefficient is: the chains have left the neighbourhood of params, or the "
            f"loss is not what params were trained for; give more localization"
        )
    if float(trace.min()) < 0 and localized < _NUM_ERRORS * float(trace.std()):
        below = float(np.mean(trace < 0))
        if below > 0.5 or spectrum.least < -0.01 * spectrum.largest:
            reasons.append(
                f"the loss is lower than at params in {below:.0%} of the draws: params are no "
                f"minimum; train on, or give more localization"
            )
    return LearningCoefficient(
        estimate=estimate,
        standard_error=whole_error,
        localized=localized,
        monte_carlo_error=error,
        localization_change=eased[0],
        localization_error=eased[1],
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
