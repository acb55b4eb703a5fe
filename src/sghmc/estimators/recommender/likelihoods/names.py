"""Likelihoods by name."""

from typing import Any

from sghmc.estimators.recommender.likelihoods.base import Likelihood
from sghmc.estimators.recommender.likelihoods.clicks import Counts, Implicit
from sghmc.estimators.recommender.likelihoods.gaussian import Gaussian
from sghmc.estimators.recommender.likelihoods.ordinal import Ordinal

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "ordinal": Ordinal,
    "implicit": Implicit,
    "counts": Counts,
}
AUTO = "auto"
"""The name of none: held-out ratings choose."""


def name_of(likelihood: Likelihood) -> str:
    return next(name for name, kind in LIKELIHOODS.items() if isinstance(likelihood, kind))


def reading(name: str, duplicates: str) -> dict[str, Any]:
    """How a table is read for a likelihood, or for "auto": options of `from_table`.

    Of mere events a pair may come often, where the user does not say otherwise, and no rating need
    be there.
    """
    kind = LIKELIHOODS.get(name)
    repeats = kind.repeats if kind and duplicates == "error" else duplicates
    return {"duplicates": repeats, "is_rated": kind is not None and kind.is_rated}
