"""Linear models against exact answers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from estimator_data import blobs, by_hand, line, standardized
from sghmc.estimators import BayesianLinearRegression, BayesianLogisticRegression, linear
from sghmc.estimators.linear_posterior import Draws
from sghmc.estimators.weighted_rows import Scaling, padded_size


def near(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray, bias: float = 0.01) -> None:
    """Means and sds of draws against the truth, within 4.5 standard errors and a bias of sds.

    A draw of ten steps is worth two thirds of an independent one. A dozen comparisons that are
    right fail once in ten thousand seeds.
    """
    size = len(draws) / 1.5
    assert np.max(np.abs(draws.mean(0) - mean) / sd) < 4.5 / np.sqrt(size)
    assert np.max(np.abs(draws.std(0) / sd - 1)) < 4.5 / np.sqrt(2 * size) + bias


@pytest.mark.slow
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


@pytest.mark.slow
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


class StopError(Exception):
    """Ends a fit where its model is made."""


@pytest.fixture
def stopped(monkeypatch):
    """What a fit hands to the search for its mode."""
    seen = {}

    def stop(name):
        def found(*arguments):
            seen[name] = arguments
            raise StopError

        return found

    for name in ("linear_mode", "logistic_mode"):
        monkeypatch.setattr(linear, name, stop(name))
    return seen


def test_linear_regression_sums_weighted_standardized_rows(stopped):
    x, y = line(6, 3)
    weight = np.array([1.0, 2.0, 0.5, 3.0, 1.0, 4.0])
    with pytest.raises(StopError):
        BayesianLinearRegression().fit(x, y, weight)
    sums, is_weight, rate = stopped["linear_mode"]
    share = weight / weight.sum()
    z = (x - share @ x) / np.sqrt(share @ (x - share @ x) ** 2)
    target = (y - share @ y) / np.sqrt(share @ (y - share @ y) ** 2)
    # Three inputs are their own padded width; the column of ones comes first.
    rows = np.column_stack([np.ones(6), z])
    np.testing.assert_allclose(sums["gram"], rows.T @ np.diag(weight) @ rows, atol=1e-10)
    np.testing.assert_allclose(sums["moment"], rows.T @ (weight * target), atol=1e-10)
    assert sums["count"] == pytest.approx(11.5)
    assert sums["square"] == pytest.approx(weight @ target**2)
    assert is_weight.tolist() == [0, 1, 1, 1]
    assert rate == pytest.approx(1 / 3)


@pytest.mark.parametrize(("num_classes", "num_logits"), [(2, 1), (3, 3)])
def test_two_classes_share_a_logit_and_more_have_one_each(num_classes, num_logits, stopped):
    x, _ = line(7)
    y = np.arange(7) % num_classes
    with pytest.raises(StopError):
        BayesianLogisticRegression().fit(x, y)
    rows, found, is_weight, rate = stopped["logistic_mode"]
    assert found == num_logits
    # Five inputs are padded to six.
    assert is_weight.tolist() == [0, 1, 1, 1, 1, 1, 1] * num_logits
    assert rate == pytest.approx(1 / 5)
    assert rows.x.shape == (7, 7)
    np.testing.assert_array_equal(rows.x[:, 0], 1)
    np.testing.assert_array_equal(rows.x[:, 6], 0)
    order = np.argsort(rows.x[:, 1])
    np.testing.assert_allclose(rows.x[order, 1:6], standardized(x)[np.argsort(x[:, 0])], atol=1e-9)
    np.testing.assert_array_equal(rows.y[order], y[np.argsort(x[:, 0])])


def test_a_logit_is_linear_in_the_inputs_with_its_own_intercept():
    coef, intercept = np.arange(12.0).reshape(2, 3, 2) / 5, np.arange(6.0).reshape(2, 3) - 2
    draws = {"coef": coef, "intercept": intercept}
    model = by_hand(BayesianLogisticRegression(), draws, classes_=np.arange(3))
    x = np.array([[0.3, -1.5], [2.0, 0.7], [1.1, 0.2], [-0.4, 0.9]])
    wanted = np.einsum("dki,ri->drk", coef, x) + intercept[:, None]
    np.testing.assert_allclose(model._outputs(x), wanted)
    # Of two classes, one logit is the difference of both.
    model.draws_ = {"coef": coef[:, :1], "intercept": intercept[:, :1]}
    outputs = model._outputs(x)
    np.testing.assert_allclose(outputs[..., 1] - outputs[..., 0], wanted[..., 0])
    np.testing.assert_allclose(
        model.predict_proba(x)[:, 1], (1 / (1 + np.exp(-wanted[..., 0]))).mean(0)
    )


INPUTS = Scaling(np.array([1.0, -2.0]), np.array([2.0, 0.5]))
TARGET = Scaling(np.array(10.0), np.array(4.0))


def test_chains_go_on_with_the_same_function_in_new_units():
    """A function of raw inputs, with an input that is padded."""
    beta = np.random.default_rng(0).normal(size=(2, 3, 4))
    x = np.random.default_rng(1).normal(size=(5, 2))

    def function(beta, inputs, target):
        z = np.column_stack([np.ones(5), inputs.apply(x)])
        return target.center + target.scale * np.einsum("ckj,rj->ckr", beta[..., :3], z)

    raw = linear._in_raw_units(beta, INPUTS, TARGET)
    plain = Scaling(np.zeros(2), np.ones(2)), Scaling(np.array(0.0), np.array(1.0))
    before = function(beta, INPUTS, TARGET)
    np.testing.assert_allclose(function(raw, *plain), before)
    np.testing.assert_allclose(raw[..., 3], 4 * beta[..., 3])
    new = Scaling(np.array([3.0, 0.5]), np.array([0.7, 5.0])), Scaling(np.array(-1.0), np.array(9))
    moved = linear._in_new_units(raw, *new)
    np.testing.assert_allclose(function(moved, *new), before)
    np.testing.assert_allclose(moved[..., 3], 4 * beta[..., 3] / 9)


def test_restarts_are_the_chains_ends_in_the_scales_of_all_rows():
    model = by_hand(BayesianLinearRegression(), {}, input_scaling_=INPUTS, target_scaling_=TARGET)
    old = Scaling(np.array([3.0, 0.5]), np.array([0.7, 5.0])), Scaling(np.array(-1.0), np.array(9))
    ends = np.arange(6.0).reshape(2, 3)
    model._chains = (ends, *old)
    raw = linear._in_raw_units(ends[:, None], *old)
    wanted = linear._in_new_units(raw, INPUTS, TARGET)[:, 0]
    np.testing.assert_allclose(model._restarts(None), wanted)


def test_kept_draws_leave_out_padded_inputs():
    model = by_hand(BayesianLinearRegression(), {}, n_features_in_=3, target_scaling_=TARGET)
    drawn = np.arange(24.0).reshape(2, 12)
    last = np.arange(12.0)[None]
    model._keep(Draws(drawn, {"precision": np.array([0.5, 2.0])}, last), 2)
    assert model.draws_["intercept"].tolist() == [[0, 6], [12, 18]]
    np.testing.assert_array_equal(model.draws_["coef"][1], [[13, 14, 15], [19, 20, 21]])
    assert model.draws_["precision"].tolist() == [0.5, 2.0]
    assert model._chains == (last, model.input_scaling_, TARGET)


def test_raw_coefficients_have_the_units_of_target_over_input():
    coef, intercept = np.array([[[0.8, -0.3]]]), np.array([[0.6]])
    draws = {"coef": coef, "intercept": intercept}
    model = by_hand(
        BayesianLinearRegression(), draws, input_scaling_=INPUTS, target_scaling_=TARGET
    )
    np.testing.assert_allclose(model.coef_, [0.8 * 4 / 2, -0.3 * 4 / 0.5])
    np.testing.assert_allclose(model.intercept_, 10 + 4 * 0.6 - 1.6 * 1 + -2.4 * 2)
    other = by_hand(BayesianLogisticRegression(), draws, input_scaling_=INPUTS)
    np.testing.assert_allclose(other.coef_, [[0.4, -0.6]])
    np.testing.assert_allclose(other.intercept_, [0.6 - 0.4 * 1 - 0.6 * 2])


def test_there_are_at_most_4000_coefficients():
    model = BayesianLinearRegression()
    assert len(model._is_weight(2000, 2)) == 4000
    with pytest.raises(ValueError, match=r"4002 coefficients .*at most 4000"):
        model._is_weight(2001, 2)


def test_defaults_of_linear_models():
    params = BayesianLogisticRegression().get_params()
    assert params == {"num_draws": 400, "num_chains": 4, "random_state": None, "progress": False}
