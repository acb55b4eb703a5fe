"""Whether a run's draws can be trusted, and what to do where they cannot.

Three kinds of evidence: what the draws say of themselves (R-hat, effective sizes), what the momenta
say (their temperature), and what theory says of the sampler's settings, given the gradient noise
and the curvature measured where the chains are.
"""

import dataclasses
import math
import textwrap

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import matrices, tree
from sghmc.posterior import mode
from sghmc.display import notebook
from sghmc import theory
from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.base import Estimator, FullBatch, Gradient, NoisyGradient
from sghmc.gradients.fisher import EmpiricalFisher, mean_gradient_noise
from sghmc.posterior.posterior import Posterior, Potential, Target
from sghmc.samplers.base import Sampler
from sghmc.samplers.sgld import SGLD
from sghmc.samplers.whitened import Whitened
from sghmc.types import PyTree

_LARGEST_R_HAT = 1.05
_LEAST_EFFECTIVE = 100
_DENSE_LIMIT = 150
"""Up to so many parameters the law of the settings is computed in all directions."""
_NUM_POINTS, _NUM_ROWS = 32, 512
_NUM_CURVATURE_ROWS = 20_000


class HealthWarning(UserWarning):
    """A run's draws should not be trusted as they are."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What made the draws."""

    target: Target
    sampler: Sampler
    gradient: Gradient
    estimator: Estimator
    temperature: float
    is_adapted: bool = False


@dataclasses.dataclass(frozen=True)
class Record:
    """What made the draws of a run that is read from its folder, in words."""

    arguments: dict[str, str]
    temperature: float | None


@dataclasses.dataclass(frozen=True)
class Health:
    """The verdict on a run; `print` it.

    | field | meaning |
    | --- | --- |
    | `reasons` | what is wrong, with a remedy; empty for a sound run |
    | `r_hat`, `effective` | the largest R-hat and the smallest effective size, bulk or tail |
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

    @property
    def is_sound(self) -> bool:
        return not self.reasons

    @property
    def verdict(self) -> str:
        return "; ".join(self.reasons) if self.reasons else "no sign of trouble"

    @property
    def evidence(self) -> dict[str, str]:
        """What the verdict rests on, in words."""

        def shown(value: float | None, form: str) -> str:
            return "not known" if value is None or math.isnan(value) else format(value, form)

        named = {
            "largest R-hat": shown(self.r_hat, ".3f"),
            "smallest effective size": shown(self.effective, ".0f"),
            "kinetic temperature (1 is right)": shown(self.kinetic_temperature, ".3f"),
            "gradient noise adds to the injected noise": shown(self.noise_share, "+.1%"),
            "predicted error of standard deviations": shown(self.predicted_error, "+.1%"),
        }
        return named | ({"not looked at": "; ".join(self.skipped)} if self.skipped else {})

    def __str__(self) -> str:
        """Lines for a terminal of 80 columns."""
        told = {"verdict": self.verdict, **self.evidence}
        lines = [textwrap.fill(f"{name}: {words}", 80) for name, words in told.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.facts(f"Verdict: {self.verdict}", self.evidence)


@dataclasses.dataclass(frozen=True)
class Law:
    """What theory says of the settings: relative errors, None where not known."""

    noise_share: float | None = None
    predicted_error: float | None = None
    step_error: float = 0.0
    fault: str | None = None
    skipped: str | None = None


def assess(
    table,
    origin: Origin | Record | None,
    positions: PyTree,
    hyper: PyTree,
    info,
    tolerance: float,
) -> Health:
    """`table` is a summary with r_hat, ess_bulk and ess_tail; `info` has the draws' diagnostics."""
    r_hat = float(table["r_hat"].max())
    effective = float(table[["ess_bulk", "ess_tail"]].min().min())
    law = Law(skipped="the run does not say what made it")
    if isinstance(origin, Record):
        law = Law(skipped="the law of the settings: the draws came without their target")
    elif origin is not None:
        law = _law(origin, positions, hyper, info.is_finite)
    heat = info.kinetic_temperature
    if heat is not None:
        heat = heat / origin.temperature if origin is not None and origin.temperature else None
    reasons = [
        *_lost(info.is_finite),
        *_disagreeing(r_hat),
        *_few(effective, r_hat),
        *([law.fault] if law.fault else []),
        *_biased(law, origin, tolerance),
        *_heated(heat, law, tolerance),
    ]
    return Health(
        reasons=tuple(reasons),
        r_hat=r_hat,
        effective=effective,
        kinetic_temperature=None if heat is None else float(np.mean(heat)),
        noise_share=law.noise_share,
        predicted_error=law.predicted_error,
        skipped=() if law.skipped is None else (law.skipped,),
    )


def _lost(is_finite: np.ndarray) -> list[str]:
    lost = int(np.any(~is_finite, axis=1).sum())
    return [f"{lost} of {len(is_finite)} chains left the finite numbers"] if lost else []


def _disagreeing(r_hat: float) -> list[str]:
    if r_hat <= _LARGEST_R_HAT or math.isnan(r_hat):
        return []
    return [
        f"chains disagree (R-hat {r_hat:.2f}): they have not forgotten their starts, or sit in "
        f"different modes; run longer, with more burn-in"
    ]


def _few(effective: float, r_hat: float) -> list[str]:
    if effective >= _LEAST_EFFECTIVE or r_hat > _LARGEST_R_HAT or math.isnan(effective):
        return []
    return [f"only {effective:.0f} effective draws: run longer, or let tune choose the settings"]


def _biased(law: Law, origin: Origin | Record | None, tolerance: float) -> list[str]:
    error = law.predicted_error
    if error is None or not isinstance(origin, Origin) or abs(error) <= tolerance:
        return []
    text = f"standard deviations may be {abs(error):.0%} too {'wide' if error > 0 else 'narrow'}: "
    share = law.noise_share or 0.0
    if abs(law.step_error) > tolerance or share <= tolerance:
        return [text + "the step size is too large for the stiffest direction; halve it"]
    # The share falls with the batch; half of the tolerance is left to other errors.
    batch = getattr(origin.gradient, "batch_size", None)
    larger = "" if batch is None else f" or batches of {math.ceil(batch * share / tolerance):,}"
    remedy = "use ControlVariate"
    if isinstance(origin.gradient, ControlVariate):
        remedy = "use a center nearer the mode"
    elif isinstance(origin.gradient, NoisyGradient):
        remedy = "tell the sampler of it by gradient_noise"
    return [text + f"gradient noise adds {share:.0%} to the injected noise; {remedy}{larger}"]


def _heated(heat: np.ndarray | None, law: Law, tolerance: float) -> list[str]:
    explained = abs(law.predicted_error or 0.0) > tolerance
    fault = None if heat is None or explained else heat_fault(heat, tolerance)
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
    if abs(excess) <= 2 * tolerance + 4 * error:
        return None
    return (
        f"the momenta are {'hotter' if excess > 0 else 'colder'} than they should be by "
        f"{abs(excess):.0%}: more noise enters than the settings say, or the step size is too "
        f"large; halve it"
    )


def _law(origin: Origin, positions: PyTree, hyper: PyTree, is_finite: np.ndarray) -> Law:
    """The law of the settings on a Gaussian with the curvature and noise measured at the draws."""
    if getattr(theory.moving(origin.sampler), "metropolis", False) is True:
        return Law(0.0, 0.0)
    if origin.is_adapted or not theory.moving(origin.sampler).is_affine:
        reason = (
            "were adapted in burn-in" if origin.is_adapted else "are not those of a linear step"
        )
        return Law(skipped=f"the law of the settings: they {reason}")
    points = _points(origin.target, positions, is_finite)
    if isinstance(points, str):
        return Law(skipped=points)
    target = _under(origin.target, hyper)
    size = tree.size(jax.tree.map(lambda leaf: leaf[0], points))
    with jax.enable_x64(True):
        noise = _noise(origin, target, points, diagonal=size > _DENSE_LIMIT)
    if isinstance(noise, str):
        return Law(skipped=noise)
    if size > _DENSE_LIMIT:
        return _average_law(origin, noise, jax.tree.map(lambda leaf: leaf[0], points))
    return _whole_law(origin, target, points, noise)


def _points(target: Target, positions: PyTree, is_finite: np.ndarray) -> PyTree | str:
    """Some of the draws, as parameters in double precision with a leading axis."""
    if isinstance(target, Posterior) and target.source and target.source.is_sequential:
        return "the law of the settings: a stream's rows cannot be looked at again"
    chains, draws = np.nonzero(is_finite)
    if len(chains) == 0:
        return "no draw is finite"
    chosen = np.linspace(0, len(chains) - 1, _NUM_POINTS).astype(int)
    points = jax.tree.map(
        lambda leaf: np.asarray(leaf[chains[chosen], draws[chosen]], np.float64), positions
    )
    try:
        one = jax.tree.map(lambda leaf: leaf[0], points)
        jax.eval_shape(target.potential, one)
    except Exception:  # whatever a user's function raises on what is not its parameters
        return "the law of the settings: the draws kept are not the parameters"
    return points


def _under(target: Target, hyper: PyTree) -> Target:
    if not isinstance(target, Posterior) or hyper is None:
        return target
    return target.with_hyper(
        jax.tree.map(lambda leaf: jnp.asarray(np.mean(leaf, (0, 1)), leaf.dtype), hyper)
    )


def _noise(origin: Origin, target: Target, points: PyTree, *, diagonal: bool):
    """V of the gradient estimate, or why it is not known."""
    gradient, estimator = origin.gradient, origin.estimator
    if isinstance(gradient, NoisyGradient):
        return np.asarray(gradient.variance, np.float64)
    if isinstance(gradient, FullBatch) or isinstance(target, Potential):
        return np.zeros(())
    if not gradient.is_independent:
        return "gradient noise: that of shuffled epochs cancels over a pass"
    if estimator.renew_every is not None:
        return "gradient noise: its center moves with the chain"
    count = int(target.num_examples)
    shape = (_NUM_POINTS, min(_NUM_ROWS, 4 * count))
    rows = np.random.default_rng(0).integers(0, count, shape)
    points = jax.tree.map(jnp.asarray, points)
    rows = jnp.asarray(rows, jnp.int32)
    return np.asarray(mean_gradient_noise(estimator, target, points, rows, diagonal=diagonal))


def _whole_law(origin: Origin, target: Target, points: PyTree, noise: np.ndarray) -> Law:
    center = jax.tree.map(lambda leaf: jnp.asarray(leaf.mean(0), jnp.float32), points)
    curvature = mode.hessian(target, center, num_rows=_NUM_CURVATURE_ROWS)
    if not np.all(np.isfinite(curvature)) or np.linalg.eigvalsh(curvature)[0] <= 0:
        return Law(skipped="the law of the settings: at the mean of the draws there is no mode")
    noise = (
        np.broadcast_to(noise, curvature.shape)
        if noise.ndim == 2
        else np.diag(np.broadcast_to(noise, len(curvature)))
    )
    sampler = _with_known_noise(origin.sampler, noise)
    try:
        with_noise = theory.stationary_law(sampler, curvature, noise)
        without = theory.stationary_law(sampler, curvature, 0.0) if np.any(noise) else with_noise
    except ValueError as error:
        return Law(fault=f"the settings have no law here: {error}")
    share = with_noise.effective_temperature / without.effective_temperature - 1
    return Law(float(share), _largest(with_noise), _largest(without))


def _largest(law: theory.Law) -> float:
    """The largest error of a standard deviation, with its sign."""
    errors = law.standard_deviation_error
    return float(errors[np.argmax(np.abs(errors))])


def _average_law(origin: Origin, noise: np.ndarray, like: PyTree) -> Law:
    """What gradient noise adds on average over the parameters, εV/(2τC) or, for SGLD, εPV/(2τ)."""
    sampler, diagonal = origin.sampler, np.broadcast_to(noise, tree.size(like))
    while isinstance(sampler, Whitened):
        factor = sampler.matrix(like)
        if not isinstance(factor, matrices.Diagonal):
            return Law(skipped="the law of the settings: too many parameters")
        diagonal = diagonal * _entries(factor, like) ** 2
        sampler = sampler.sampler
    step_size = getattr(sampler, "step_size", None)
    damping = getattr(sampler, "friction", None)
    if isinstance(sampler, SGLD):
        damping = jax.tree.map(lambda leaf: 1 / leaf, sampler.preconditioner)
    if damping is None or callable(damping) or callable(step_size):
        return Law(skipped="the law of the settings: it is known of constant SGHMC and SGLD only")
    if isinstance(getattr(sampler, "gradient_noise", 0.0), EmpiricalFisher):
        return Law(0.0, 0.0)
    parsed = matrices.parse(damping, like, "friction", definite=False)
    if not isinstance(parsed, matrices.Diagonal):
        return Law(skipped="the law of the settings: too many parameters")
    with np.errstate(divide="ignore"):
        share = np.mean(step_size * diagonal / (2 * origin.temperature * _entries(parsed, like)))
    return Law(float(share), float(np.sqrt(1 + share) - 1))


def _entries(diagonal: matrices.Diagonal, like: PyTree) -> np.ndarray:
    pairs = zip(diagonal.values, tree.sizes(like), strict=True)
    return np.concatenate([np.broadcast_to(value, (count,)) for value, count in pairs])


def _with_known_noise(sampler: Sampler, noise: np.ndarray) -> Sampler:
    """The sampler with V̂ = V in place of an estimator that estimates it."""
    if isinstance(sampler, Whitened):
        factor = np.asarray(sampler.matrix(_vector(noise)).dense([len(noise)]).array)
        inner = _with_known_noise(sampler.sampler, factor.T @ noise @ factor)
        return dataclasses.replace(sampler, sampler=inner)
    estimator = getattr(sampler, "gradient_noise", None)
    if not isinstance(estimator, EmpiricalFisher):
        return sampler
    known = np.diag(noise.diagonal()) if estimator.diagonal else noise
    return dataclasses.replace(sampler, gradient_noise=known)


def _vector(noise: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((len(noise),), np.float64)
