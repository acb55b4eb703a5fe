"""Scores of predicted probabilities, by hand on a few rows."""

import jax.numpy as jnp
import numpy as np

from sghmc.results.scores import class_scores

PROBABILITIES = jnp.array([[0.9, 0.1], [0.88, 0.12], [0.3, 0.7], [0.35, 0.65], [0.5, 0.5]])
LABELS = jnp.array([0, 1, 1, 1, 1])


def test_scores_of_five_rows():
    """Bins of a tenth: confidences 0.9 and 0.88 apart, 0.7, 0.65, and 0.5, of which the first."""
    scores = class_scores(PROBABILITIES, LABELS, num_bins=2)
    chosen = np.array([0.9, 0.12, 0.7, 0.65, 0.5])
    np.testing.assert_allclose(scores.error, 2 / 5, rtol=1e-6)
    np.testing.assert_allclose(scores.nll, -np.log(chosen).mean(), rtol=1e-6)
    np.testing.assert_allclose(scores.brier, (2 * (1 - chosen) ** 2).mean(), rtol=1e-6)
    confidence, is_right = np.array([0.9, 0.88, 0.7, 0.65, 0.5]), np.array([1, 0, 1, 1, 0])
    np.testing.assert_allclose(scores.ece, abs((is_right - confidence).sum()) / 5, rtol=1e-5)


def test_gaps_of_one_bin_cancel_and_of_two_do_not():
    one, many = (class_scores(PROBABILITIES[:3], LABELS[:3], k).ece for k in (2, 15))
    np.testing.assert_allclose(one, abs(2 - 0.9 - 0.88 - 0.7) / 3, rtol=1e-5)
    np.testing.assert_allclose(many, (abs(1 - 0.9 - 0.88) + 0.3) / 3, rtol=1e-5)
