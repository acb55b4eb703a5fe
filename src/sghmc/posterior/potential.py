"""A target given by its potential."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.core.checking import check_choice
from sghmc.posterior.target import Target
from sghmc.types import Change, Evaluation, PyTree


class Potential(Target):
    """A target given by U(params) = −log p(params), up to a constant.

    >>> import jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> float(target.potential(jnp.ones(3)))
    1.5

    With `stochastic=True` it is a function U(params, key) that estimates the potential with random
    numbers of its own: a particle filter, dropout, random features. Every gradient that a sampler
    asks for has a fresh key, a function of the run's key, the chain and the step, and is the
    gradient of U in the params with that key held. Draws have the law of the mean of these
    gradients, with their covariance as gradient noise: that of `NoisyGradient`, where they are
    normal. (An estimate whose exp(−U) is unbiased, a particle filter's, has a mean gradient that is
    off by half the gradient of its variance: take enough particles.) `EmpiricalFisher` estimates
    the noise from repeated keys. What needs exact values of U is refused: accept steps, swaps of
    replicas, `tune` and "auto", `kernel_stein_discrepancy`.

    >>> def potential(theta, key):
    ...     kept = jax.random.bernoulli(key, 0.5, theta.shape)
    ...     return jnp.sum(jnp.where(kept, theta**2, 0.0))
    >>> target = sghmc.Potential(potential, stochastic=True)
    >>> float(target.estimate(jnp.ones(3), jax.random.key(0)))
    1.0
    """

    function: Callable[..., jax.Array]
    stochastic: bool = eqx.field(default=False, static=True)

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(f"Potential needs a function U(params), not {self.function!r}.")
        check_choice(self.stochastic, "stochastic", (True, False))

    @property
    def is_stochastic(self) -> bool:
        return self.stochastic

    def estimate(self, params: PyTree, key: jax.Array) -> jax.Array:
        """U(params, key) of a stochastic potential."""
        return self.function(params, key)

    def potential(self, params: PyTree) -> jax.Array:
        if self.stochastic:
            raise TypeError(
                "This Potential is stochastic, U(params, key): it has no exact values, which an "
                "accept step, a swap of replicas, the mode search of tune, a Stein discrepancy and "
                "NoisyGradient need. Take SGHMC(…, gradient_noise=EmpiricalFisher()), or HMC(…, "
                "metropolis=False), and no gradient=; or a Potential that is not stochastic."
            )
        return self.function(params)

    def evaluate(self, params: PyTree) -> Evaluation:
        return Evaluation(*jax.value_and_grad(self.potential)(params))

    def gradient(self, params: PyTree) -> PyTree:
        return jax.grad(self.potential)(params)

    def change(self, old: PyTree, new: PyTree) -> Change:
        """U(new) − U(old), without terms."""
        return Change(self.potential(new) - self.potential(old), lambda rows: jnp.zeros(0), 0)
