"""What all estimators promise: scikit-learn's checks, streams, files, bad input."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from estimator_data import NETWORK, SMALL, blobs, line
from sghmc import estimators
from sghmc.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    ModelFileError,
)


@pytest.mark.slow_cases(
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_classifiers_classes",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_classifiers_train",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_dtype_object",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_estimators_dtypes",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_estimators_overwrite_params",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_estimators_partial_fit_n_features",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_fit2d_1feature",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_fit_idempotent",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_fit_score_takes_y",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_n_features_in_after_fitting",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_pipeline_consistency",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_positive_only_tag_during_fit",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_sample_weight_equivalence_on_dense_data",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_sample_weights_pandas_series",
    "BayesianLogisticRegression(num_chains=2,num_draws=20)-check_sample_weights_shape",
)
@parametrize_with_checks([BayesianLogisticRegression(**SMALL)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


# Every shape of data compiles a program of its own: two minutes of processor time a network.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # few steps, few rows
@parametrize_with_checks(
    [
        BayesianLinearRegression(**SMALL),
        BayesianMLPClassifier(**NETWORK),
        BayesianMLPRegressor(hidden_layer_sizes=(8,), num_steps=2000, **SMALL),
    ]
)
def test_scikit_learns_own_checks_of_the_others(estimator, check):
    check(estimator)


LABELS = {
    "text": np.array(["a", "bb", "ccc"]),
    "objects": np.array(["a", "bb", "ccc"], object),
    "numbers": np.array([-1, 7, 3]),
    "floats": np.array([1.0, 2.0, -3.0]),
    "booleans": np.array([True, False, True]),
}


@pytest.mark.slow_cases("booleans", "text")
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
    BayesianMLPRegressor(**NETWORK),
    BayesianLogisticRegression(**SMALL),
    BayesianMLPClassifier(**NETWORK),
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: type(model).__name__)
def fitted(request):
    x, y = line()
    y = y if is_regressor(request.param) else y > 4
    frame = pd.DataFrame(x, columns=[f"input {i}" for i in range(x.shape[1])])
    model = request.param.set_params(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(frame, y), frame, y


def outputs(model, x):
    return model.predict(x, return_std=True) if is_regressor(model) else model.predict_proba(x)


@pytest.mark.slow_cases("BayesianLinearRegression", "BayesianMLPClassifier", "BayesianMLPRegressor")
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
    path.write_bytes(whole.replace(b"format 3", b"format 4", 1))
    with pytest.raises(ModelFileError, match="format '4', but this version"):
        estimators.load(path)


def test_frames_of_both_kinds(fitted):
    import polars as pl

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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_same_seed_gives_the_same_draws(fitted):
    model, frame, y = fitted
    again = type(model)(**model.get_params()).fit(frame, y)
    for name, values in model.draws_.items():
        np.testing.assert_array_equal(again.draws_[name], values)


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
    network = BayesianMLPClassifier(**NETWORK, random_state=0)
    model = make_pipeline(PolynomialFeatures(1, include_bias=False), network)
    # By chance 0.33.
    assert cross_val_score(model, x, labels, cv=2).mean() > 0.7
    grid = {"bayesianmlpclassifier__likelihood_power": [0.01, 3.0]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss").fit(x, labels)
    assert search.best_params_ == {"bayesianmlpclassifier__likelihood_power": 3.0}
    assert set(search.predict(x)) <= set(labels)


def test_values_that_hide_all_others_are_told():
    x, y = line()
    x[3, 2], y[4] = 999_999, 1e9
    frame = pd.DataFrame(x, columns=[*"abcde"])
    model = BayesianLinearRegression(**SMALL)
    with pytest.warns(UserWarning, match="of the target, input c are so far from all others"):
        model.fit(frame, y)
    with pytest.warns(UserWarning, match="of input 2 are"):
        BayesianLogisticRegression(**SMALL).fit(x, y > 4)


@pytest.mark.slow
def test_bad_input_is_explained():
    x, y = blobs()
    model = BayesianLogisticRegression(**SMALL)
    with pytest.raises(ValueError, match="one class only"):
        model.fit(x, np.zeros(len(x)))
    broken = x.copy()
    broken[3, 1] = np.inf  # NaN is a missing value
    with pytest.raises(ValueError, match="infinity"):
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
