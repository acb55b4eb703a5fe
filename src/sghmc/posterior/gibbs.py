"""Exact updates of hyperparameters between sampler steps."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from sghmc.core.checking import check_count
from sghmc.types import PyTree


class Gibbs(eqx.Module):
    """Draw the hyperparameters from their conditional after every `every`-th step from `start` on.

    `update(key, params, posterior)` returns new hyperparameters with the structure, shapes and
    dtypes of `posterior.hyper`; it runs inside the compiled loop, once a chain. For SGHMC the
    parameters it sees are those half a drift back, which keeps the bias at order ε²: at the end of
    a step position and momentum are correlated, and an update there would bias θ at order ε.

    >>> import sghmc
    >>> sghmc.Gibbs(lambda key, params, posterior: posterior.hyper, every=100).every
    100
    """

    update: Callable[[jax.Array, PyTree, Any], PyTree]
    every: int = 1
    start: int = 0

    def __check_init__(self):
        if not callable(self.update):
            raise TypeError(
                f"Gibbs needs a function update(key, params, posterior), not {self.update!r}."
            )
        check_count(self.every, "every")
        check_count(self.start, "start", 0)
