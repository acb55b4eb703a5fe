"""How good predictions are: of classes, inside the loop, and of predictive intervals.

The kernel Stein discrepancy: how far draws are from any target, by its gradient alone.
"""

from statistics import NormalDist
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree
from sghmc.posterior.target import Target
from sghmc.types import PyTree

_SMALLEST = 1e-12
"""A probability of 0 for what happened would make the log-likelihood infinite."""

_LEVELS = (0.5, 0.8, 0.95)


class ClassScores(NamedTuple):
    """Scores of predicted class probabilities; smaller is better for all of them."""

    error: Any
    nll: Any
    brier: Any
    ece: Any


def class_scores(probabilities: jax.Array, labels: jax.Array, num_bins: int = 15) -> ClassScores:
    """Error rate, negative log-likelihood, Brier score and expected calibration error.

    `probabilities` has a row for each label. The calibration error is the mean, over predictions,
    of |accuracy − confidence| of their confidence bin.
    """
    chosen = jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0]
    truth = jax.nn.one_hot(labels, probabilities.shape[1], dtype=probabilities.dtype)
    confidence = jnp.max(probabilities, axis=1)
    is_right = (jnp.argmax(probabilities, axis=1) == labels).astype(probabilities.dtype)
    bins = jnp.clip((confidence * num_bins).astype(jnp.int32), 0, num_bins - 1)
    gaps = jax.ops.segment_sum(is_right - confidence, bins, num_segments=num_bins)
    return ClassScores(
        error=1 - jnp.mean(is_right),
        nll=-jnp.mean(jnp.log(jnp.maximum(chosen, _SMALLEST))),
        brier=jnp.mean(jnp.sum((probabilities - truth) ** 2, axis=1)),
        ece=jnp.sum(jnp.abs(gaps)) / len(labels),
    )


def inside_intervals(errors: np.ndarray, stds: np.ndarray) -> dict[str, np.ndarray]:
    """Whether errors are inside central normal intervals, by the share that is promised."""
    distance = np.abs(errors) / stds
    reaches = {level: NormalDist().inv_cdf((1 + level) / 2) for level in _LEVELS}
    return {f"{level:.0%}": distance <= reach for level, reach in reaches.items()}


def interval_coverage(errors: np.ndarray, stds: np.ndarray) -> dict[str, float]:
    """The share of errors inside central normal intervals, by the share that is promised.

    >>> interval_coverage(np.array([0.5, -1.0, 1.5, -2.5]), np.ones(4))
    {'50%': 0.25, '80%': 0.5, '95%': 0.75}
    """
    return {level: float(np.mean(part)) for level, part in inside_intervals(errors, stds).items()}


# The kernel Stein discrepancy: how far draws are from any target, by its gradient alone.

_NUM_BOOTSTRAP = 1_000
"""Bootstrap draws: p-values have steps of 0.001."""


class Discrepancy(NamedTuple):
    """`value` is √KSD², near zero for draws of the target; `p_value` is of a test that they are."""

    value: float
    p_value: float


def kernel_stein_discrepancy(
    key: jax.Array, target: Target, positions: PyTree, *, num_draws: int = 500
) -> Discrepancy:
    """How far the draws `positions`, axes (chain, draw, …), are from the target.

        KSD² = mean over pairs of k_p(x, y),  k_p = ∇logp(x)·∇logp(y) k + ∇logp(x)·∇_y k
                                                    + ∇logp(y)·∇_x k + ∇_x·∇_y k

    with the inverse multiquadric kernel k = (1 + ‖x − y‖²/h)^{−½} in coordinates scaled by the
    draws' standard deviations, h their median squared distance. It needs no normalizing constant
    and no reference draws, but sees a missing mode far away hardly at all.

    `num_draws` draws, evenly spaced over all, are compared; each takes a gradient over all data.
    The p-value is by wild bootstrap and takes these as independent: thin autocorrelated draws.

    Gorham & Mackey, 2017.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> right = jax.random.normal(jax.random.key(0), (4, 100, 2))
    >>> sghmc.kernel_stein_discrepancy(jax.random.key(1), target, 2 * right).p_value < 0.01
    True
    """
    if not isinstance(target, Target):
        raise TypeError(f"The discrepancy needs a Posterior or a Potential, not {target!r}.")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    if not leaves or any(leaf.ndim < 2 for leaf in leaves):
        raise ValueError(
            "positions must be arrays with axes (chain, draw, …), such as samples.positions."
        )
    total = leaves[0].shape[0] * leaves[0].shape[1]
    if total < 2:
        raise ValueError(f"The discrepancy compares draws in pairs, but there are {total} draws.")
    chosen = np.linspace(0, total - 1, min(num_draws, total)).astype(int)
    points = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf).reshape(total, *leaf.shape[2:])[chosen]),
        positions,
    )
    kernel = np.asarray(_stein_kernel(target, points), np.float64)
    if not np.all(np.isfinite(kernel)):
        raise ValueError("The gradient of the potential is not finite at some draws.")
    signs = np.asarray(jax.random.rademacher(key, (_NUM_BOOTSTRAP, len(kernel)), np.float32))
    value = kernel.mean()
    chance = np.einsum("bi,ij,bj->b", signs, kernel, signs, optimize=True) / len(kernel) ** 2
    p_value = (1 + np.sum(chance >= value)) / (1 + _NUM_BOOTSTRAP)
    return Discrepancy(float(np.sqrt(max(value, 0.0))), float(p_value))


@eqx.filter_jit
def _stein_kernel(target, points):
    """k_p of all pairs of points."""
    scores = lax.map(lambda point: -tree.ravel(target.gradient(point)), points)
    rows = jax.vmap(tree.ravel)(points)
    scale = jnp.std(rows, 0) + jnp.finfo(rows.dtype).tiny
    x, score = rows / scale[None], scores * scale[None]
    away = x[:, None] - x[None]
    square = jnp.sum(away**2, -1)
    width = jnp.median(square)
    base = 1 + square / width
    slope = base**-1.5 / width
    along = jnp.einsum("id,ijd->ij", score, away)
    size = x.shape[1]
    return (
        (score @ score.T) * base**-0.5
        + (along + along.T) * slope
        + size * slope
        - 3 * square / width**2 * base**-2.5
    )
