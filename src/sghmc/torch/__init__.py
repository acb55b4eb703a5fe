"""Samplers as PyTorch optimizers: any training loop samples, with the stationary law proven."""

from sghmc.core.checks import require

require("torch", extra="torch")

from sghmc.torch.base import Cyclical, Sampler
from sghmc.torch.collector import Collector
from sghmc.torch.draws import Chains
from sghmc.torch.langevin import PSGLD, SGLD
from sghmc.torch.nose_hoover import SGNHT
from sghmc.torch.predict import GaussianPrediction, Prediction, gaussian_loss
from sghmc.torch.priors import GaussianPrior
from sghmc.torch.sghmc import BAOAB, SGHMC
from sghmc.torch.tune import Tuned, tune

__all__ = [
    "BAOAB",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Chains",
    "Collector",
    "Cyclical",
    "GaussianPrediction",
    "GaussianPrior",
    "Prediction",
    "Sampler",
    "Tuned",
    "gaussian_loss",
    "tune",
]
