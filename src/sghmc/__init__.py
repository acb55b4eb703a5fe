"""Bayesian inference on data too big for exact MCMC."""

from sghmc import theory
from sghmc.adapt import Adapt
from sghmc.gibbs import Gibbs
from sghmc.gradients import FullBatch, Minibatch, NoisyGradient
from sghmc.posterior import Posterior, Potential
from sghmc.priors import GaussianPrior
from sghmc.run import sample
from sghmc.samplers.descent import SGD, Momentum
from sghmc.samplers.hmc import HMC
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.sgld import SGLD
from sghmc.samples import DivergenceError, Samples

__version__ = "0.1.0"

__all__ = [
    "HMC",
    "SGD",
    "SGHMC",
    "SGLD",
    "Adapt",
    "DivergenceError",
    "FullBatch",
    "GaussianPrior",
    "Gibbs",
    "Minibatch",
    "Momentum",
    "NoisyGradient",
    "Posterior",
    "Potential",
    "Samples",
    "sample",
    "theory",
]
