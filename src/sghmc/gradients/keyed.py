"""Gradients of a potential that makes its own random numbers: a key for each of them."""

import jax
import jax.numpy as jnp

from sghmc.core import random
from sghmc.gradients.base import GradientEstimator, Oracle
from sghmc.posterior.potential import Potential
from sghmc.types import Evaluation, PyTree

_NUM_REPEATS = 16
"""Keys from which the noise is estimated at a time: it averages over estimates, too."""

_APART = 0x7FFFFFFF
"""What is folded into a step's key for them: no number that a user's function would take."""


class KeyedEstimator(GradientEstimator):
    """Draws two words for each gradient of each step: the key of U(params, key)."""

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.bits(key, first_step, num_steps, 2 * num_gradients)

    def oracle(self, target, noise, memory=()):
        assert isinstance(target, Potential)

        def evaluate(i, position):
            return Evaluation(*jax.value_and_grad(target.estimate)(position, _key(noise, i)))

        return Oracle(evaluate, target.potential, False, target.change)

    def examples(self, target, noise):
        """Keys of their own: neither the step's, nor those that U may split off it."""
        return jax.random.split(jax.random.fold_in(_key(noise, 0), _APART), _NUM_REPEATS)

    def example_gradients(self, target, position, examples, memory):
        assert isinstance(target, Potential)
        return jax.vmap(jax.grad(target.estimate), (None, 0))(position, examples)

    @property
    def noise_scale(self):
        """One key's gradient is what a step takes."""
        return 1.0


def _key(words: PyTree, i) -> jax.Array:
    pair = jax.lax.dynamic_slice(words, (2 * jnp.asarray(i),), (2,))
    return jax.random.wrap_key_data(pair, impl="threefry2x32")
