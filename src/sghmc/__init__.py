"""Bayesian inference on data too big for exact MCMC.

Public is what `sghmc.__all__` names, and what the `__all__` of a module names, such as
`sghmc.theory` or `sghmc.core.tree`. Everything else is private, and may change without notice.
"""

import importlib
import importlib.metadata
import warnings
from types import ModuleType

from sghmc import data, models, theory, transforms
from sghmc.adapt import Adapt, Adaptation, Moment
from sghmc.adapt.hmc import AdaptHMC
from sghmc.adapt.mass import AdaptMass, AdaptScale
from sghmc.checkpoint.checkpoint import Checkpoint, CheckpointError, CheckpointWarning
from sghmc.complexity.learning_coefficient import LearningCoefficient
from sghmc.complexity.llc import llc
from sghmc.core.files import cache
from sghmc.core.runtime import LostProcessError, ProcessError
from sghmc.core.version import __version__
from sghmc.engine.stepper import Stepper
from sghmc.gradients import FullBatch, Gradient, GradientEstimator, Minibatch, Oracle
from sghmc.gradients.control_variate import ControlVariate
from sghmc.gradients.noise import EmpiricalFisher, NoisyGradient
from sghmc.planning import Plan, plan
from sghmc.posterior.gibbs import GaussianPrior, Gibbs
from sghmc.posterior.parameter_rows import RowLikelihood, RowPrior
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.sources import DataError
from sghmc.posterior.target import Potential, Target
from sghmc.results.health import HealthWarning
from sghmc.results.samples import DivergenceError, GradientNoiseError, Samples
from sghmc.results.scores import kernel_stein_discrepancy
from sghmc.results.until import Until
from sghmc.samplers import Dynamics, Kernel, Sampler
from sghmc.samplers.hmc import HMC, Austerity
from sghmc.samplers.langevin import PSGLD, SGLD
from sghmc.samplers.lazy import Lazy
from sghmc.samplers.microcanonical import MCHMC
from sghmc.samplers.nose_hoover import SGNHT
from sghmc.samplers.optimizers import SGD, Momentum
from sghmc.samplers.replicas import ReplicaExchange
from sghmc.samplers.riemannian import SGRHMC
from sghmc.samplers.rounding import StochasticRounding
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.splitting import BAOAB, OBABO, UBU
from sghmc.samplers.wrappers import Cyclical, Whitened
from sghmc.sampling import sample
from sghmc.tuning.budget import BudgetError
from sghmc.tuning.result import Tuned
from sghmc.tuning.tune import tune, tune_network
from sghmc.types import Change, Evaluation, StepInfo

__all__ = [
    "BAOAB",
    "HMC",
    "MCHMC",
    "OBABO",
    "PSGLD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SGRHMC",
    "UBU",
    "Adapt",
    "AdaptHMC",
    "AdaptMass",
    "AdaptScale",
    "Adaptation",
    "Austerity",
    "BudgetError",
    "Change",
    "Checkpoint",
    "CheckpointError",
    "CheckpointWarning",
    "ControlVariate",
    "Cyclical",
    "DataError",
    "DivergenceError",
    "Dynamics",
    "EmpiricalFisher",
    "Evaluation",
    "FullBatch",
    "GaussianPrior",
    "Gibbs",
    "Gradient",
    "GradientEstimator",
    "GradientNoiseError",
    "HealthWarning",
    "Kernel",
    "Lazy",
    "LearningCoefficient",
    "LostProcessError",
    "Minibatch",
    "Moment",
    "Momentum",
    "NoisyGradient",
    "Oracle",
    "Plan",
    "Posterior",
    "Potential",
    "ProcessError",
    "ReplicaExchange",
    "RowLikelihood",
    "RowPrior",
    "Sampler",
    "Samples",
    "StepInfo",
    "Stepper",
    "StochasticRounding",
    "Target",
    "Tuned",
    "Until",
    "Whitened",
    "__version__",
    "cache",
    "data",
    "kernel_stein_discrepancy",
    "llc",
    "models",
    "plan",
    "sample",
    "theory",
    "transforms",
    "tune",
    "tune_network",
]


def _warn_of_namesake() -> None:
    """Warn if the package index's `sghmc` is installed: its files mix with those of `sghmc-jax`."""
    try:
        version = importlib.metadata.version("sghmc")
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"Another project called sghmc, version {version}, is installed beside sghmc-jax, and both "
        "write into the folder sghmc: run `pip uninstall sghmc`, then install sghmc-jax again.",
        stacklevel=3,
    )


_warn_of_namesake()


def __getattr__(name: str) -> ModuleType:
    """Import the parts that need other libraries when they are first named."""
    if name in ("estimators", "interop", "torch"):
        return importlib.import_module(f"sghmc.{name}")
    raise AttributeError(f"module 'sghmc' has no attribute {name!r}")
