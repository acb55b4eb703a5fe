"""The noise of a gradient estimator, from the gradients of single examples."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from sghmc import tree
from sghmc.gradients import Estimator
from sghmc.posterior import Posterior, Target
from sghmc.types import PyTree


def scatter(terms: PyTree, *, diagonal: bool) -> jax.Array:
    """The sample covariance (divisor n − 1) of the rows of `terms`, over the raveled parameters.

    `diagonal` gives the variances alone: O(nd) instead of O(nd²).
    """
    rows = jax.vmap(tree.ravel)(terms)
    centered = rows - jnp.mean(rows, 0, keepdims=True)
    count = len(rows) - 1
    if diagonal:
        return jnp.sum(centered**2, 0) / count
    return centered.T @ centered / count


def gradient_noise(
    estimator: Estimator,
    target: Target,
    memory: PyTree,
    position: PyTree,
    examples: PyTree,
    *,
    diagonal: bool,
) -> jax.Array:
    """V̂, the covariance of the estimator's error at `position`, from some examples: unbiased.

    The examples need not be a batch: any number of independent rows will do.
    """
    terms = estimator.example_gradients(target, position, examples, memory)
    return estimator.noise_scale * scatter(terms, diagonal=diagonal)


@eqx.filter_jit
def mean_gradient_noise(
    estimator: Estimator, target: Target, positions: PyTree, rows: jax.Array, *, diagonal: bool
) -> jax.Array:
    """V̂ averaged over positions with a leading axis, each with row numbers of its own."""
    assert isinstance(target, Posterior)
    memory = estimator.remember(target)

    def of_position(pair):
        position, indices = pair
        examples = target.rows(indices)
        return gradient_noise(estimator, target, memory, position, examples, diagonal=diagonal)

    return jnp.mean(lax.map(of_position, (positions, rows)), 0)
