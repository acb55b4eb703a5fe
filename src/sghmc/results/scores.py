"""How good predictions are: scores that can be computed inside the loop."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_SMALLEST = 1e-12
"""What a smaller probability of the label is taken for, so that one row does not decide."""


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
