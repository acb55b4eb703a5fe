"""A regression whose answer is known: by other ways to the same numbers."""

import numpy as np
import pytest
from scipy import stats

from sghmc.paper.demo import PRIOR_SD, Gaussian, make_regression

DATA = make_regression(5_000, 4, 0.8, seed=3)


def test_the_answer_is_that_of_learning_row_by_row():
    """Rank-one updates of a Gaussian (the Kalman filter): other arithmetic, the same posterior."""
    few = DATA._replace(x=DATA.x[:200], y=DATA.y[:200])
    mean, covariance = np.zeros(4), PRIOR_SD**2 * np.eye(4)
    for row, y in zip(few.x.astype(float), few.y.astype(float), strict=True):
        gain = covariance @ row / (1 + row @ covariance @ row)
        mean = mean + gain * (y - row @ mean)
        covariance = covariance - np.outer(gain, row @ covariance)
    answer = few.answer()
    np.testing.assert_allclose(answer.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(answer.covariance, covariance, rtol=1e-5, atol=1e-9)


def test_the_answer_is_the_mode_and_the_curvature_of_the_posterior():
    posterior, answer = DATA.posterior(), DATA.answer()
    center, away = answer.mean.astype(np.float32), 3 * answer.sd.astype(np.float32)
    gradient = np.asarray(posterior.gradient(center + away), float)
    expected = np.linalg.solve(answer.covariance, away.astype(float))
    np.testing.assert_allclose(gradient, expected, rtol=1e-2)
    rows = DATA.x.astype(float)
    likelihood = stats.norm.logpdf(DATA.y, rows @ answer.mean).sum()
    prior = stats.norm.logpdf(answer.mean, scale=PRIOR_SD).sum()
    constant = 5_000 * np.log(2 * np.pi) / 2 + 4 * np.log(np.sqrt(2 * np.pi) * PRIOR_SD)
    potential = float(posterior.potential(center))
    assert -potential == pytest.approx(likelihood + prior + constant, rel=1e-4)


def test_chunks_are_all_rows(monkeypatch):
    from sghmc.paper import demo

    whole = DATA.answer()
    monkeypatch.setattr(demo, "_CHUNK_ROWS", 999)
    np.testing.assert_allclose(DATA.answer().mean, whole.mean, rtol=1e-9)
    np.testing.assert_allclose(DATA.answer().covariance, whole.covariance, rtol=1e-9)


def test_columns_are_correlated_with_their_neighbours_in_units_of_their_own():
    """5,000 rows give a correlation to 0.005: within 0.03."""
    data = make_regression(5_000, 12, 0.8, seed=0)
    assert np.all(data.x[:, 0] == 1)
    correlation = np.corrcoef(data.x[:, 1:].T)
    np.testing.assert_allclose(np.diag(correlation, 1), 0.8, atol=0.03)
    np.testing.assert_allclose(np.diag(correlation, 2), 0.64, atol=0.06)
    spread = data.x[:, 1:].std(0)
    assert spread.max() / spread.min() > 5
    residual = data.y - data.x @ data.answer().mean
    assert residual.std() == pytest.approx(1, abs=0.05)
    again = make_regression(5_000, 12, 0.8, seed=0)
    np.testing.assert_array_equal(again.y, data.y)
    assert not np.array_equal(make_regression(5_000, 12, 0.8, seed=1).y, data.y)


def test_standard_deviations_and_correlations():
    law = Gaussian(np.zeros(2), np.array([[4.0, -1.0], [-1.0, 9.0]]))
    np.testing.assert_allclose(law.sd, [2, 3])
    np.testing.assert_allclose(law.correlation, [[1, -1 / 6], [-1 / 6, 1]])
