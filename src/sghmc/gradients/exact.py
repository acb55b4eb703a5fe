"""Gradients over all data: exact, or with noise of a known law added."""

from sghmc.core import matrices, pencils, random, tree
from sghmc.gradients.base import Gradient, GradientEstimator, Oracle
from sghmc.gradients.keyed import KeyedEstimator
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
    def oracle(self, target, noise, memory=()):
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

    def oracle(self, target, noise, memory=()):
        def evaluate(i, position):
            potential, grad = target.evaluate(position)
            error = self.root.sqrt(1, 0, random.copy_of(noise, i, position))
            return Evaluation(potential, tree.add_scaled(grad, 1, error))

        return Oracle(evaluate, target.potential, False, target.change)
