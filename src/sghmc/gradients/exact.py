"""Gradients over all data: exact, with added noise of a known law, or of a stochastic potential."""

import jax
import jax.numpy as jnp

from sghmc.core import checks, matrices, random, tree
from sghmc.gradients import Gradient, GradientEstimator, Oracle
from sghmc.posterior.target import Potential
from sghmc.types import Evaluation, PyTree


class FullBatch(Gradient):
    """The exact gradient over all data; for a stochastic `Potential`, one with a fresh key.

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
        checks.check_matrix(self.variance, "variance")

    def prepare(self, target, position):
        variance = checks.parse_matrix(self.variance, position, "variance", definite=False)
        nothing = matrices.scaled(variance, 0.0)
        root = matrices.pencil(variance, nothing, tree.sizes(position), "variance")
        return _NoisyEstimator(matrices.finish(root, tree.float_type(position)))


class _NoisyEstimator(GradientEstimator):
    root: matrices.Pencil

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.normals_like(key, first_step, num_steps, like, copies=num_gradients)

    def oracle(self, target, noise, anchor=()):
        def evaluate(i, position):
            potential, grad = target.evaluate(position)
            error = self.root.sqrt(1, 0, random.copy_of(noise, i, position))
            return Evaluation(potential, tree.add_scaled(grad, 1, error))

        return Oracle(evaluate, target.potential, False, target.change)


# Gradients of a stochastic potential, each with a key of its own.

_NUM_NOISE_KEYS = 16
"""Number of keys for one estimate of the noise; estimates are averaged over the run, too."""

_NOISE_KEY_CONSTANT = 0x7FFFFFFF
"""Constant folded into the step's key to get the keys of the noise estimate; chosen so that user
code is unlikely to fold in the same number."""


class KeyedEstimator(GradientEstimator):
    """Draw two words for each gradient of each step, which are the key of U(params, key)."""

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.bits(key, first_step, num_steps, 2 * num_gradients)

    def oracle(self, target, noise, anchor=()):
        assert isinstance(target, Potential)

        def evaluate(i, position):
            return Evaluation(*jax.value_and_grad(target.estimate)(position, _key(noise, i)))

        return Oracle(evaluate, target.potential, False, target.change)

    def examples(self, target, noise):
        """Return keys other than the step's own and those that U may split off it."""
        apart = jax.random.fold_in(_key(noise, 0), _NOISE_KEY_CONSTANT)
        return jax.random.split(apart, _NUM_NOISE_KEYS)

    def example_gradients(self, target, position, examples, anchor):
        assert isinstance(target, Potential)
        return jax.vmap(jax.grad(target.estimate), (None, 0))(position, examples)

    @property
    def noise_scale(self):
        """The factor 1: a step's gradient is that of one key."""
        return 1.0


def _key(words: PyTree, i) -> jax.Array:
    pair = jax.lax.dynamic_slice(words, (2 * jnp.asarray(i),), (2,))
    return jax.random.wrap_key_data(pair, impl="threefry2x32")
