"""scikit-learn front ends: its own checks, the right spread, streams, files, bad input."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

import sghmc
from sghmc import estimators
from sghmc.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    ModelFileError,
)
from sghmc.estimators.curvature import activate, largest_curvatures
from sghmc.estimators.held_out import HeldOut, clearly_likeliest, random_parts
from sghmc.estimators.network import rescaled
from sghmc.estimators.rows import Rows, Scaling, padded_size

pl = pytest.importorskip("polars")

SMALL: dict[str, Any] = {"num_draws": 20, "num_chains": 2}
TINY: dict[str, Any] = {"hidden_layer_sizes": (8,), "num_steps": 200, **SMALL}


@parametrize_with_checks([BayesianLogisticRegression(**SMALL)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


# Every shape of data compiles a program of its own: two minutes of processor time a network.
@pytest.mark.slow
@parametrize_with_checks(
    [BayesianLinearRegression(**SMALL), BayesianMLPClassifier(**TINY), BayesianMLPRegressor(**TINY)]
)
def test_scikit_learns_own_checks_of_the_others(estimator, check):
    check(estimator)


def line(count: int = 30, num_inputs: int = 5):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, num_inputs)) * [1, 10, 0.1, 3, 1][:num_inputs]
    x[:, 1] += 8 * x[:, 0]
    return x, x @ [1, -0.5, 20, 0, 0.3][:num_inputs] + 4 + generator.normal(size=count)


def blobs(spread: float = 6.0) -> tuple[Any, Any]:
    x, y, *_ = make_blobs(60, 3, centers=3, cluster_std=spread, random_state=3)
    return x, y


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


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
    logs, means, covariances = [], [], []
    for log_noise, log_precision in itertools.product(
        np.linspace(-2, 5, 71), np.linspace(-4, 4, 81)
    ):
        noise, precision = np.exp([log_noise, log_precision])
        prior = np.array([0.01] + 5 * [precision])
        curvature = noise * rows.T @ rows + np.diag(prior)
        mean = noise * np.linalg.solve(curvature, rows.T @ target)
        # Gamma(1, 0.1) and Gamma(1, 1) densities, with the Jacobians of the logarithms.
        log = log_noise - 0.1 * noise + log_precision - precision
        log += 0.5 * (len(y) * log_noise + 5 * log_precision - np.linalg.slogdet(curvature)[1])
        log -= 0.5 * (noise * target @ target - mean @ curvature @ mean)
        logs.append(log)
        means.append(mean)
        covariances.append(np.linalg.inv(curvature))
    share = np.exp(np.array(logs) - max(logs))
    share /= share.sum()
    means = np.array(means)
    mean = share @ means
    second = np.einsum("g,gij->ij", share, covariances) + (means * share[:, None]).T @ means
    near(draws, mean, np.sqrt(np.diag(second) - mean**2))


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
def test_logistic_regression_of_three_classes_agrees_with_exact_hmc():
    x, y = blobs()
    model = BayesianLogisticRegression(num_draws=4000, num_chains=16, random_state=0).fit(x, y)
    draws = np.concatenate([model.draws_["intercept"][..., None], model.draws_["coef"]], -1)
    rows = np.column_stack([np.ones(len(x)), standardized(x)]).astype(np.float32)

    def potential(params):
        beta, log_precision = params["beta"], params["log_precision"]
        logs = jax.nn.log_softmax(rows @ beta.T)
        log = jnp.sum(logs[np.arange(len(y)), y]) - 0.005 * jnp.sum(beta[:, 0] ** 2)
        log += log_precision * (1 + 9 / 2) - jnp.exp(log_precision)
        return 0.5 * jnp.exp(log_precision) * jnp.sum(beta[:, 1:] ** 2) - log

    # The intercepts' sum is almost free: its mass is small.
    start = {"beta": jnp.zeros((3, 4)), "log_precision": jnp.zeros(())}
    samples = sghmc.sample(
        jax.random.key(1),
        sghmc.Potential(potential),
        sghmc.HMC(0.15, 25),
        start,
        num_samples=1500,
        num_burnin=300,
        num_chains=16,
        progress=False,
    )
    exact = samples.positions["beta"].reshape(-1, 3, 4).astype(np.float64)
    # Differences of logits: what the data speak about, and what both samplers mix well in.
    for k in (0, 1):
        near(draws[:, k] - draws[:, 2], *moments(exact[:, k] - exact[:, 2]), bias=0.04)


def moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return draws.mean(0), draws.std(0)


def test_the_spread_of_predictions_is_that_of_new_observations():
    generator = np.random.default_rng(0)
    x = np.linspace(-3, 3, 150)[:, None]
    y = np.sin(x[:, 0]) * 50 + generator.normal(0, 5, 150) + 1000
    model = BayesianMLPRegressor((20,), num_steps=1500, random_state=0).fit(x[::2], y[::2])
    mean, std = model.predict(x[1::2], return_std=True)
    errors = (y[1::2] - mean) / std
    # 75 rows: the sd of such a mean of squares is 0.16.
    assert 0.5 < np.mean(errors**2) < 1.6
    assert model.score(x[1::2], y[1::2]) > 0.9
    far = model.predict([[9.0]], return_std=True)[1][0]
    assert far > 3 * std.max()
    expected = np.log(std) + 0.5 * np.log(2 * np.pi) + 0.5 * errors**2
    assert abs(model.log_likelihood(x[1::2], y[1::2]).mean() + expected.mean()) < 0.05


@pytest.mark.slow
def test_power_and_sharpness_are_as_held_out_labels_ask_for():
    settings: dict[str, Any] = TINY | {"num_steps": 1000, "random_state": 0}
    clear = BayesianMLPClassifier(**settings).fit(*blobs(0.5))
    assert clear.sharpness_ > 1.1
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(600, 3)), generator.integers(0, 3, 600)
    # Whatever the rows say about such labels is wrong.
    model = BayesianMLPClassifier(**settings).fit(*noise)
    assert model.sharpness_ < 0.7
    p = model.predict_proba(noise[0])
    np.testing.assert_allclose(p.sum(1), 1)
    model.sharpness_ = 1.0
    plain = model.predict_proba(noise[0])
    np.testing.assert_array_equal(plain.argmax(1), p.argmax(1))
    assert p.max(1).mean() < plain.max(1).mean()


def test_the_likeliest_sharpness_undoes_a_wrong_one():
    """Labels drawn from p, judged by p²: half the sharpness is right.

    Its standard error is 0.02 for 4000 rows: once in ten thousand seeds it is off by 0.08.
    """
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(3), 4000)
    y = (p.cumsum(1) < generator.random((4000, 1))).sum(1)
    found = HeldOut(2 * np.log(p), y, np.ones(4000)).likeliest_sharpness()
    assert found == pytest.approx(0.5, abs=0.08)
    sure = HeldOut(np.log([[0.9, 0.1]] * 10), np.zeros(10, int), np.ones(10))
    assert 1 < sure.likeliest_sharpness() < np.e


def test_an_unusual_power_must_be_clearly_better():
    usual, errors = np.zeros(100), np.tile([1.0, -1.0], 50)

    def chosen(low, high):
        return clearly_likeliest({3.0: low, 30.0: usual, 300.0: high}, 30.0)

    assert chosen(usual - 1, 0.3 + errors) == 300
    # One standard error; then many, but only 2 in all.
    assert chosen(usual - 1, 0.1 + errors) == 30
    assert chosen(usual - 1, 0.02 + 0.001 * errors) == 30
    assert chosen(usual + 0.4, 0.3 + errors) == 3


def test_powers_are_tried_in_turn_and_can_be_given(monkeypatch):
    model = BayesianMLPClassifier(**TINY)
    tried = []

    def run(key, rows, power, plan):
        tried.append(power)
        assert (rows.weight == 0).sum(1).tolist() == [15, 15]

    def held_out(rows, is_held):
        right = likely[tried[-1]]
        return HeldOut(np.log([[right, 1 - right]] * 60), np.zeros(60, int), np.ones(60))

    monkeypatch.setattr(model, "_run_classes", run)
    monkeypatch.setattr(model, "_held_out", held_out)
    x, y = blobs()
    rows, key = Rows(x, y, np.ones(len(x))), jax.random.key(0)
    model.set_params(sharpness=1.0)
    likely = {3: 0.6, 30: 0.7, 300: 0.8}
    assert model._choice(key, rows) == (300, 1)
    assert tried == [3, 30, 300]
    tried.clear()
    likely = {3: 0.8, 30: 0.7}
    assert model._choice(key, rows) == (3, 1)
    assert tried == [3, 30]
    tried.clear()
    assert model.set_params(likelihood_power=3, sharpness="auto")._choice(key, rows)[0] == 3
    assert tried == [3]
    assert model.set_params(sharpness=0.5)._choice(key, rows) == (3, 0.5)
    assert tried == [3]


def test_every_class_is_in_every_part():
    y = np.repeat([0, 1, 2], [8, 40, 13])
    part = random_parts(y, 4)
    for label in range(3):
        counts = np.bincount(part[y == label], minlength=4)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("precision", [2.5, None])
def test_precisions_are_learned_only_where_asked_for(precision):
    settings: dict[str, Any] = TINY | {"likelihood_power": 1, "sharpness": 1, "num_draws": 4}
    model = BayesianMLPClassifier(prior_precision=precision, **settings).fit(*blobs())
    drawn = model.sample_posterior()["precision.0.weight"]
    assert (np.ptp(drawn) > 0) == (precision is None)
    assert precision in (None, drawn[0])


LABELS = {
    "text": np.array(["a", "bb", "ccc"]),
    "objects": np.array(["a", "bb", "ccc"], object),
    "numbers": np.array([-1, 7, 3]),
    "floats": np.array([1.0, 2.0, -3.0]),
    "booleans": np.array([True, False, True]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_type_survive_files(kind, tmp_path):
    x, y = blobs()
    labels = LABELS[kind][y]
    model = BayesianLogisticRegression(**SMALL, random_state=0).fit(x, labels)
    assert set(model.predict(x)) <= set(labels)
    model.save(tmp_path / "model")
    loaded = BayesianLogisticRegression.load(tmp_path / "model")
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))


MODELS = [
    BayesianLinearRegression(**SMALL),
    BayesianMLPRegressor(**TINY),
    BayesianLogisticRegression(**SMALL),
    BayesianMLPClassifier(**TINY),
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: type(model).__name__)
def fitted(request):
    x, y = line()
    y = y if is_regressor(request.param) else y > 4
    frame = pd.DataFrame(x, columns=[f"input {i}" for i in range(x.shape[1])])
    model = request.param.set_params(random_state=0)
    return model.fit(frame, y), frame, y


def outputs(model, x):
    return model.predict(x, return_std=True) if is_regressor(model) else model.predict_proba(x)


def test_files_keep_every_bit(fitted, tmp_path):
    model, frame, _ = fitted
    path = tmp_path / "model.sghmc"
    model.save(path)
    for loaded in (type(model).load(path), estimators.load(path)):
        assert type(loaded) is type(model)
        assert loaded.get_params() == model.get_params()
        np.testing.assert_array_equal(outputs(loaded, frame), outputs(model, frame))
        assert list(loaded.feature_names_in_) == list(frame)
    assert [file.name for file in tmp_path.iterdir()] == ["model.sghmc"]
    others = {type(each) for each in MODELS} - {type(model)}
    for other in others:
        with pytest.raises(ModelFileError, match=f"holds a {type(model).__name__}"):
            other.load(path)
    with pytest.raises(ValueError, match="cannot learn on"):
        estimators.load(path).partial_fit(frame, fitted[2])


def test_damaged_files_are_refused(fitted, tmp_path):
    model, _, _ = fitted
    path = tmp_path / "model.sghmc"
    model.save(path)
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 40):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(place % 8)
        path.write_bytes(flipped)
        with pytest.raises(ModelFileError):
            estimators.load(path)
    for length in (0, 10, 30, 90, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            estimators.load(path)
    path.write_bytes(whole.replace(b"format 2", b"format 3", 1))
    with pytest.raises(ModelFileError, match="format '3', but this version"):
        estimators.load(path)


def test_frames_of_both_kinds(fitted):
    model, frame, _ = fitted
    np.testing.assert_array_equal(
        outputs(model, frame), outputs(model, pl.DataFrame(frame.to_dict("list")))
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"input 0": "other"}))


def test_draws_are_given_by_name(fitted):
    model, _, _ = fitted
    draws = model.sample_posterior()
    assert {len(values) for values in draws.values()} == {20}
    assert {len(values) for values in model.sample_posterior(3).values()} == {3}
    with pytest.raises(ValueError, match="from 1 to 20"):
        model.sample_posterior(21)


def test_the_same_seed_gives_the_same_draws(fitted):
    model, frame, y = fitted
    again = type(model)(**model.get_params()).fit(frame, y)
    for name, values in model.draws_.items():
        np.testing.assert_array_equal(again.draws_[name], values)


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


@pytest.mark.slow
def test_networks_go_on_with_more_rows():
    x, y = blobs()
    classifier = BayesianMLPClassifier(**TINY, random_state=0)
    classifier.partial_fit(x[:20], y[:20], classes=[0, 1, 2])
    assert classifier._chains[0].positions[0]["bias"].shape == (2, 8)
    first = classifier.sharpness_
    classifier.partial_fit(x[20:39], y[20:39])
    assert classifier.sharpness_ == first
    # Now the rows have doubled.
    classifier.partial_fit(x[39:], y[39:])
    assert classifier.sharpness_ != first
    assert classifier._rows is not None
    assert classifier._rows.total_weight == 60
    assert classifier.score(x, y) > 0.5


def test_new_scalings_leave_a_chains_function_as_it_was():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(7, 3))
    sizes = [(4, 5), (5, 1)]
    layers = [
        {"weight": generator.normal(size=(2, *size)), "bias": generator.normal(size=(2, size[1]))}
        for size in sizes
    ]

    def function(layers, inputs, target):
        rows = np.column_stack([inputs.apply(x) / np.sqrt(3), np.zeros(7)])
        hidden, _ = activate("relu", rows @ layers[0]["weight"] + layers[0]["bias"][:, None])
        outputs = hidden @ layers[1]["weight"] + layers[1]["bias"][:, None]
        return target.center + target.scale * outputs

    old = (Scaling(np.zeros(3), np.ones(3)), Scaling(np.array(1.0), np.array(2.0)))
    new = (
        Scaling(np.array([1, 2, 3.0]), np.array([2, 1, 4.0])),
        Scaling(np.array(5.0), np.array(3.0)),
    )
    moved = rescaled(layers, old, new)
    np.testing.assert_allclose(function(moved, *new), function(layers, *old), rtol=1e-5)


@pytest.mark.slow
def test_pipelines_and_searches():
    x, y = line()
    model = make_pipeline(PolynomialFeatures(2), BayesianLinearRegression(**SMALL, random_state=0))
    assert cross_val_score(model, x, y, cv=3).mean() > 0.5
    search = GridSearchCV(BayesianLinearRegression(random_state=0), {"num_draws": [20, 40]}, cv=2)
    assert search.fit(x, y).best_score_ > 0.5


@pytest.mark.slow
def test_pipelines_and_searches_of_networks():
    x, y = blobs(2.0)
    labels = np.array(["a", "b", "c"])[y]
    network = BayesianMLPClassifier(**TINY, random_state=0)
    model = make_pipeline(PolynomialFeatures(1, include_bias=False), network)
    # By chance 0.33.
    assert cross_val_score(model, x, labels, cv=2).mean() > 0.7
    grid = {"bayesianmlpclassifier__likelihood_power": [0.01, 3.0]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss").fit(x, labels)
    assert search.best_params_ == {"bayesianmlpclassifier__likelihood_power": 3.0}
    assert set(search.predict(x)) <= set(labels)


@pytest.mark.parametrize("noise", [None, 3.0])
def test_curvatures_are_those_of_the_hessian(noise):
    """For a network without hidden layers Gauss–Newton and Hessian are the same."""
    generator = np.random.default_rng(0)
    rows = Rows(generator.normal(size=(9, 2)), np.arange(9) % 3, generator.random(9))
    params = [{"weight": generator.normal(size=(2, 3)), "bias": generator.normal(size=3)}]

    def potential(weight):
        outputs = rows.x @ weight + params[0]["bias"][None]
        if noise is not None:
            return 0.5 * noise * jnp.sum(rows.weight[:, None] * outputs**2)
        return -jnp.sum(rows.weight * jax.nn.log_softmax(outputs)[np.arange(9), rows.y])

    hessian = jax.hessian(potential)(params[0]["weight"]).reshape(6, 6)
    found = largest_curvatures(params, rows, "relu", noise)[0]["weight"]
    assert found == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=0.05)


def test_rows_are_a_weighted_set():
    rows = Rows(np.array([[1.0], [0.0], [1.0], [-0.0]]), np.array([1, 0, 1, 0]), np.arange(4.0))
    merged = rows.merged()
    assert (merged.x.ravel().tolist(), merged.weight.tolist()) == ([0.0, 1.0], [4.0, 2.0])


@pytest.mark.slow
def test_memory_is_that_of_the_kept_draws():
    x, y = line()
    model = BayesianMLPRegressor((8,), num_steps=400, num_draws=10, num_chains=2).fit(x, y)
    assert {len(values) for values in model.draws_.values()} == {10}


def test_bad_input_is_explained():
    x, y = blobs()
    model = BayesianLogisticRegression(**SMALL)
    with pytest.raises(ValueError, match="one class only"):
        model.fit(x, np.zeros(len(x)))
    for bad, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        broken = x.copy()
        broken[3, 1] = bad
        with pytest.raises(ValueError, match=name):
            model.fit(broken, y)
    with pytest.raises(ValueError, match="could not convert string to float"):
        model.fit(np.array([["a", "1"], ["2", "3"]]), [0, 1])
    with pytest.raises(ValueError, match="at least one non-zero"):
        model.fit(x, y, sample_weight=np.zeros(len(x)))
    model.partial_fit(x, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"labels \[.*5.*\] outside the classes"):
        model.partial_fit(x[:2], [0, 5])
    with pytest.raises(ValueError, match="but the first call had"):
        model.partial_fit(x, y, classes=[0, 1])
    with pytest.raises(ValueError, match="labels"):
        model.log_likelihood(x[:1], [9])
    with pytest.raises(ValueError, match="4000"):
        BayesianLinearRegression(**SMALL).fit(np.ones((2, 5000)), [0, 1])


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "step"},
        {"num_steps": 1},
        {"hidden_layer_sizes": (0,)},
        {"num_draws": 0},
        {"num_chains": 1.5},
        {"prior_precision": "auto"},
        {"prior_precision": 0.0},
        {"likelihood_power": "high"},
        {"likelihood_power": None},
        {"likelihood_power": 0.0},
        {"sharpness": "high"},
        {"sharpness": 0.0},
    ],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        BayesianMLPClassifier(**settings).fit(*blobs())
