"""The samplers as PyTorch optimizers: in anyone's training loop, with the law that is proven."""

from sghmc.core.optional import require

require("torch", extra="torch")

from sghmc.torch.baoab import BAOAB
from sghmc.torch.base import Sampler
from sghmc.torch.chains import Chains
from sghmc.torch.collector import Collector
from sghmc.torch.cyclical import Cyclical
from sghmc.torch.prediction import Prediction
from sghmc.torch.priors import GaussianPrior
from sghmc.torch.psgld import PSGLD
from sghmc.torch.sghmc import SGHMC
from sghmc.torch.sgld import SGLD
from sghmc.torch.sgnht import SGNHT

__all__ = [
    "BAOAB",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Chains",
    "Collector",
    "Cyclical",
    "GaussianPrior",
    "Prediction",
    "Sampler",
]
