"""Modes of linear models: fixed points of the equations that define them."""

import numpy as np
import pytest

from sghmc.estimators import linear_posterior
from sghmc.estimators.weighted_rows import WeightedRows

RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(7), RNG.normal(size=(7, 2))])
WEIGHT = np.array([0.5, 2.0, 1.5, 3.0, 0.7, 1.2, 2.5])
IS_WEIGHT = np.array([0.0, 1.0, 1.0])
RATE = 0.3


def linear_sums(y: np.ndarray) -> dict[str, np.ndarray]:
    weighted = X * WEIGHT[:, None]
    return {
        "count": WEIGHT.sum(),
        "gram": weighted.T @ X,
        "moment": weighted.T @ y,
        "square": np.asarray(WEIGHT @ y**2),
    }


def typical_precision(center: np.ndarray, covariance: np.ndarray, is_weight, rate) -> float:
    """(1 + k/2) / (rate + E‖w‖²/2): the mean of the precision's Gamma conditional."""
    squares = sum(
        c**2 + v for c, v, each in zip(center, np.diag(covariance), is_weight, strict=True) if each
    )
    return (1 + sum(is_weight) / 2) / (rate + squares / 2)


def test_the_linear_mode_is_a_fixed_point_of_expectation_maximization():
    y = X @ [0.4, 1.1, -0.6] + 0.9 * RNG.normal(size=7)
    mode = linear_posterior.linear_mode(linear_sums(y), IS_WEIGHT, RATE)
    prior = np.diag([0.01, mode.precision, mode.precision])
    gram = (X * WEIGHT[:, None]).T @ X
    np.testing.assert_allclose(mode.curvature, mode.noise * gram + prior)
    np.testing.assert_allclose(
        mode.curvature @ mode.center, mode.noise * X.T @ (WEIGHT * y), rtol=1e-9
    )
    covariance = np.linalg.inv(mode.curvature)
    errors = WEIGHT @ (y - X @ mode.center) ** 2 + np.trace(gram @ covariance)
    noise = (1 + WEIGHT.sum() / 2) / (0.1 + errors / 2)
    # The rounds end when both precisions change by less than a thousandth.
    assert mode.noise == pytest.approx(noise, rel=1e-3)
    wanted = typical_precision(mode.center, covariance, IS_WEIGHT, RATE)
    assert mode.precision == pytest.approx(wanted, rel=1e-3)
    assert mode.rate == RATE
    np.testing.assert_array_equal(mode.is_weight, IS_WEIGHT)


def test_rounding_never_makes_squared_errors_negative():
    """Sums of a perfect fit, whose squares rounding has made too small."""
    sums = linear_sums(np.zeros(7)) | {"square": np.asarray(-1e6)}
    mode = linear_posterior.linear_mode(sums, IS_WEIGHT, RATE)
    covariance = np.linalg.inv(mode.curvature)
    wanted = (1 + WEIGHT.sum() / 2) / (0.1 + np.trace(sums["gram"] @ covariance) / 2)
    assert mode.noise == pytest.approx(wanted, rel=2e-3)


def logistic(num_logits: int) -> linear_posterior._Logistic:
    y = np.array([0, 1, 1, 0, 1, 0, 1]) if num_logits == 1 else np.array([0, 2, 1, 1, 0, 2, 2])
    return linear_posterior._Logistic(WeightedRows(X, y.astype(float), WEIGHT), num_logits)


def logs_by_hand(target: linear_posterior._Logistic, beta: np.ndarray) -> np.ndarray:
    """log P(class | x) of all classes: (row, class)."""
    logits = np.einsum("ki,ri->rk", beta.reshape(target.num_logits, 3), X)
    if target.num_logits == 1:
        logits = np.column_stack([np.zeros(7), logits])
    return logits - np.logaddexp.reduce(logits, axis=1)[:, None]


@pytest.mark.parametrize("num_logits", [1, 3])
def test_the_logistic_likelihood_and_its_derivatives(num_logits):
    target = logistic(num_logits)
    beta = RNG.normal(size=3 * num_logits)
    logs = logs_by_hand(target, beta)
    p, chosen = target.probabilities(beta)
    np.testing.assert_allclose(p, np.exp(logs)[:, -num_logits:])
    wanted = logs[np.arange(7), target.rows.y.astype(int)]
    np.testing.assert_allclose(chosen, wanted)
    assert target.potential(beta) == pytest.approx(-WEIGHT @ wanted)
    step = 1e-5 * np.eye(len(beta))
    slope = [(target.potential(beta + e) - target.potential(beta - e)) / 2e-5 for e in step]
    np.testing.assert_allclose(target.slope(beta), slope, rtol=1e-6, atol=1e-8)
    bend = [(target.slope(beta + e) - target.slope(beta - e)) / 2e-5 for e in step]
    np.testing.assert_allclose(target.curvature(beta), bend, rtol=1e-6, atol=1e-8)


def test_huge_logits_do_not_overflow():
    target = logistic(3)
    p, chosen = target.probabilities(1e4 * np.arange(9.0))
    assert np.all(np.isfinite(p))
    assert np.all(np.isfinite(chosen))


@pytest.mark.parametrize("num_logits", [1, 3])
def test_the_logistic_mode_has_no_slope_and_a_typical_precision(num_logits):
    target = logistic(num_logits)
    is_weight = np.tile(IS_WEIGHT, num_logits)
    mode = linear_posterior.logistic_mode(target.rows, num_logits, is_weight, RATE)
    prior = np.where(is_weight > 0, mode.precision, 0.01)
    slope = target.slope(mode.center) + prior * mode.center
    assert slope @ np.linalg.solve(mode.curvature, slope) < 1e-8
    np.testing.assert_allclose(
        mode.curvature, target.curvature(mode.center) + np.diag(prior), rtol=1e-3, atol=1e-3
    )
    wanted = typical_precision(mode.center, np.linalg.inv(mode.curvature), is_weight, RATE)
    assert mode.precision == pytest.approx(wanted, rel=2e-3)
    assert (mode.rate, mode.noise) == (RATE, 1.0)


def test_newton_steps_that_overshoot_are_halved():
    """Far out the likelihood is straight, and full steps would go back and forth for ever."""
    target, prior = logistic(1), np.full(3, 1e-3)
    found, _ = linear_posterior._newton(target, np.array([20.0, -15.0, 25.0]), prior)
    near, _ = linear_posterior._newton(target, np.zeros(3), prior)
    np.testing.assert_allclose(found, near, rtol=1e-4)
    assert np.abs(target.slope(found) + prior * found).max() < 1e-5


def test_a_mode_that_is_not_reached_is_an_error(monkeypatch):
    monkeypatch.setattr(linear_posterior, "_NUM_NEWTON_STEPS", 2)
    with pytest.raises(
        ValueError, match=r"still [\d.e+]+ standard deviations off .* after 2 steps"
    ):
        linear_posterior._newton(logistic(1), np.zeros(3), np.full(3, 1e-3))
