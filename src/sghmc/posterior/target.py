"""The interface of targets, U(θ) and ∇U(θ), and `Potential`, a target given by a function."""

import abc
from collections.abc import Callable
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc import display
from sghmc.core.checks import check_choice
from sghmc.posterior.sources import Source
from sghmc.types import Change, Evaluation, PyTree


class Target(eqx.Module):
    """A potential U(θ) = −log p(θ), up to a constant, whose distribution is sampled."""

    def _repr_html_(self) -> str:
        return display.notebook_settings(self)

    @abc.abstractmethod
    def potential(self, params: PyTree) -> jax.Array:
        """Return the exact U(θ)."""

    @abc.abstractmethod
    def evaluate(self, params: PyTree) -> Evaluation:
        """Return the exact U and ∇U."""

    @abc.abstractmethod
    def change(self, old: PyTree, new: PyTree) -> Change:
        """Return U(new) − U(old) as a sum whose terms can be evaluated for single rows."""

    def gradient(self, params: PyTree) -> PyTree:
        """Return the exact ∇U(θ)."""
        return self.evaluate(params).grad

    def constrained(self, draws: PyTree) -> PyTree:
        """Return draws of the parameters on their own scale, where a `Space` maps them to it."""
        owner = getattr(self, "log_prior", getattr(self, "function", None))
        space = getattr(owner, "space", None)
        return draws if space is None else space.constrain(draws)

    @property
    def is_stochastic(self) -> bool:
        """Whether U can only be estimated, each time with a random key."""
        return False

    @property
    def source(self) -> Source | None:
        """The source of the data; None for arrays."""
        return None

    @property
    def hyper(self) -> PyTree:
        """The hyperparameters, or None."""
        return None

    def with_hyper(self, hyper: PyTree) -> Self:
        """Return this target with other hyperparameters, if it has any."""
        return self


class Potential(Target):
    """A target given by U(params) = −log p(params), up to a constant.

    >>> import jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> float(target.potential(jnp.ones(3)))
    1.5

    With `stochastic=True` the function is U(params, key), which estimates the potential with its
    own random numbers: a particle filter, dropout, random features. Every gradient evaluation has a
    fresh key, a function of the run's key, the chain and the step, and is the gradient of U in the
    params with that key fixed. The chain then samples the law of the mean of these gradients, with
    their covariance as gradient noise, as `NoisyGradient` does if they are normal. (If exp(−U) is
    an unbiased estimate, as a particle filter's is, the mean gradient is off by half the gradient
    of its variance: take enough particles.) `EmpiricalFisher` estimates the noise from repeated
    keys. Methods that need exact values of U raise an error: accept steps, swaps of replicas,
    `tune` and "auto", `kernel_stein_discrepancy`.

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
        """Return U(params, key) of a stochastic potential."""
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
        """Return U(new) − U(old), without terms for rows."""
        return Change(self.potential(new) - self.potential(old), lambda rows: jnp.zeros(0), 0)
