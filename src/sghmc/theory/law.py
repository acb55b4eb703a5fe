"""The stationary law of a sampler's draws on a Gaussian target."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from sghmc.samplers.base import Sampler
from sghmc.theory.affine import as_matrix
from sghmc.theory.cycle import (
    LARGEST_RADIUS,
    cycle,
    cycle_covariances,
    held,
    mean_lag_sum,
    spectral_radius,
)
from sghmc.theory.stability import stability_limit


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
