"""Laws that need no matrix: one direction of SGHMC, entropy without friction, χ² divergence."""

import math
from typing import NamedTuple

import numpy as np


class FrictionLaw(NamedTuple):
    """What `friction_law` returns: in one direction, relative to the exact law."""

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
