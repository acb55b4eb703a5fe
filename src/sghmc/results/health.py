"""Whether a run's draws can be trusted, and what to do where they cannot.

Three kinds of evidence: what the draws say of themselves (R-hat, effective sizes), what the momenta
say (their temperature), and what theory says of the sampler's settings (`prediction`).
"""

import dataclasses
import math
from typing import Any

import numpy as np

from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.exact import NoisyGradient
from sghmc.results.diagnostics import Table
from sghmc.results.origin import Origin, SavedOrigin
from sghmc.results.prediction import Prediction, predict
from sghmc.results.resolution import resolution_fault
from sghmc.results.verdict import Verdict
from sghmc.types import PyTree

_LARGEST_R_HAT = 1.05
"""The variance between chains is then a tenth of that within; 1.01 would flag many short runs."""
_LEAST_EFFECTIVE = 100
"""Draws of which a mean is known to a tenth of a standard deviation, a spread to 7 %."""
_HEAT_ERRORS = 4
"""Monte Carlo errors by which a temperature must be off: normal ones are in 1 of 16,000 runs."""


class HealthWarning(UserWarning):
    """A run's draws should not be trusted as they are."""


@dataclasses.dataclass(frozen=True, repr=False)
class Health(Verdict):
    """The verdict on a run; `print` it.

    | field | meaning |
    | --- | --- |
    | `reasons` | what is wrong, with a remedy; empty for a sound run |
    | `r_hat`, `effective` | the largest R-hat and the smallest effective size, bulk or tail |
    | `slowest` | the number of the draws that has this smallest effective size |
    | `kinetic_temperature` | of the momenta, relative to τ: 1 when right |
    | `noise_share` | what gradient noise adds to the injected noise, relative |
    | `predicted_error` | largest relative error of a standard deviation, by theory, or None |
    | `skipped` | what could not be looked at, and why |
    """

    reasons: tuple[str, ...]
    r_hat: float
    effective: float
    kinetic_temperature: float | None
    noise_share: float | None
    predicted_error: float | None
    skipped: tuple[str, ...] = ()
    slowest: str = ""

    def after(self, tuning: Any) -> "Health":
        """The verdict on a run after a tuning, which may know what draws cannot: missed modes."""
        faults = tuple(getattr(tuning, "faults", ()))
        return dataclasses.replace(self, reasons=self.reasons + faults)

    @property
    def evidence(self) -> dict[str, str]:
        def shown(value: float | None, form: str) -> str:
            return "not known" if value is None or math.isnan(value) else format(value, form)

        named = {
            "largest R-hat": shown(self.r_hat, ".3f"),
            "smallest effective size": shown(self.effective, ".0f")
            + (f", of {self.slowest}" if self.slowest else ""),
            "kinetic temperature (1 is right)": shown(self.kinetic_temperature, ".3f"),
            "gradient noise adds to the injected noise": shown(self.noise_share, "+.1%"),
            "predicted error of standard deviations": shown(self.predicted_error, "+.1%"),
        }
        return named | ({"not looked at": "; ".join(self.skipped)} if self.skipped else {})


def assess(
    table: Table,
    origin: Origin | SavedOrigin | None,
    positions: PyTree,
    hyper: PyTree,
    info,
    tolerance: float,
) -> Health:
    """`table` has the numbers of the draws, `info` their diagnostics."""
    parting, r_hat = table.worst("r_hat", is_largest=True)
    sizes = [table.worst(column, is_largest=False) for column in ("ess_bulk", "ess_tail")]
    slowest, effective = min(sizes, key=lambda pair: (math.isnan(pair[1]), pair[1]))
    predicted = Prediction(skipped="the run does not say what made it")
    if isinstance(origin, SavedOrigin):
        predicted = Prediction(
            skipped="the law of the settings: the draws came without their target"
        )
    elif origin is not None:
        predicted = predict(origin, positions, hyper, info.is_finite)
    heat, right = info.kinetic_temperature, None if origin is None else origin.temperature
    heat = heat / right if heat is not None and heat.size and right else None
    reasons = [
        *_lost(info.is_finite),
        *_disagreeing(r_hat, parting),
        *_few(effective, r_hat, slowest),
        *([predicted.fault] if predicted.fault else []),
        *_biased(predicted, origin, tolerance),
        *_heated(heat, predicted, tolerance),
        *_rounded(predicted, origin, positions),
    ]
    return Health(
        reasons=tuple(reasons),
        r_hat=r_hat,
        effective=effective,
        slowest=slowest,
        kinetic_temperature=None if heat is None else float(np.mean(heat)),
        noise_share=predicted.noise_share,
        predicted_error=predicted.predicted_error,
        skipped=() if predicted.skipped is None else (predicted.skipped,),
    )


def _lost(is_finite: np.ndarray) -> list[str]:
    if is_finite.size == 0:
        return ["there are no draws: run longer"]
    lost = int(np.any(~is_finite, axis=1).sum())
    return [f"{lost} of {len(is_finite)} chains became non-finite"] if lost else []


def _disagreeing(r_hat: float, name: str) -> list[str]:
    if r_hat <= _LARGEST_R_HAT or math.isnan(r_hat):
        return []
    return [
        f"chains disagree on {name} (R-hat {r_hat:.2f}): they have not forgotten their starts, or "
        f"sit in different modes; run longer, with more burn-in"
    ]


def _few(effective: float, r_hat: float, name: str) -> list[str]:
    if effective >= _LEAST_EFFECTIVE or r_hat > _LARGEST_R_HAT or math.isnan(effective):
        return []
    return [
        f"only {effective:.0f} effective draws of {name}: run longer, or let tune choose the "
        f"settings"
    ]


def _biased(
    predicted: Prediction, origin: Origin | SavedOrigin | None, tolerance: float
) -> list[str]:
    error = predicted.predicted_error
    if error is None or not isinstance(origin, Origin) or abs(error) <= tolerance:
        return []
    text = f"standard deviations may be {abs(error):.0%} too {'wide' if error > 0 else 'narrow'}: "
    share = predicted.noise_share or 0.0
    if abs(predicted.step_error) > tolerance or share <= tolerance:
        return [text + "the step size is too large for the stiffest direction; halve it"]
    # The share falls with the batch; half of the tolerance is left to other errors.
    batch = origin.gradient.batch_rows
    larger = "" if batch is None else f" or batches of {math.ceil(batch * share / tolerance):,}"
    remedy = "use ControlVariate"
    if isinstance(origin.gradient, ControlVariate):
        remedy = "use a center nearer the mode"
    elif isinstance(origin.gradient, NoisyGradient):
        remedy = "tell the sampler of it by gradient_noise"
    return [text + f"gradient noise adds {share:.0%} to the injected noise; {remedy}{larger}"]


def _heated(heat: np.ndarray | None, predicted: Prediction, tolerance: float) -> list[str]:
    explained = abs(predicted.predicted_error or 0.0) > tolerance
    fault = None if heat is None or explained else heat_fault(heat, tolerance)
    return [] if fault is None else [fault]


def _rounded(
    predicted: Prediction, origin: Origin | SavedOrigin | None, positions: PyTree
) -> list[str]:
    is_known = predicted.predicted_error is not None  # and so the draws are the parameters
    if not is_known or not isinstance(origin, Origin) or origin.sampler.dynamics.metropolis:
        return []
    fault = resolution_fault(origin, positions)
    return [] if fault is None else [fault]


def heat_fault(heat: np.ndarray, tolerance: float) -> str | None:
    """What is wrong with kinetic temperatures, axes (chain, draw), that should be 1."""
    if not np.all(np.isfinite(heat)):
        return None  # lost chains are another fault's business
    means = heat.mean(1)
    error = heat.std() / math.sqrt(heat.size) if len(means) < 2 else means.std(ddof=1)
    error = error / math.sqrt(len(means))
    excess = float(means.mean()) - 1
    # A temperature is a variance: twice the error of a standard deviation.
    if abs(excess) <= 2 * tolerance + _HEAT_ERRORS * error:
        return None
    return (
        f"the momenta are {'hotter' if excess > 0 else 'colder'} than they should be by "
        f"{abs(excess):.0%}: more noise enters than the settings say, or the step size is too "
        f"large; halve it"
    )
