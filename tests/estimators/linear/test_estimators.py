"""Linear models against exact answers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from estimator_data import blobs, line, standardized
from sghmc.estimators import BayesianLinearRegression, BayesianLogisticRegression
from sghmc.estimators.rows import padded_size


def near(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray, bias: float = 0.01) -> None:
    """Means and sds of draws against the truth, within 4.5 standard errors and a bias of sds.

    A draw of ten steps is worth two thirds of an independent one. A dozen comparisons that are
    right fail once in ten thousand seeds.
    """
    size = len(draws) / 1.5
    assert np.max(np.abs(draws.mean(0) - mean) / sd) < 4.5 / np.sqrt(size)
    assert np.max(np.abs(draws.std(0) / sd - 1)) < 4.5 / np.sqrt(2 * size) + bias


def test_linear_regression_is_exact():
    """Against a sum over a grid of both precisions, given which the posterior is Gaussian.

    Five inputs are padded to six: the sixth must not change the law.
    """
    assert padded_size(5, 2) == 6
    x, y = line()
    model = BayesianLinearRegression(num_draws=4000, num_chains=16, random_state=1).fit(x, y)
    draws = np.column_stack([model.draws_["intercept"], model.draws_["coef"][:, 0]])
    rows, target = np.column_stack([np.ones(len(x)), standardized(x)]), standardized(y)
    logs, means, covariances, precisions = [], [], [], []
    for log_noise, log_precision in itertools.product(
        np.linspace(-2, 5, 71), np.linspace(-4, 4, 81)
    ):
        noise, precision = np.exp([log_noise, log_precision])
        prior = np.array([0.01] + 5 * [precision])
        curvature = noise * rows.T @ rows + np.diag(prior)
        mean = noise * np.linalg.solve(curvature, rows.T @ target)
        # Gamma(1, 0.1) and Gamma(1, 1/5) densities, with the Jacobians of the logarithms.
        log = log_noise - 0.1 * noise + log_precision - precision / 5
        log += 0.5 * (len(y) * log_noise + 5 * log_precision - np.linalg.slogdet(curvature)[1])
        log -= 0.5 * (noise * target @ target - mean @ curvature @ mean)
        logs.append(log)
        means.append(mean)
        precisions.append(precision)
        covariances.append(np.linalg.inv(curvature))
    share = np.exp(np.array(logs) - max(logs))
    share /= share.sum()
    means = np.array(means)
    mean = share @ means
    second = np.einsum("g,gij->ij", share, covariances) + (means * share[:, None]).T @ means
    near(draws, mean, np.sqrt(np.diag(second) - mean**2))
    precision = share @ np.array(precisions)
    sd = np.sqrt(share @ np.array(precisions) ** 2 - precision**2)
    near(model.draws_["precision"][:, None], precision[None], sd[None], bias=0.03)


def test_logistic_regression_of_two_classes_is_exact():
    """Against a sum over a grid of intercept, weight and the logarithm of its precision."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(25, 1))
    y = generator.random(25) < 1 / (1 + np.exp(-1 - 2 * x[:, 0]))
    model = BayesianLogisticRegression(num_draws=4000, num_chains=16, random_state=0).fit(x, y)
    draws = np.column_stack([model.draws_["intercept"], model.draws_["coef"][:, 0]])
    z, signs = standardized(x)[:, 0], np.where(y, 1, -1)
    b, w = np.meshgrid(np.linspace(-3, 6, 181), np.linspace(-2, 9, 221), indexing="ij")
    log = -0.005 * b**2
    for each, sign in zip(z, signs, strict=True):
        log = log - np.logaddexp(0, -sign * (b + w * each))
    # The weight's prior with its precision integrated out, ∫ N(w; 0, λ⁻¹) Gamma(λ; 1, 1) dλ.
    log = log - 1.5 * np.log(1 + w**2 / 2)
    share = np.exp(log - log.max())
    share /= share.sum()
    mean = np.array([(share * b).sum(), (share * w).sum()])
    sd = np.sqrt([(share * b**2).sum(), (share * w**2).sum()] - mean**2)
    # A skewed posterior of few rows: the step's bias is more than a Gaussian's.
    near(draws, mean, sd, bias=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_logistic_regression_of_three_classes_agrees_with_exact_hmc(seed):
    """Means and sds within 5.5 standard errors, which the chains of both sides show.

    Sixteen comparisons with some thirty degrees of freedom: right ones fail once in 10⁴ seeds.
    """
    x, y = blobs()
    model = BayesianLogisticRegression(num_draws=4000, num_chains=16, random_state=seed).fit(x, y)
    draws = np.concatenate([model.draws_["intercept"][..., None], model.draws_["coef"]], -1)
    draws = draws.reshape(16, -1, 3, 4)
    rows = np.column_stack([np.ones(len(x)), standardized(x)]).astype(np.float32)

    def potential(params):
        beta, log_precision = params["beta"], params["log_precision"]
        logs = jax.nn.log_softmax(rows @ beta.T)
        log = jnp.sum(logs[np.arange(len(y)), y]) - 0.005 * jnp.sum(beta[:, 0] ** 2)
        log += log_precision * (1 + 9 / 2) - jnp.exp(log_precision) / 3
        return 0.5 * jnp.exp(log_precision) * jnp.sum(beta[:, 1:] ** 2) - log

    # The intercepts' sum is almost free: its mass is small.
    start = {"beta": jnp.zeros((3, 4)), "log_precision": jnp.zeros(())}
    samples = sghmc.sample(
        jax.random.key(100 + seed),
        sghmc.Potential(potential),
        sghmc.HMC(0.15, 25),
        start,
        num_samples=1500,
        num_burnin=300,
        num_chains=16,
        progress=False,
    )
    exact = samples.positions["beta"].astype(np.float64)
    # Differences of logits: what the data speak about, and what both samplers mix well in.
    ours, truth = (each[:, :, :2] - each[:, :, 2:] for each in (draws, exact))
    sd = truth.std((0, 1))
    assert np.max(np.abs(scores(ours.mean(1), truth.mean(1)))) < 5.5
    # The step's bias is up to 4 % of an sd.
    gap = ours.std(1).mean(0) - truth.std(1).mean(0)
    error = np.hypot(*(each.std(1).std(0) / 4 for each in (ours, truth)))
    assert np.all(np.abs(gap) < 5.5 * error + 0.04 * sd)


def scores(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Differences of the means of chains over their standard errors."""
    error = np.hypot(*(each.std(0, ddof=1) / len(each) ** 0.5 for each in (one, other)))
    return (one.mean(0) - other.mean(0)) / error


def test_a_stream_ends_where_all_rows_at_once_do():
    """The law is the same; means of 800 draws of each agree within 4.5 of their standard errors."""
    x, y = line(60)
    x[30:] += 5
    whole = BayesianLinearRegression(800, 16, random_state=0).fit(x, y)
    stream = BayesianLinearRegression(800, 16, random_state=1).partial_fit(x[:30], y[:30])
    stream.partial_fit(x[30:31], y[30:31]).partial_fit(x[31:], y[31:])
    one, other = whole.sample_posterior()["coef"][:, 0], stream.sample_posterior()["coef"][:, 0]
    error = one.std(0) * np.sqrt(2 * 1.5 / 800)
    assert np.max(np.abs(one.mean(0) - other.mean(0)) / error) < 4.5
    np.testing.assert_allclose(one.std(0), other.std(0), rtol=0.2)
