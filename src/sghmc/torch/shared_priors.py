"""Priors that several parameter groups share."""

import copy
from collections.abc import Iterable
from typing import Any

from sghmc.torch import parameters, priors
from sghmc.torch.chains import are_chains
from sghmc.torch.priors import GaussianPrior


class Copies:
    """A sampler's own copy of each prior that it was given: `gibbs` changes them."""

    def __init__(self):
        self._known: dict[int, tuple[Any, Any]] = {}

    def own(self, prior: Any) -> Any:
        """The same copy for all groups that share a prior."""
        priors.check_prior(prior)
        if id(prior) not in self._known:
            self._known[id(prior)] = (prior, copy.copy(prior))  # holds on to what has this id
        return self._known[id(prior)][1]


def sharing(groups: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The groups that move, by the `GaussianPrior` that they share."""
    found: dict[int, list[dict[str, Any]]] = {}
    for group in groups:
        if isinstance(group["prior"], GaussianPrior) and parameters.moving(group):
            found.setdefault(id(group["prior"]), []).append(group)
    if any(are_chains(group["params"]) for each in found.values() for group in each):
        raise ValueError(
            "One precision would tie all chains together: with gibbs() run chains one "
            "after the other, each with its own sampler."
        )
    return list(found.values())
