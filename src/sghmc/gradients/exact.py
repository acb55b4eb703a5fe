"""Gradients over all data: exact, or with noise of a known law added.

Gradients of a potential that makes its own random numbers: a key for each of them.
"""

import jax
import jax.numpy as jnp

from sghmc.core import matrices, pencils, random, tree
from sghmc.gradients import Gradient, GradientEstimator, Oracle
from sghmc.posterior.target import Potential
from sghmc.types import Evaluation, PyTree


class FullBatch(Gradient):
    """The exact gradient, over all data; of a stochastic `Potential`, with a fresh key each time.

    >>> import sghmc
    >>> sghmc.FullBatch()
    FullBatch()
    """

    def prepare(self, target, position):
        return KeyedEstimator() if target.is_stochastic else _ExactEstimator()


class _ExactEstimator(GradientEstimator):
    def oracle(self, target, noise, anchor=()):
        return Oracle(
            lambda i, position: target.evaluate(position), target.potential, True, target.change
        )


class NoisyGradient(Gradient):
    """The exact gradient plus N(0, V): gradient noise with a known law.

    `variance` is V: a number, a pytree like the parameters (a diagonal) or a dense matrix.

    >>> import sghmc
    >>> sghmc.NoisyGradient(4.0)
    NoisyGradient(variance=4.0)
    """

    variance: PyTree

    def __check_init__(self):
        matrices.check(self.variance, "variance")

    def prepare(self, target, position):
        variance = matrices.parse(self.variance, position, "variance", definite=False)
        nothing = matrices.scaled(variance, 0.0)
        root = pencils.pencil(variance, nothing, tree.sizes(position), "variance")
        return _NoisyEstimator(matrices.finish(root, tree.float_type(position)))


class _NoisyEstimator(GradientEstimator):
    root: pencils.Pencil

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.normals_like(key, first_step, num_steps, like, copies=num_gradients)

    def oracle(self, target, noise, anchor=()):
        def evaluate(i, position):
            potential, grad = target.evaluate(position)
            error = self.root.sqrt(1, 0, random.copy_of(noise, i, position))
            return Evaluation(potential, tree.add_scaled(grad, 1, error))

        return Oracle(evaluate, target.potential, False, target.change)


# Gradients of a potential that makes its own random numbers: a key for each of them.

_NUM_REPEATS = 16
"""Keys from which the noise is estimated at a time: it averages over estimates, too."""

_APART = 0x7FFFFFFF
"""What is folded into a step's key for them: no number that a user's function would take."""


class KeyedEstimator(GradientEstimator):
    """Draws two words for each gradient of each step: the key of U(params, key)."""

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.bits(key, first_step, num_steps, 2 * num_gradients)

    def oracle(self, target, noise, anchor=()):
        assert isinstance(target, Potential)

        def evaluate(i, position):
            return Evaluation(*jax.value_and_grad(target.estimate)(position, _key(noise, i)))

        return Oracle(evaluate, target.potential, False, target.change)

    def examples(self, target, noise):
        """Keys of their own: neither the step's, nor those that U may split off it."""
        return jax.random.split(jax.random.fold_in(_key(noise, 0), _APART), _NUM_REPEATS)

    def example_gradients(self, target, position, examples, anchor):
        assert isinstance(target, Potential)
        return jax.vmap(jax.grad(target.estimate), (None, 0))(position, examples)

    @property
    def noise_scale(self):
        """One key's gradient is what a step takes."""
        return 1.0


def _key(words: PyTree, i) -> jax.Array:
    pair = jax.lax.dynamic_slice(words, (2 * jnp.asarray(i),), (2,))
    return jax.random.wrap_key_data(pair, impl="threefry2x32")
