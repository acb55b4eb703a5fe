"""Likelihoods by name."""

from sghmc.estimators.recommender.likelihoods.base import Likelihood
from sghmc.estimators.recommender.likelihoods.gaussian import Gaussian

LIKELIHOODS: dict[str, Likelihood] = {"gaussian": Gaussian()}
EXPLICIT = ("gaussian", "ordinal")
"""Those of ratings that say how much something was liked."""
