"""Exact updates of hyperparameters between sampler steps."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np

from sghmc.posterior.posterior import Posterior
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

    update: Callable[[jax.Array, PyTree, Posterior], PyTree]
    every: int = 1
    start: int = 0

    def __check_init__(self):
        if not callable(self.update):
            raise TypeError(
                f"Gibbs needs a function update(key, params, posterior), not {self.update!r}."
            )
        if not isinstance(self.every, int | np.integer) or self.every < 1:
            raise ValueError(f"every must be a whole number from 1, but is {self.every!r}.")
        if not isinstance(self.start, int | np.integer) or self.start < 0:
            raise ValueError(f"start must be a whole number from 0, but is {self.start!r}.")
