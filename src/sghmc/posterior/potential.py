"""A target given by its potential."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sghmc.posterior.target import Target
from sghmc.types import Change, Evaluation, PyTree


class Potential(Target):
    """A target given by U(params) = −log p(params), up to a constant.

    >>> import jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> float(target.potential(jnp.ones(3)))
    1.5
    """

    function: Callable[[PyTree], jax.Array]

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(f"Potential needs a function U(params), not {self.function!r}.")

    def potential(self, params: PyTree) -> jax.Array:
        return self.function(params)

    def evaluate(self, params: PyTree) -> Evaluation:
        return Evaluation(*jax.value_and_grad(self.potential)(params))

    def gradient(self, params: PyTree) -> PyTree:
        return jax.grad(self.potential)(params)

    def change(self, old: PyTree, new: PyTree) -> Change:
        """U(new) − U(old), without terms."""
        return Change(self.potential(new) - self.potential(old), lambda rows: jnp.zeros(0), 0)
