"""The step size from which on a sampler diverges on a Gaussian target."""

import numpy as np
from numpy.typing import ArrayLike

from sghmc.samplers.base import Sampler
from sghmc.theory.affine import affine_map, as_matrix
from sghmc.theory.cycle import LARGEST_RADIUS, cycle, held, spectral_radius

_PRECISION = 1e-10
"""How well the limit is found, relative to it."""
_SMALLEST_FACTOR = 1e-30
"""Of the step size: a sampler that is unstable there is so at every step size."""


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
    while unstable - stable > _PRECISION * stable:
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
        if factor < _SMALLEST_FACTOR:
            affine_map(sampler, precision)  # says what is wrong, if anything but the step size is
            raise ValueError(f"{sampler} is unstable at every step size.")
    return factor
