"""Scores of predicted probabilities, by hand on a few rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sghmc.results.scores import class_scores, inside_intervals, interval_coverage

PROBABILITIES = jnp.array([[0.9, 0.1], [0.88, 0.12], [0.3, 0.7], [0.35, 0.65], [0.5, 0.5]])
LABELS = jnp.array([0, 1, 1, 1, 1])

# Compiled as a whole: a dozen operations one by one would take longer.
scored = jax.jit(class_scores, static_argnums=2)
scored_in_15_bins = jax.jit(class_scores)


def test_scores_of_five_rows():
    """Two bins: all confidences are in the upper one, of half and more."""
    scores = scored(PROBABILITIES, LABELS, 2)
    chosen = np.array([0.9, 0.12, 0.7, 0.65, 0.5])
    np.testing.assert_allclose(scores.error, 2 / 5, rtol=1e-6)
    np.testing.assert_allclose(scores.nll, -np.log(chosen).mean(), rtol=1e-6)
    np.testing.assert_allclose(scores.brier, (2 * (1 - chosen) ** 2).mean(), rtol=1e-6)
    confidence, is_right = np.array([0.9, 0.88, 0.7, 0.65, 0.5]), np.array([1, 0, 1, 1, 0])
    np.testing.assert_allclose(scores.ece, abs((is_right - confidence).sum()) / 5, rtol=1e-5)


def test_gaps_of_one_bin_cancel_and_of_two_do_not():
    """By default in 15 bins: 0.9 and 0.88 are in one, 0.7 is in another."""
    one = scored(PROBABILITIES[:3], LABELS[:3], 2).ece
    many = scored_in_15_bins(PROBABILITIES[:3], LABELS[:3]).ece
    np.testing.assert_allclose(one, abs(2 - 0.9 - 0.88 - 0.7) / 3, rtol=1e-5)
    np.testing.assert_allclose(many, (abs(1 - 0.9 - 0.88) + 0.3) / 3, rtol=1e-5)


def test_scores_of_three_classes_one_of_them_certain():
    """A confidence of 1 is in the last bin; a probability of 0 for what happened counts 10⁻¹²."""
    probabilities = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.55, 0.35]])
    labels = np.array([0, 2, 1, 1])
    scores = scored(jnp.asarray(probabilities, jnp.float32), jnp.asarray(labels), 3)
    np.testing.assert_allclose(scores.error, 0.5, rtol=1e-6)
    chosen = np.array([1e-12, 0.5, 0.3, 0.55])
    np.testing.assert_allclose(scores.nll, -np.log(chosen).mean(), rtol=1e-5)
    squares = (probabilities - np.eye(3)[labels]) ** 2
    np.testing.assert_allclose(scores.brier, squares.sum(1).mean(), rtol=1e-5)
    # Bins of a third: 1.0 alone; 0.5, 0.6 and 0.55 together, of which two are right.
    np.testing.assert_allclose(scores.ece, (1.0 + abs(2 - 1.65)) / 4, rtol=1e-5)


def test_intervals_are_central_and_normal():
    """Just inside and just outside the 50 %, 80 % and 95 % intervals, on either side."""
    reaches = stats.norm.ppf([0.75, 0.9, 0.975])
    stds = np.array([0.5, 2.0, 3.0])
    assert list(inside_intervals(stds, stds)) == ["50%", "80%", "95%"]
    for sign in (-1, 1):
        inside = inside_intervals(sign * stds * reaches * 0.999, stds)
        outside = inside_intervals(sign * stds * reaches * 1.001, stds)
        for i, level in enumerate(("50%", "80%", "95%")):
            assert inside[level][i]
            assert not outside[level][i]
    assert interval_coverage(np.array([0.5, -1.0, 1.5, -2.5]), np.ones(4)) == pytest.approx(
        {"50%": 0.25, "80%": 0.5, "95%": 0.75}
    )
