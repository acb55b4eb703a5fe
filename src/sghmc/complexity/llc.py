"""llc(): the local learning coefficient of a trained model."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.complexity.learning_coefficient import LearningCoefficient, LlcSettings, agree, judged
from sghmc.core.checks import as_array, check_count
from sghmc.core.signals import whole_or_nothing
from sghmc.engine import checks
from sghmc.engine.options import RunOptions
from sghmc.engine.run import run
from sghmc.gradients import FullBatch, Gradient
from sghmc.posterior.curvature import LANCZOS, Spectrum, hessian_spectrum
from sghmc.posterior.posterior import Posterior, RowPosterior
from sghmc.posterior.target import Potential, Target
from sghmc.samplers import Sampler
from sghmc.samplers.splitting import BAOAB
from sghmc.types import PyTree

# Largest relative change of a Gaussian's coefficient by half the localization; the bias of the
# coefficient is twice that.
_MAX_SENSITIVITY = 0.0025
# Smallest localization as a share of the largest curvature: below it a flat direction needs more
# than 100 steps to relax.
_MIN_LOCALIZATION_SHARE = 1e-4
_MAX_CURVATURE_ROWS = 10_000
# Relaxations of burn-in: they leave a share e⁻⁸ of the start in variances, times a polynomial.
_BURNIN_RELAXATIONS = 4
# Factor on the localization in the run that measures the effect of localization.
_WEAKER_LOCALIZATION = 0.25
_MIN_RELAXATIONS = 5
# Directions that data determine are faster than a relaxation, so several draws are kept in one.
_DRAWS_PER_RELAXATION = 8
# Relative Monte Carlo error to reach: n independent draws of a Gamma(λ) law, which Nβ (L − L*) has
# near a minimum, have 1/√(nλ).
_MONTE_CARLO_ERROR = 0.01
_MAX_DRAWS = 5_000
# Precision of matrix products: GPUs otherwise round to ten bits, which heats chains near w*.
_MATMUL_PRECISION = "highest"
# How often the step size is halved if that changes the coefficient.
_NUM_HALVINGS = 3


def llc(
    key: jax.Array,
    target: RowPosterior | Callable[[PyTree], jax.Array],
    params: PyTree,
    *,
    num_examples: int | None = None,
    inverse_temperature: float | None = None,
    localization: float | None = None,
    sampler: Sampler | None = None,
    gradient: Gradient | None = None,
    num_samples: int | None = None,
    num_burnin: int | None = None,
    num_gradients: int | None = None,
    num_chains: int = 4,
    check: bool = True,
    progress: bool = False,
) -> LearningCoefficient:
    """Estimate the local learning coefficient of a model at trained parameters w*.

        λ̂ = Nβ (E[L(w)] − L(w*)),   w ~ exp(−Nβ L(w) − ½γ‖w − w*‖²)

    L is the mean negative log-likelihood of the data. λ̂ counts directions: d/2 where all d
    parameters are determined by the data, less where some are not. As Nβ → ∞ with γ fixed it tends
    to the learning coefficient (real log canonical threshold) at w*; at finite N and γ it is what
    the formula says: a direction of curvature h counts ½ Nβh/(Nβh + γ), a singular one in part.
    Where γ is not given, λ̂ is therefore found at γ/4, too, and the estimate is 2λ̂(γ/4) − λ̂(γ),
    which cancels an error proportional to √γ. The true order of the error is not known, so
    λ̂(γ/4) − λ̂(γ) is part of the standard error; the verdict says if it dominates. Singular
    directions that neither γ changes, as in wide and deep networks, are missed.

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `target` | L | a `Posterior`, whose log-likelihood counts and whose prior does not; or a |
    | | | function of the parameters, the mean loss |
    | `params` | w* | where training has ended: a minimum of L |
    | `num_examples` | N | where the target is a function: examples that its mean stands for |
    | `inverse_temperature` | β | None: 1/log N |
    | `localization` | γ | None: so weak that half of it changes a Gaussian's λ̂ by 0.25 %, and a |
    | | | quarter of that; given, λ̂ is that of this γ |
    | `sampler` | | None: `BAOAB` with a step size of 1/√(largest curvature) |
    | `gradient` | | None: all data; `ControlVariate(500, center=params)` has little noise here |
    | `num_samples`, `num_burnin` | | draws of each chain; None: by the rule below |
    | `num_gradients` | | of all chains and runs, in place of that rule; a product with the |
    | | | Hessian counts as two |
    | `check` | | run again with half the step size, and go on with that if it matters; and with |
    | | | a quarter of the localization, unless that is given |

    Nothing needs to be tuned. Lanczos' method gives the spectrum of the Hessian at w*, by 120
    products with vectors, and γ follows from it. With the largest curvature k = Nβh + γ, `BAOAB`
    of step 1/√k is stable, by a factor 2, and unbiased where L is quadratic; friction 2√γ damps
    flat directions critically, so that a chain forgets its start in √(k/γ) steps. Where gradients
    are noisy, friction is ½√k against their heat, and it takes k/(4γ) steps. Burn-in is four times
    that; draws are from as many steps as a Monte Carlo error of 1 % needs, from five times
    that at least. What L does beyond its quadratic part is what half the step looks for.

    Watanabe, 2013; Lau, Furman, Wang, Murfet & Wei, 2023.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> loss = lambda w: jnp.sum(jnp.linspace(1, 3, 300) * w[:300] ** 2)
    >>> found = sghmc.llc(jax.random.key(0), loss, jnp.zeros(1000), num_examples=10_000)
    >>> abs(found.estimate - 150) < 10, found.is_sound  # 300 of 1,000 parameters matter
    (True, True)
    """
    checks.check_key(key)
    number, beta = _temper(target, num_examples, inverse_temperature)
    if localization is not None and not localization > 0:
        raise ValueError(f"localization must be positive, but is {localization!r}.")
    for count, name in ((num_samples, "num_samples"), (num_burnin, "num_burnin")):
        check_count(count, name, 4 if name == "num_samples" else 0, or_none="by the rule")
    check_count(num_gradients, "num_gradients", or_none="by the rule")
    if num_gradients is not None and (num_samples is not None or num_burnin is not None):
        raise ValueError("Give num_gradients, or num_samples and num_burnin, not both.")
    check_count(num_chains, "num_chains")
    params = jax.tree.map(lambda leaf: as_array(leaf, "params"), params)
    slope = _Slope(_localized(target, params, number, beta, 0.0))
    with jax.default_matmul_precision(_MATMUL_PRECISION):
        lanczos = LANCZOS if num_gradients is None else (1, min(LANCZOS[1], num_gradients // 8 + 1))
        spectrum = hessian_spectrum(jax.random.fold_in(key, 0), slope, params, *lanczos)
    gamma = _localization(spectrum) if localization is None else float(localization)
    is_exact = gradient is None or isinstance(gradient, FullBatch)

    def planned(gamma: float, slower: int = 1) -> LlcSettings:
        """Settings for a localization with which chains are so many times slower."""
        stiffest = max(spectrum.largest, 0.0) + gamma
        friction = max(2 * math.sqrt(gamma), 0.0 if is_exact else math.sqrt(stiffest) / 2)
        relaxation = math.ceil(friction * math.sqrt(stiffest) / (2 * gamma))
        expected = spectrum.effective(gamma) / 2
        thinning = max(1, relaxation // _DRAWS_PER_RELAXATION)
        burnin = math.ceil(_BURNIN_RELAXATIONS * relaxation / thinning)
        settings = LlcSettings(
            num_examples=number,
            inverse_temperature=beta,
            localization=gamma,
            sampler=sampler or BAOAB(1 / math.sqrt(stiffest), friction=friction),
            gradient=gradient,
            num_samples=num_samples or _num_samples(expected, relaxation // thinning, num_chains),
            num_burnin=burnin if num_burnin is None else num_burnin,
            thinning=thinning,
            num_chains=num_chains,
            relaxation=relaxation if sampler is None else None,
        )
        if num_gradients is None:
            return settings
        # Half the step and a quarter of γ take twice as many each.
        runs = (5 if localization is None else 3) if check else 1
        steps = (num_gradients - 2 * math.prod(lanczos)) // (runs * num_chains)
        return settings.within(slower * steps)

    def trace(number_of_run: int, settings: LlcSettings) -> np.ndarray:
        own = jax.random.fold_in(key, number_of_run)
        localized = _localized(target, params, number, beta, settings.localization)
        return _excess(own, localized, params, settings, progress)

    settings, halvings = planned(gamma), 0
    coarse, fine, taken = trace(1, settings), None, settings.num_steps
    most_halvings = _NUM_HALVINGS if num_gradients is None else 1
    for halving in range(most_halvings):
        if not check and (num_gradients is not None or np.all(np.isfinite(coarse))):
            break
        half = settings.halved()
        fine = trace(2 + halving, half)
        taken += half.num_steps
        if agree(coarse, fine) or halving == most_halvings - 1:
            break
        settings, coarse, halvings = half, fine, halvings + 1
    weak = None
    if check and localization is None:
        weaker = planned(_WEAKER_LOCALIZATION * gamma, slower=2)
        for _ in range(halvings):
            weaker = weaker.halved()
        weak = trace(2 + _NUM_HALVINGS, weaker)
        taken += weaker.num_steps
    return judged(coarse, fine if check else None, weak, settings, spectrum, taken)


def _temper(
    target: RowPosterior | Callable[[PyTree], jax.Array],
    num_examples: int | None,
    inverse_temperature: float | None,
) -> tuple[int, float]:
    """Return N and β after checking the arguments."""
    if isinstance(target, RowPosterior):
        if num_examples is not None:
            raise ValueError("num_examples goes with a loss function: a Posterior has its own.")
        number = int(target.num_examples)
    elif isinstance(target, Target) or not callable(target):
        raise TypeError(
            f"llc needs a Posterior, or a function of the parameters that returns the mean loss, "
            f"not {target!r}."
        )
    else:
        check_count(num_examples, "num_examples", 2, reason="since target is the mean loss of them")
        number = int(num_examples or 0)
    beta = 1 / math.log(max(number, 3)) if inverse_temperature is None else inverse_temperature
    if not beta > 0:
        raise ValueError(f"inverse_temperature must be positive, but is {inverse_temperature!r}.")
    return number, float(beta)


class _Tempered(eqx.Module):
    """Tempered log-likelihood β (log p(x | w) − log p(x | w*)) of one example.

    Subtracting the loss at w* example by example keeps the digits of the difference in single
    precision, and removes the noise of L(w*) from batches.
    """

    posterior: RowPosterior
    center: PyTree
    beta: jax.Array

    def __call__(self, params, example):
        hyper = () if self.posterior.hyper is None else (self.posterior.hyper,)
        at_center = self.posterior.log_likelihood(lax.stop_gradient(self.center), example, *hyper)
        return self.beta * (self.posterior.log_likelihood(params, example, *hyper) - at_center)


class _Localizing(eqx.Module):
    """Log density −½γ‖w − w*‖² of the localization, up to a constant."""

    center: PyTree
    gamma: jax.Array

    def __call__(self, params):
        return -0.5 * self.gamma * _square_distance(params, self.center)


class _Localized(eqx.Module):
    """Potential Nβ (L(w) − L(w*)) + ½γ‖w − w*‖² of a mean loss L."""

    loss: Callable[[PyTree], jax.Array]
    localizing: _Localizing
    scale: jax.Array

    def __call__(self, params):
        excess = self.loss(params) - self.loss(lax.stop_gradient(self.localizing.center))
        return self.scale * excess - self.localizing(params)


def _localized(
    target: RowPosterior | Callable[[PyTree], jax.Array],
    center: PyTree,
    number: int,
    beta: float,
    gamma: float,
) -> Posterior | Potential:
    """Return Nβ (L(w) − L(w*)) + ½γ‖w − w*‖² as a target."""
    localizing = _Localizing(center, jnp.asarray(gamma))
    if isinstance(target, RowPosterior):
        return Posterior(_Tempered(target, center, jnp.asarray(beta)), localizing, target.data)
    return Potential(_Localized(target, localizing, jnp.asarray(number * beta)))


class _Slope(eqx.Module):
    """Gradient of a target; of many rows, an evenly spaced subset is used."""

    target: Posterior | Potential
    rows: PyTree = None

    def __init__(self, target: Posterior | Potential):
        self.target = target
        if isinstance(target, RowPosterior) and target.num_examples > _MAX_CURVATURE_ROWS:
            numbers = np.linspace(0, int(target.num_examples) - 1, _MAX_CURVATURE_ROWS).astype(
                np.int32
            )
            self.rows = target.rows(jnp.asarray(numbers))

    def __call__(self, params):
        if self.rows is None:
            return self.target.gradient(params)
        assert isinstance(self.target, Posterior)
        return jax.grad(self.target.estimate)(params, self.rows)


def _localization(spectrum: Spectrum) -> float:
    """Return the largest γ that changes a Gaussian's coefficient by a share `_MAX_SENSITIVITY`."""
    if not spectrum.largest > 0:
        raise ValueError(
            f"The loss has no positive curvature at params (times Nβ, the largest is "
            f"{spectrum.largest:.3g}): no scale follows from it. Give localization=… and a sampler."
        )
    tried = spectrum.largest * np.geomspace(1, _MIN_LOCALIZATION_SHARE, 81)
    is_weak = [
        spectrum.effective(gamma / 2) <= (1 + _MAX_SENSITIVITY) * spectrum.effective(gamma)
        for gamma in tried
    ]
    return float(tried[np.argmax(is_weak)] if any(is_weak) else tried[-1])


def _num_samples(expected: float, per_relaxation: int, num_chains: int) -> int:
    """Return the draws of each chain; one in a relaxation counts as independent."""
    independent = 1 / (max(expected, 0.5) * _MONTE_CARLO_ERROR**2)
    relaxations = max(_MIN_RELAXATIONS, independent / num_chains)
    return min(_MAX_DRAWS, math.ceil(relaxations * max(1, per_relaxation)))


def _excess(
    key: jax.Array,
    localized: Posterior | Potential,
    center: PyTree,
    settings: LlcSettings,
    progress: bool,
) -> np.ndarray:
    """Return Nβ (L(w) − L(w*)) of each draw, axes (chain, draw); NaN after a chain diverged."""
    options = RunOptions(
        gradient=settings.gradient or FullBatch(),
        num_samples=settings.num_samples,
        num_burnin=settings.num_burnin,
        thinning=settings.thinning,
        num_chains=settings.num_chains,
        keep=_Distance(center),
        progress=progress,
        throw=False,
    )
    with whole_or_nothing(), jax.default_matmul_precision(_MATMUL_PRECISION):
        samples = run(key, localized, settings.sampler, center, options)
    distance = np.asarray(samples.positions, np.float64)
    excess = np.asarray(samples.info.potential, np.float64) - 0.5 * settings.localization * distance
    return np.where(samples.info.is_finite, excess, np.nan)


class _Distance(eqx.Module):
    """Squared distance ‖w − w*‖², which is kept of every draw."""

    center: PyTree

    def __call__(self, params):
        return _square_distance(params, self.center)


def _square_distance(params: PyTree, center: PyTree) -> jax.Array:
    squares = jax.tree.map(lambda leaf, mid: jnp.sum((leaf - mid) ** 2), params, center)
    return jnp.sum(jnp.stack(jax.tree.leaves(squares)))
