"""How good predictions are: of classes, inside the loop, and of predictive intervals."""

from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
