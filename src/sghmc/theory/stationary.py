"""Stationary laws on a Gaussian target: of any sampler, its stability limit, and closed forms.

The closed forms need no matrix: one direction of SGHMC, entropy without friction, χ² divergence.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sghmc.samplers import Sampler
from sghmc.theory.affine import (
    LARGEST_RADIUS,
    affine_map,
    as_matrix,
    cycle,
    cycle_covariances,
    held,
    mean_lag_sum,
    spectral_radius,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """The stationary law of a sampler's draws, N(0, S).

    | field | formula | meaning |
    | --- | --- | --- |
    | `covariance` | S_θθ | covariance of the draws |
    | `state_covariance` | S | covariance of (θ, r); of θ alone where there is no momentum |
    | `standard_deviation_error` | √(S_ii / τ(A⁻¹)_ii) − 1 | for each coordinate |
    | `autocorrelation_time` | 1 + Σ_{s≥1} ρ_s | for each coordinate, in steps |
    | `effective_temperature` | tr(AS_θθ)/d | what to hold against τ |
    """

    covariance: np.ndarray
    state_covariance: np.ndarray
    standard_deviation_error: np.ndarray
    autocorrelation_time: np.ndarray
    effective_temperature: float


def stationary_law(
    sampler: Sampler, precision: ArrayLike, gradient_noise: ArrayLike = 0.0, *, t: int = 0
) -> Law:
    """The law that `sampler` has on U = ½θᵀAθ: S = F S Fᵀ + L Lᵀ.

    `precision` is A, `gradient_noise` the V that the gradient *has*: each a number, a vector (a
    diagonal) or a dense matrix. The sampler's own `gradient_noise` is the V̂ that it subtracts.
    Schedules are held at their values at step `t`. With momentum resampling every m steps the law
    is periodic, and what is returned is its average over m steps. For `Whitened` A, V and the law
    are those of θ, whatever moves.

    >>> import sghmc
    >>> from sghmc import theory
    >>> law = theory.stationary_law(sghmc.SGLD(0.2), precision=[1.0, 4.0])
    >>> law.covariance.diagonal().round(4).tolist()  # 1/(h(1 − ½εh))
    [1.1111, 0.4167]
    >>> law.autocorrelation_time.round(4).tolist()  # 1/(εh)
    [5.0, 1.25]
    """
    precision = as_matrix(precision)
    sampler = held(sampler, t)
    steps = cycle(sampler, precision, gradient_noise)
    radius = spectral_radius(steps)
    if not radius < 1:
        raise ValueError(_no_law(sampler, precision, radius))
    covariances = cycle_covariances(steps)
    size, view = len(precision), steps[0].view
    state_covariance = np.mean(covariances, axis=0)
    covariance = view @ state_covariance @ view.T
    lagged = view @ mean_lag_sum(steps, covariances) @ view.T
    temperature = sampler.dynamics.temperature
    assert not callable(temperature)
    exact = temperature * np.linalg.inv(precision)
    with np.errstate(divide="ignore", invalid="ignore"):  # without any noise all is 0/0: NaN
        return Law(
            covariance=covariance,
            state_covariance=state_covariance,
            standard_deviation_error=np.sqrt(covariance.diagonal() / exact.diagonal()) - 1,
            autocorrelation_time=1 + lagged.diagonal() / covariance.diagonal(),
            effective_temperature=float(np.trace(precision @ covariance)) / size,
        )


def _no_law(sampler: Sampler, precision: np.ndarray, radius: float) -> str:
    fault = "is unstable on this target" if radius > LARGEST_RADIUS else "never forgets its start"
    return (
        f"The chain {fault}, so there is no stationary law: the spectral radius of a step is "
        f"{radius:.6g} and must be below 1. The stability_limit of its step size is "
        f"{stability_limit(sampler, precision):.6g}; a chain below it lacks friction."
    )


# The step size from which on a sampler diverges on a Gaussian target.

# Relative error of the limit.
_LIMIT_ERROR = 1e-10
# A sampler that is unstable at this factor of its step size is unstable at every step size.
_MIN_STEP_FACTOR = 1e-30


def stability_limit(sampler: Sampler, precision: ArrayLike) -> float:
    """The step size at which the sampler becomes unstable on U = ½θᵀAθ.

    Mass, friction and preconditioner stay as they are; neither noise nor an accept step matters.
    For SGD and Momentum it is a learning rate. By bisection on the spectral radius of the step.

    >>> import sghmc
    >>> from sghmc import theory
    >>> round(theory.stability_limit(sghmc.SGLD(0.01), precision=[1.0, 4.0]), 6)  # 2/h
    0.5
    """
    precision = as_matrix(precision)
    sampler = held(sampler, 0)
    irrelevant = {"gradient_noise": 0.0, "metropolis": False}
    present = irrelevant.keys() & sampler.settings.keys()
    sampler = sampler.with_settings(**{name: irrelevant[name] for name in present})
    stable = _first_stable_factor(sampler, precision)
    unstable = 2 * stable
    while _is_stable(sampler.rescaled(unstable), precision):
        stable, unstable = unstable, 2 * unstable
    while unstable - stable > _LIMIT_ERROR * stable:
        middle = (stable + unstable) / 2
        if _is_stable(sampler.rescaled(middle), precision):
            stable = middle
        else:
            unstable = middle
    limit = sampler.rescaled(stable).dynamics.step_size
    assert limit is not None
    assert not callable(limit)
    return float(limit)


def _is_stable(sampler: Sampler, precision: np.ndarray) -> bool:
    try:
        steps = cycle(sampler, precision, 0.0)
    except ValueError:  # samplers refuse settings that diverge on every target
        return False
    return spectral_radius(steps) <= LARGEST_RADIUS


def _first_stable_factor(sampler: Sampler, precision: np.ndarray) -> float:
    factor = 1.0
    while not _is_stable(sampler.rescaled(factor), precision):
        factor /= 4
        if factor < _MIN_STEP_FACTOR:
            affine_map(sampler, precision)  # says what is wrong, if anything but the step size is
            raise ValueError(f"{sampler} is unstable at every step size.")
    return factor


# Laws that need no matrix: one direction of SGHMC, entropy without friction, χ² divergence.


class FrictionLaw(NamedTuple):
    """Variance relative to the target's, and autocorrelation time, of one direction of SGHMC."""

    variance: float
    autocorrelation_time: float

    @property
    def standard_deviation_error(self) -> float:
        return math.sqrt(self.variance) - 1


def friction_law(
    step_size: float,
    friction: float,
    *,
    curvature: float = 1.0,
    gradient_noise: float = 0.0,
    temperature: float = 1.0,
    observe: str = "end",
) -> FrictionLaw:
    """The law of SGHMC of mass 1 in one direction, in closed form.

        variance/(τ/h) = (1 + ε(V − V̂)/(2Cτ)) / (1 − ε²h/(4 − 2εC))
        1 + Σρ = C/(εh) + (1 − εC)/(2 − εC)

    `gradient_noise` is V − V̂. In the "middle" of a drift the variance lacks its denominator, and
    1 + Σρ is C/(εh) + ½: such a draw is the mean of the positions before and after the step.

    >>> from sghmc import theory
    >>> law = theory.friction_law(0.1, 1.0, gradient_noise=4.0)
    >>> round(law.variance, 4), round(law.autocorrelation_time, 2)
    (1.2032, 10.47)
    """
    decay = step_size * friction
    heating = 1 + step_size * gradient_noise / (2 * friction * temperature)
    stretch = 1 - step_size**2 * curvature / (4 - 2 * decay)
    if stretch <= 0:
        return FrictionLaw(math.inf, math.inf)
    time = friction / (step_size * curvature)
    if observe == "middle":
        return FrictionLaw(heating, time + 1 / 2)
    return FrictionLaw(heating / stretch, time + (1 - decay) / (2 - decay))


def entropy_growth(time, curvature, mass, diffusion, temperature=1.0) -> np.ndarray:
    """How much entropy frictionless dynamics with a noisy gradient gain, h(t) − h(0).

        dθ = M⁻¹r dt,  dr = −hθ dt + N(0, 2B dt),  from equilibrium at temperature τ₀:
        h(t) − h(0) = ½ ln[(1 + bt/τ₀)² − (b/(τ₀ω))² sin²ωt],  b = B/m,  ω = √(h/m)

    for one mode of curvature h; `diffusion` is B = ½εV. All arguments broadcast. This is what
    Theorem 3.1 says on a Gaussian: the entropy grows without end, so friction is needed.

    >>> from sghmc import theory
    >>> theory.entropy_growth([0.0, 1.0, 10.0], 1.0, mass=1.0, diffusion=0.2).round(4).tolist()
    [0.0, 0.1724, 1.098]
    """
    time, curvature, mass, diffusion, temperature = map(
        np.asarray, (time, curvature, mass, diffusion, temperature)
    )
    heating = diffusion / mass / temperature
    frequency = np.sqrt(curvature / mass)
    swing = heating * time * np.sinc(frequency * time / np.pi)
    heated = heating * time
    return np.log1p(2 * heated + heated**2 - swing**2) / 2


def chi_squared(covariance, reference) -> np.ndarray:
    """The χ² divergence of N(0, S) from N(0, Σ), ∫p²/q − 1 with p the first of them.

        |Σ|^½ |S|⁻¹ |2S⁻¹ − Σ⁻¹|^{−½} − 1 = Π_i (1 − (λ_i − 1)²)^{−½} − 1

    with λ the eigenvalues of Σ⁻¹S; infinite when one of them reaches 2. Leading axes broadcast.

    >>> from sghmc import theory
    >>> float(theory.chi_squared([[1.1]], [[1.0]]).round(6))
    0.005038
    """
    root = np.linalg.inv(np.linalg.cholesky(np.asarray(reference, float)))
    whitened = root @ np.asarray(covariance, float) @ np.swapaxes(root, -1, -2)
    excess = np.linalg.eigvalsh(whitened) - 1
    with np.errstate(divide="ignore"):
        return np.expm1(-np.sum(np.log1p(-np.minimum(excess**2, 1)), axis=-1) / 2)
