"""Minibatch gradients with a control variate, whose noise near a center does not grow with N."""

import warnings
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.checks import check_count
from sghmc.gradients import (
    BatchEstimator,
    Gradient,
    GradientEstimator,
    Minibatch,
    Oracle,
    with_data,
)
from sghmc.posterior.mode import find_mode
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.types import Evaluation, PyTree


class ControlVariate(Gradient):
    """The gradient over random rows, corrected by the gradient of the same rows at a center θ̂.

        ∇Ũ(θ) = −∇log p(θ) − Σᵢ∇ℓᵢ(θ̂) − (N/n) Σ_batch [∇ℓᵢ(θ) − ∇ℓᵢ(θ̂)],  ℓᵢ = log p(xᵢ | θ)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `batch_size` | n | rows of a batch |
    | `center` | θ̂ | a pytree like the parameters; None: the mode, searched from a chain's start |
    | `replacement` | | as in `Minibatch` |
    | `renew_every` | | after so many steps the center moves to where the chain is (SVRG) |
    | `shared` | | as in `Minibatch`; a fixed center correlates the chains hardly at all |

    Unbiased for any center. A plain minibatch has gradient noise N/n in units where the posterior
    has standard deviation 1; here the differences shrink with the posterior, and the noise is about
    d/n for every N, times 1 + c² for a center c standard deviations off. The sum over all data is
    computed once, and again after each Gibbs update, since it depends on the hyperparameters.

    `renew_every` is for chains that move far from any center, above all those of networks; each
    renewal is a pass over the data.

    Baker, Fearnhead, Fox & Nemeth, 2019; Johnson & Zhang, 2013.

    >>> import sghmc
    >>> sghmc.ControlVariate(500)
    ControlVariate(batch_size=500)
    """

    batch_size: int
    center: PyTree = None
    replacement: bool | Literal["epochs", "palindrome"] = True
    renew_every: int | None = None
    shared: bool = False

    def __check_init__(self):
        _ = self._batches  # checks the others
        check_count(self.renew_every, "renew_every", or_none="")

    @property
    def _batches(self) -> Minibatch:
        return Minibatch(self.batch_size, self.replacement, self.shared)

    @property
    def batch_rows(self) -> int:
        return self._batches.batch_rows

    @property
    def is_independent(self) -> bool:
        return self._batches.is_independent

    def prepare(self, target, position):
        batches = self._batches.prepare(with_data(target, self), position)
        return _ControlEstimator(batches, self._center(target, position), self.renew_every)

    def _center(self, target: Target, position: PyTree) -> PyTree:
        if self.center is None:
            mode = find_mode(target, position)
            if mode.hessian is not None and not mode.is_found:
                warnings.warn(
                    "No mode was found for the center of the control variate: gradients are "
                    "unbiased around any center, but noisier the farther it is away. Give center=…",
                    stacklevel=2,
                )
            return mode.position
        shapes = [jax.tree.map(jnp.shape, each) for each in (self.center, position)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"center must be a pytree like the parameters, {shapes[1]}, but is {shapes[0]}."
            )
        center = jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), self.center, position)
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(center)):
            raise ValueError("center is not finite.")
        return center


class Anchor(NamedTuple):
    """A center, and the log-likelihood of all data there with its gradient."""

    center: PyTree
    total: Evaluation


class _ControlEstimator(GradientEstimator):
    batches: BatchEstimator
    center: PyTree
    every: int | None = eqx.field(static=True)

    @property
    def renew_every(self):
        return self.every

    @property
    def is_shared(self):
        return self.batches.shared

    @property
    def takes_rows(self):
        return True

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return self.batches.draw(key, first_step, num_steps, num_gradients, like)

    def init_anchor(self, target):
        return _anchor(target, self.center)

    def renew_anchor(self, target, anchor):
        return _anchor(target, anchor.center)

    def move_anchor(self, target, anchor, position):
        return _anchor(target, position)

    def oracle(self, target, noise, anchor=()):
        assert isinstance(target, AbstractPosterior)
        assert isinstance(anchor, Anchor)
        scale = target.num_examples / self.batches.batch_size

        def evaluate(i, position):
            batch = target.batch(noise, i, self.batches.batch_size)
            both = jax.tree.map(lambda *leaves: jnp.stack(leaves), position, anchor.center)
            # One pass for both points: their rows, and often their matrix products, are shared.
            values, grads = jax.vmap(
                jax.value_and_grad(lambda params: target.log_likelihood_sum(params, batch))
            )(both)
            change = jax.tree.map(lambda leaf: scale * (leaf[0] - leaf[1]), (values, grads))
            prior = jax.value_and_grad(target.log_prior_at)(position)
            parts = jax.tree.map(
                lambda *terms: -sum(terms), Evaluation(*change), anchor.total, Evaluation(*prior)
            )
            return parts

        return Oracle(evaluate, target.potential, False, target.change)

    def examples(self, target, noise):
        return self.batches.examples(target, noise)

    def example_gradients(self, target, position, examples, anchor):
        here, there = (
            self.batches.example_gradients(target, place, examples, ())
            for place in (position, anchor.center)
        )
        return jax.tree.map(jnp.subtract, here, there)

    @property
    def noise_scale(self):
        return self.batches.noise_scale


def _anchor(target: Target, center: PyTree) -> Anchor:
    assert isinstance(target, AbstractPosterior)
    return Anchor(center, target.log_likelihood_total(center))
