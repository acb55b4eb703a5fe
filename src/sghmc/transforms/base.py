"""What a transform is."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from sghmc.display import notebook


class Transform(eqx.Module):
    """A one-to-one map from real numbers x to constrained values y.

    Arrays may have any leading axes: draws are mapped at once.
    """

    def _repr_html_(self) -> str:
        return notebook.settings(self)

    @abc.abstractmethod
    def forward(self, x: jax.Array) -> jax.Array:
        """The constrained value."""

    @abc.abstractmethod
    def inverse(self, y: ArrayLike) -> jax.Array:
        """The real numbers of a value; an error where the value is outside."""

    @abc.abstractmethod
    def log_jacobian(self, x: jax.Array) -> jax.Array:
        """log |∂y/∂x|, summed over all of x; of the entries of y that are free."""


def checked(y: ArrayLike, is_inside: Callable[[np.ndarray], Any], words: str) -> jax.Array:
    """The value as an array; an error that says `words` where it is not inside."""
    array = jnp.asarray(y, jnp.result_type(float))
    if not isinstance(array, Tracer) and not np.all(is_inside(np.asarray(array))):
        raise ValueError(f"The value must be {words}, but is {y}.")
    return array
