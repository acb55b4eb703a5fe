"""Whether a run's draws can be trusted, why, and what to do if they cannot.

Three kinds of evidence: the draws (R-hat, effective sizes), the momenta (their temperature), and
what theory predicts for the sampler's settings (`prediction`), floating-point rounding included.
"""

import abc
import dataclasses
import math
import numbers
import textwrap
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import display
from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.noise import NoisyGradient
from sghmc.results.patterns import misused_example
from sghmc.results.prediction import BiasPrediction, Origin, SavedOrigin, predict
from sghmc.results.summaries import Info, SummaryTable
from sghmc.samplers import Sampler
from sghmc.samplers.rounding import StochasticRounding, last_digit, rounding_variance
from sghmc.types import PyTree

# The variance between chains is then a tenth of that within; 1.01 would flag many short runs.
_MAX_R_HAT = 1.05
# Draws that determine a mean to a tenth of a standard deviation, and that to 7 %.
_MIN_EFFECTIVE_DRAWS = 100
# Monte Carlo errors by which a temperature must be off: normal ones are in 1 of 16,000 runs.
_TEMPERATURE_ERRORS = 4
# A larger R-hat is no longer a number to compare.
_LARGEST_SHOWN_R_HAT = 100
# Momenta hotter by more than this factor are those of a fall, or of a chain that is being lost.
_FALLING_TEMPERATURE = 10.0
_NOT_SEARCHED = "not searched: the draws show only those where a chain has been"
# Share of a parameter's variance that rounding may add.
_MAX_ROUNDING_EXCESS = 0.1


class Verdict(abc.ABC):
    """A verdict on a result: trustworthy, usable with care, or not trustworthy.

    `reasons` name faults with remedies; `cares` what to mind in a result that is otherwise sound.
    """

    reasons: tuple[str, ...]

    @property
    def cares(self) -> tuple[str, ...]:
        return ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; there may be something to mind."""
        return not self.reasons

    @property
    def level(self) -> str:
        if self.reasons:
            return "not trustworthy"
        return "usable with care" if self.cares else "trustworthy"

    @property
    def verdict(self) -> str:
        """Return the level with its reasons, in one line."""
        return f"{self.level}: {'; '.join(self.reasons + self.cares) or 'no sign of trouble'}"

    @property
    @abc.abstractmethod
    def evidence(self) -> dict[str, str]:
        """Return the facts behind the verdict, formatted, by name."""

    def __str__(self) -> str:
        """Return lines for a terminal of 80 columns."""
        facts = {"verdict": self.verdict, **self.evidence}
        return "\n".join(textwrap.fill(f"{name}: {words}", 80) for name, words in facts.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return display.notebook_facts(f"Verdict: {self.verdict}", self.evidence)


class HealthWarning(UserWarning):
    """A run's draws should not be trusted as they are."""


@dataclasses.dataclass(frozen=True, repr=False)
class Health(Verdict):
    """The verdict on a run; `print` it. `verdict(of=f)` judges a function f of the draws instead.

    | field | meaning |
    | --- | --- |
    | `reasons` | what is wrong, with a remedy; empty for a sound run |
    | `cares` | what to mind though nothing is wrong, such as draws that are too few |
    | `searched` | where other modes were searched, and what that cannot exclude |
    | `r_hat`, `effective` | the largest R-hat and the smallest effective size, bulk or tail |
    | `slowest` | name of the quantity with this smallest effective size |
    | `kinetic_temperature` | of the momenta, relative to τ: 1 is right |
    | `noise_share` | what gradient noise adds to the injected noise, relative |
    | `predicted_error` | largest relative error of a standard deviation, by theory, or None |
    | `skipped` | what could not be checked, and why |
    """

    reasons: tuple[str, ...]
    r_hat: float
    effective: float
    kinetic_temperature: float | None
    noise_share: float | None
    predicted_error: float | None
    skipped: tuple[str, ...] = ()
    slowest: str = ""
    cares: tuple[str, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride]
    searched: str = _NOT_SEARCHED
    judge: Callable[..., "Health"] | None = dataclasses.field(default=None, compare=False)

    def __call__(
        self, of: Callable[..., PyTree] | None = None, tolerance: float | None = None
    ) -> "Health":
        """Judge a function of a draw's position, such as a prediction, by R-hat, sizes and errors.

        Where the posterior has hyperparameters, `of` takes (position, hyper).
        """
        assert self.judge is not None
        return self.judge(of, tolerance)

    def after(self, tuning: Any, is_of_parameters: bool = True) -> "Health":
        """Add what a tuning knows that the draws cannot show, such as modes that they miss.

        Pilot runs that did not settle matter only where the run's own draws do not show that it
        did: with an accept step no setting can make it wrong. What is to be minded of parameters
        is not of a function of them.
        """
        if tuning is None:
            return self
        reasons, cares = self.reasons + tuple(tuning.complaints), self.cares
        if tuning.unsettled and self.reasons:
            reasons += tuning.unsettled
        elif is_of_parameters:
            cares += (() if tuning.engine == "exact" else tuning.unsettled) + tuning.cares
        return dataclasses.replace(
            self, reasons=reasons, cares=cares, searched=tuning.searched or self.searched
        )

    @property
    def evidence(self) -> dict[str, str]:
        def formatted(value: float | None, form: str) -> str:
            return "not known" if value is None or math.isnan(value) else format(value, form)

        named = {
            "largest R-hat": formatted(self.r_hat, ".3f")
            if not self.r_hat > _LARGEST_SHOWN_R_HAT
            else f"above {_LARGEST_SHOWN_R_HAT}",
            "smallest effective size": formatted(self.effective, ".0f")
            + (f", of {self.slowest}" if self.slowest else ""),
            "kinetic temperature (1 is right)": formatted(self.kinetic_temperature, ".3f"),
            "gradient noise adds to the injected noise": formatted(self.noise_share, "+.1%"),
            "predicted error of standard deviations": formatted(self.predicted_error, "+.1%"),
        }
        named["other modes"] = self.searched
        return named | ({"not looked at": "; ".join(self.skipped)} if self.skipped else {})


def assess(
    table: SummaryTable,
    origin: Origin | SavedOrigin | None,
    positions: PyTree,
    hyper: PyTree,
    info: Info,
    tolerance: float,
) -> Health:
    """Judge a run by the table of its draws, their diagnostics, and what made them."""
    disagreeing, r_hat = table.worst("r_hat", is_largest=True)
    sizes = [table.worst(column, is_largest=False) for column in ("ess_bulk", "ess_tail")]
    slowest, effective = min(sizes, key=lambda pair: (math.isnan(pair[1]), pair[1]))
    predicted = BiasPrediction(skipped="the run does not say what made it")
    if isinstance(origin, SavedOrigin):
        predicted = BiasPrediction(
            skipped="the law of the settings: the draws came without their target"
        )
    elif origin is not None:
        predicted = predict(origin, positions, hyper, info.is_finite)
    temperature, expected = info.kinetic_temperature, origin.temperature if origin else None
    if temperature is not None:
        temperature = temperature / expected if temperature.size and expected else None
    misused, care = None, None
    if isinstance(origin, Origin):
        misused, care = misused_example(origin.target, positions)
    complaints = [
        _lost_chains(info.is_finite),
        _disagreement(r_hat, disagreeing),
        _few_draws(effective, r_hat, slowest),
        predicted.complaint,
        misused,
    ]
    error = predicted.predicted_error
    if isinstance(origin, Origin):
        complaints.append(_bias(predicted, origin, tolerance))
    if temperature is not None and abs(error or 0.0) <= tolerance:  # else the bias explains it
        complaints.append(temperature_complaint(temperature, tolerance))
    # Draws for which an error is predicted are the parameters; accept steps do not mind rounding.
    is_predicted = error is not None
    if is_predicted and isinstance(origin, Origin) and not origin.sampler.dynamics.metropolis:
        complaints.append(resolution_complaint(origin, positions))
    return Health(
        reasons=tuple(each for each in complaints if each is not None),
        cares=() if care is None else (care,),
        r_hat=r_hat,
        effective=effective,
        slowest=slowest,
        kinetic_temperature=None if temperature is None else float(np.mean(temperature)),
        noise_share=predicted.noise_share,
        predicted_error=error,
        skipped=() if predicted.skipped is None else (predicted.skipped,),
    )


def _lost_chains(is_finite: np.ndarray) -> str | None:
    if is_finite.size == 0:
        return "there are no draws: run longer"
    lost = int(np.any(~is_finite, axis=1).sum())
    return f"{lost} of {len(is_finite)} chains became non-finite" if lost else None


def _disagreement(r_hat: float, name: str) -> str | None:
    if r_hat <= _MAX_R_HAT or math.isnan(r_hat):
        return None
    shown = f"{r_hat:.2f}" if r_hat <= _LARGEST_SHOWN_R_HAT else f"above {_LARGEST_SHOWN_R_HAT}"
    return (
        f"chains disagree on {name} (R-hat {shown}): they have not forgotten their starts, or "
        f"sit in different modes; run longer, with more burn-in"
    )


def _few_draws(effective: float, r_hat: float, name: str) -> str | None:
    if effective >= _MIN_EFFECTIVE_DRAWS or r_hat > _MAX_R_HAT or math.isnan(effective):
        return None
    return (
        f"only {effective:.0f} effective draws of {name}: run longer, or let tune choose the "
        f"settings"
    )


def _bias(predicted: BiasPrediction, origin: Origin, tolerance: float) -> str | None:
    error = predicted.predicted_error
    if error is None or abs(error) <= tolerance:
        return None
    text = f"standard deviations may be {abs(error):.0%} too {'wide' if error > 0 else 'narrow'}: "
    share = predicted.noise_share or 0.0
    step = "the step size is too large for the stiffest direction; halve it"
    # What the noise alone does to a standard deviation.
    of_noise = math.sqrt(1 + share) - 1
    is_step = abs(predicted.step_error) > tolerance
    if share <= tolerance or (is_step and abs(predicted.step_error) >= of_noise):
        return text + step
    remedy = "use ControlVariate"
    if isinstance(origin.gradient, ControlVariate):
        remedy = "use a center nearer the mode"
    elif isinstance(origin.gradient, NoisyGradient):
        remedy = "tell the sampler of it by gradient_noise"
    words = f"gradient noise adds {share:.0%} to the injected noise; {remedy}"
    # The share falls with the batch; half of the tolerance is left to other errors.
    batch = origin.gradient.batch_rows
    if batch is not None:
        needed = math.ceil(batch * share / tolerance)
        count = getattr(origin.target, "num_examples", math.inf)
        words += f" or batches of {needed:,}" if needed < int(count) / 2 else " or FullBatch()"
    return text + words + (f"; besides, {step}" if is_step else "")


def temperature_complaint(temperature: np.ndarray, tolerance: float) -> str | None:
    """Return what is wrong with kinetic temperatures, axes (chain, draw), that should be 1."""
    if not np.all(np.isfinite(temperature)):
        return None  # chains that were lost are another complaint
    means = temperature.mean(1)
    # The error of the mean over all chains, from the scatter of their means.
    error = temperature.std() / math.sqrt(temperature.size)
    if len(means) > 1:
        error = means.std(ddof=1)
    error = error / math.sqrt(len(means))
    excess = float(means.mean()) - 1
    # A temperature is a variance: twice the relative error of a standard deviation.
    if abs(excess) <= 2 * tolerance + _TEMPERATURE_ERRORS * error:
        return None
    if excess > _FALLING_TEMPERATURE:
        return (
            f"the momenta are more than {_FALLING_TEMPERATURE:g} times as hot as they should be: "
            f"the chains are still falling from their starts, or the step size is far too large; "
            f"take a longer burn-in, and a smaller step size if that does not help"
        )
    return (
        f"the momenta are {'hotter' if excess > 0 else 'colder'} than they should be by "
        f"{abs(excess):.0%}: more noise enters than the settings say, or the step size is too "
        f"large; halve it"
    )


def resolution_complaint(origin: Origin, positions: PyTree) -> str | None:
    """Check that updates exceed the floating-point resolution of the parameters.

    Smaller ones are lost, so that chains stick where numbers are large.
    """
    if isinstance(origin.sampler, StochasticRounding):
        return _rounding_complaint(origin.sampler, origin.temperature, positions)
    move = _typical_move(origin.sampler, origin.temperature)
    if not move:
        return None
    for leaf in jax.tree.leaves(positions):
        size = math.sqrt(np.mean(np.square(np.asarray(leaf, np.float64))))
        digit = float(jnp.finfo(leaf.dtype).eps) * size
        if move < digit:
            return (
                f"a step moves parameters by about {move:.1g}, but the last digit of {leaf.dtype} "
                f"numbers of their size is {digit:.1g}: moves are lost in rounding; take larger "
                f"steps, parameters of more digits or, in bfloat16, StochasticRounding"
            )
    return None


def _rounding_complaint(sampler: Sampler, temperature: float, positions: PyTree) -> str | None:
    """Check how much variance stochastic rounding adds: it loses no updates, but has noise."""
    for leaf in jax.tree.leaves(positions):
        if leaf.dtype != jnp.bfloat16:
            continue
        excess = rounding_excess(sampler, temperature, np.asarray(leaf, np.float64))
        if excess is not None and excess > _MAX_ROUNDING_EXCESS:
            return (
                f"rounding to bfloat16 adds {excess:.0%} to the variance of parameters: take "
                f"larger steps, over which its noise is spread, or parameters of more digits"
            )
    return None


def rounding_excess(sampler: Sampler, temperature: float, draws: np.ndarray) -> float | None:
    """Return what stochastic rounding adds to variances, relative to them, for small steps.

    The mean over the parameters of draws (chain, draw, …); None if settings are no numbers.
    """
    move = _typical_move(sampler, temperature)
    if not move:
        return None
    settings, dynamics = sampler.settings, sampler.dynamics
    added = rounding_variance(move, last_digit(draws)).mean((0, 1))
    variance = draws.var((0, 1))
    is_moving = variance > 0
    if not is_moving.any():
        return None
    added, variance = added[is_moving], variance[is_moving]
    step, friction, mass = settings.get("step_size"), dynamics.friction, settings.get("mass")
    if friction is None:
        return float(np.mean(added)) / move**2
    if not (_is_number(friction) and _is_number(step) and _is_number(mass) and friction):
        return None
    rate, thermal = friction / mass, temperature / mass
    return float(np.mean(added / step * (1 / (2 * rate * variance) + rate / (2 * thermal))))


def _typical_move(sampler: Sampler, temperature: float) -> float | None:
    """Return the root mean square of a parameter's move in a step; None if it is not one number.

    ε√(τ/m) with momentum, √(2ετP) without.
    """
    settings = sampler.settings
    step, mass = settings.get("step_size"), settings.get("mass")
    preconditioner = sampler.dynamics.preconditioner
    if _is_number(step) and _is_number(mass):
        return step * math.sqrt(temperature / mass)
    if _is_number(step) and _is_number(preconditioner):
        return math.sqrt(2 * step * temperature * preconditioner)
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) or (hasattr(value, "shape") and value.shape == ())
