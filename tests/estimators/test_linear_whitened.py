"""Posteriors of linear models around their mode: densities and conditionals by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators import linear_posterior
from sghmc.estimators.linear_posterior import LinearMode
from sghmc.estimators.weighted_rows import WeightedRows

RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(5), RNG.normal(size=(5, 2))])
Y = RNG.normal(size=5)
WEIGHT = np.array([0.5, 2.0, 1.5, 3.0, 0.7])
FACTOR = np.array([[1.4, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.5, 0.2, 1.9]])
MODE = LinearMode(
    np.array([0.4, -1.2, 0.7]), FACTOR @ FACTOR.T, np.array([0.0, 1.0, 1.0]), 2.5, 0.3, 1.7
)
Z = np.array([0.6, -0.9, 1.3], np.float32)
HYPER = {"noise": jnp.float32(1.6), "precision": jnp.float32(0.35)}
BETA = MODE.center + np.linalg.inv(FACTOR).T @ Z


@pytest.fixture
def drawn(monkeypatch):
    """Arguments of every precision that is drawn, after its key."""
    seen = []

    def draw_precision(key, *arguments):
        seen.append([float(each) for each in arguments])
        return jnp.float32(len(seen))

    monkeypatch.setattr(linear_posterior, "draw_precision", draw_precision)
    return seen


def test_whitened_directions_have_the_curvatures_covariance():
    factor = linear_posterior.whitening(MODE)
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(MODE.curvature))
    np.testing.assert_allclose(linear_posterior.around(MODE)(jnp.asarray(Z)), BETA, rtol=1e-5)


def log_prior_by_hand(beta: np.ndarray, precision: float) -> float:
    weights, intercepts = beta[MODE.is_weight > 0], beta[MODE.is_weight == 0]
    log = 0.5 * len(weights) * np.log(precision) - 0.5 * precision * weights @ weights
    return log - 0.5 * 0.01 * intercepts @ intercepts


def test_weights_have_the_precisions_prior_and_intercepts_one_of_their_own(drawn):
    coefficients = linear_posterior.around(MODE)
    found = coefficients.log_prior(jnp.asarray(Z), HYPER)
    assert float(found) == pytest.approx(log_prior_by_hand(BETA, 0.35), rel=1e-5)
    coefficients.draw_precision(jax.random.key(0), jnp.asarray(Z))
    assert drawn[0] == pytest.approx([1.0, 0.3, 2, BETA[1] ** 2 + BETA[2] ** 2], rel=1e-5)


def test_the_linear_likelihood_from_sums_is_that_of_the_rows(drawn):
    weighted = X * WEIGHT[:, None]
    sums = {
        "count": WEIGHT.sum(),
        "gram": weighted.T @ X,
        "moment": weighted.T @ Y,
        "square": np.asarray(WEIGHT @ Y**2),
    }
    posterior, gibbs = linear_posterior.linear_posterior(sums, MODE)
    example = jax.tree.map(lambda leaf: leaf[0], posterior.data)
    squares = WEIGHT @ (Y - X @ BETA) ** 2
    log = 0.5 * WEIGHT.sum() * np.log(1.6) - 0.5 * 1.6 * squares
    found = posterior.log_likelihood(jnp.asarray(Z), example, HYPER)
    assert float(found) == pytest.approx(log, rel=1e-5)
    prior = posterior.log_prior(jnp.asarray(Z), HYPER)
    assert float(prior) == pytest.approx(log_prior_by_hand(BETA, 0.35), rel=1e-5)
    assert {name: float(value) for name, value in posterior.hyper.items()} == pytest.approx(
        {"noise": 1.7, "precision": 2.5}
    )
    assert gibbs.every == 5
    new = gibbs.update(jax.random.key(0), jnp.asarray(Z), posterior)
    # Gamma(1, 0.1) for the noise, of as many rows as their weights say; Gamma(1, rate) for weights.
    assert drawn[0] == pytest.approx([1.0, 0.1, WEIGHT.sum(), squares], rel=1e-5)
    assert drawn[1] == pytest.approx([1.0, 0.3, 2, BETA[1] ** 2 + BETA[2] ** 2], rel=1e-5)
    assert {name: float(value) for name, value in new.items()} == {"noise": 1, "precision": 2}


def test_sums_of_a_perfect_fit_leave_no_negative_rest():
    sums = {"count": 3.0, "gram": np.eye(3), "moment": MODE.center, "square": np.asarray(0.0)}
    posterior, _ = linear_posterior.linear_posterior(sums, MODE)
    assert float(posterior.data["rest"][0]) == 0


@pytest.mark.parametrize("num_logits", [1, 3])
def test_the_logistic_likelihood_is_that_of_each_row(num_logits, drawn):
    size = 3 * num_logits
    center = RNG.normal(size=size)
    mode = LinearMode(center, 4 * np.eye(size), np.tile(MODE.is_weight, num_logits), 2.5, 0.3)
    labels = np.array([0, 1, 1, 0, 1]) if num_logits == 1 else np.array([0, 2, 1, 1, 0])
    rows = WeightedRows(X, labels.astype(float), WEIGHT)
    posterior, gibbs = linear_posterior.logistic_posterior(rows, 8, mode)
    z = RNG.normal(size=size).astype(np.float32)
    logits = X @ (center + 0.5 * z).reshape(num_logits, 3).T
    if num_logits == 1:
        logits = np.column_stack([0 * logits, logits])
    logs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    for i in range(5):
        example = {name: values[i] for name, values in posterior.data.items()}
        found = posterior.log_likelihood(jnp.asarray(z), example, HYPER)
        assert float(found) == pytest.approx(WEIGHT[i] * logs[i, labels[i]], rel=1e-4)
    assert {len(values) for values in posterior.data.values()} == {8}
    np.testing.assert_array_equal(posterior.data["weight"][5:], 0)
    assert float(posterior.hyper["precision"]) == 2.5
    assert gibbs.every == 5
    assert list(gibbs.update(jax.random.key(0), jnp.asarray(z), posterior)) == ["precision"]
    assert drawn[0][2] == 2 * num_logits


@pytest.mark.parametrize("goes_on", [False, True])
def test_draws_are_taken_in_whitened_directions_after_a_warm_up(goes_on, monkeypatch):
    seen = {}
    z = RNG.normal(size=(2, 13, 3)).astype(np.float32)
    precision = RNG.random((2, 13)).astype(np.float32)

    def sample(key, posterior, sampler, init, **options):
        seen.update(options, sampler=sampler, init=init)
        return types.SimpleNamespace(positions=z, hyper={"precision": precision})

    monkeypatch.setattr(linear_posterior, "sample", sample)
    last = RNG.normal(size=(2, 3)) if goes_on else None
    found = linear_posterior.draw(jax.random.key(0), None, None, MODE, last, 3, 2, False)  # pyright: ignore
    assert (seen["sampler"].step_size, seen["sampler"].friction) == (0.2, 1.0)
    assert (seen["num_samples"], seen["thinning"], seen["num_chains"]) == (13, 10, 2)
    assert seen["init_axis"] == 0
    factor = np.linalg.inv(FACTOR).T
    if last is not None:
        np.testing.assert_allclose(MODE.center + seen["init"] @ factor.T, last, rtol=1e-5)
    else:
        assert seen["init"].shape == (2, 3)
        assert len(np.unique(seen["init"])) == 6
    kept = MODE.center + z[:, 10:] @ factor.T
    np.testing.assert_allclose(found.coefficients, kept.reshape(6, 3), rtol=1e-6)
    np.testing.assert_allclose(found.hyper["precision"], precision[:, 10:].ravel())
    np.testing.assert_allclose(found.last, kept[:, -1], rtol=1e-6)
