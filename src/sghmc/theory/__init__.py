"""Exact stationary distribution (law) of a sampler's draws on a Gaussian target.

On U = ½θᵀAθ with gradient noise N(0, V) a step of SGHMC, SGLD or HMC without its accept step is
affine, z' = F z + L n, with n all the standard normals that enter. F and L are Jacobians of the
step function that runs, in double precision; the rest is linear algebra, no sampling. With A the
curvature of a posterior at its mode, this tells the bias and the autocorrelation time in advance.
"""

from sghmc.theory.affine import AffineMap, affine_map
from sghmc.theory.batches import MinibatchLaw, minibatch_law
from sghmc.theory.stationary import (
    FrictionLaw,
    Law,
    chi_squared,
    entropy_growth,
    friction_law,
    stability_limit,
    stationary_law,
)

__all__ = [
    "AffineMap",
    "FrictionLaw",
    "Law",
    "MinibatchLaw",
    "affine_map",
    "chi_squared",
    "entropy_growth",
    "friction_law",
    "minibatch_law",
    "stability_limit",
    "stationary_law",
]
