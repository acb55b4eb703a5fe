"""A table fitted and judged: scores against definitions, of models whose answers are known."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from scipy import stats

from estimator_data import by_hand
from sghmc.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    table_page,
    table_scores,
    tables,
)
from sghmc.estimators.encoding import Encoding, Options
from sghmc.estimators.networks import Diagnostics
from sghmc.estimators.predictive import ClassUncertainty, Uncertainty
from sghmc.estimators.weighted_rows import Scaling

NUM_ROWS = 400


class Classifier:
    """Knows the probabilities."""

    def __init__(self, p, classes):
        self.p, self.classes_ = p, classes

    def predict_proba(self, x):
        return self.p[x[:, 0].astype(int)]

    def predict_uncertainty(self, x):
        entropy = np.asarray(stats.entropy(self.predict_proba(x), axis=1))
        return ClassUncertainty(entropy, 0.1 * entropy)


class Regressor:
    """Knows means and standard deviations."""

    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def predict(self, x):
        return self.mean[x[:, 0].astype(int)]

    def predict_uncertainty(self, x):
        std = self.std[x[:, 0].astype(int)]
        return Uncertainty(std, 0.6 * std, 0.8 * std)

    def predict_cdf(self, x, y):
        return stats.norm.cdf(y, self.predict(x), self.predict_uncertainty(x).std)

    def predict_interval(self, x, coverage):
        law = stats.norm(self.predict(x), self.predict_uncertainty(x).std)
        return np.transpose(law.interval(coverage))

    def log_likelihood(self, x, y):
        return stats.norm.logpdf(y, self.predict(x), self.predict_uncertainty(x).std)


ROWS = np.arange(NUM_ROWS)[:, None].astype(float)


@pytest.mark.slow
def test_classes_are_judged_by_the_definitions():
    generator = np.random.default_rng(0)
    p = generator.dirichlet([1, 2, 3], NUM_ROWS)
    y = np.array(["a", "b", "c"], object)[[generator.choice(3, p=each) for each in p]]
    model = Classifier(p, np.array(["a", "b", "c"], object))
    found = table_scores._judge_classes(model, ROWS, y)
    hit = np.stack([y == label for label in "abc"], axis=1)
    assert found["accuracy"] == pytest.approx(np.mean(hit[np.arange(NUM_ROWS), p.argmax(1)]))
    assert found["log_likelihood"] == pytest.approx(np.mean(np.log(p[hit])), rel=1e-5)
    assert found["brier"] == pytest.approx(np.mean(np.sum((p - hit) ** 2, axis=1)), rel=1e-5)
    is_right, confidence = hit[np.arange(NUM_ROWS), p.argmax(1)], p.max(1)
    reliability = found["reliability"]
    assert sum(reliability["count"]) == NUM_ROWS
    for k, bin in enumerate(sorted(set((confidence * 10).astype(int)))):
        inside = (confidence >= bin / 10) & (confidence < (bin + 1) / 10)
        assert reliability["count"][k] == inside.sum()
        assert reliability["expected"][k] == pytest.approx(confidence[inside].mean())
        assert reliability["observed"][k] == pytest.approx(is_right[inside].mean())


def test_certainty_is_in_the_last_bin():
    found = table_scores._reliability(np.array([1.0, 0.95]), np.array([True, False]))
    assert found == {"expected": [0.975], "observed": [0.5], "count": [2]}


def test_numbers_are_judged_by_the_definitions():
    generator = np.random.default_rng(1)
    mean, std = generator.normal(size=NUM_ROWS), generator.uniform(0.5, 2, NUM_ROWS)
    y = mean + std * generator.normal(size=NUM_ROWS)
    found = table_scores._judge_numbers(Regressor(mean, std), ROWS, y)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["r2"] == pytest.approx(1 - np.mean((y - mean) ** 2) / y.var())
    assert found["log_likelihood"] == pytest.approx(np.mean(stats.norm.logpdf(y, mean, std)))
    covered = found["reliability"]["observed"]
    for level, share in zip(found["reliability"]["expected"], covered, strict=True):
        low, high = stats.norm.interval(level, mean, std)
        assert share == np.mean((low <= y) & (y <= high))
    levels = np.arange(0.05, 1, 0.1)
    np.testing.assert_allclose(found["reliability"]["expected"], levels)
    assert found["ece"] == pytest.approx(np.mean(np.abs(np.array(covered) - levels)))


def test_a_constant_target_has_no_r2():
    model = Regressor(np.zeros(NUM_ROWS), np.ones(NUM_ROWS))
    assert table_scores._judge_numbers(model, ROWS, np.zeros(NUM_ROWS))["r2"] is None


def test_predictions_of_numbers_have_their_90_percent():
    mean, std = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    found = tables.predicted(Regressor(mean, std), ROWS[:2], rows=np.array([4, 9]), truth=mean)
    assert found["row"] == [5, 10]  # as in the table, without its header
    assert found["truth"] == found["prediction"] == [1.0, -2.0]
    assert found["std"] == [0.5, 3.0]
    low, high = stats.norm.interval(0.9, mean, std)
    np.testing.assert_allclose(found["low_90"], low)
    np.testing.assert_allclose(found["high_90"], high)


def test_predictions_of_classes_have_their_probabilities():
    p = np.array([[0.2, 0.8], [1.0, 0.0]])
    found = tables.predicted(Classifier(p, np.array([3, 7])), ROWS[:2], rows=np.arange(2))
    unsure = ["entropy", "mutual_information"]
    assert list(found) == ["row", "prediction", "confidence", "p(3)", "p(7)", *unsure]
    assert (found["prediction"], found["confidence"]) == ([7, 3], [0.8, 1.0])
    assert (found["p(3)"], found["p(7)"]) == ([0.2, 1.0], [0.8, 0.0])
    entropies = [float(stats.entropy([0.2, 0.8])), 0.0]
    np.testing.assert_allclose(found["entropy"], entropies, atol=1e-12)


def test_every_class_is_fitted_and_held_out_in_proportion():
    y = np.array(["rare"] * 2 + ["common"] * 60 + ["single"], object)
    train, held = tables._split(y, "classification", 0.25, seed=0)
    assert sorted([*train, *held]) == list(range(63))
    assert {label: int((y[held] == label).sum()) for label in set(y)} == {
        "rare": 0,  # half of one
        "common": 15,
        "single": 0,
    }
    again = tables._split(y, "classification", 0.25, seed=0)[1]
    np.testing.assert_array_equal(again, held)
    assert not np.array_equal(tables._split(y, "classification", 0.25, seed=1)[1], held)
    _, numbers = tables._split(np.arange(40.0), "regression", 0.2, seed=0)
    assert len(numbers) == 8
    with pytest.raises(ValueError, match="2 rows are too few to hold out 10%"):
        tables._split(np.arange(2.0), "regression", 0.1, seed=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        tables._split(np.arange(2.0), "regression", 1.0, seed=0)


@pytest.mark.parametrize(
    ("target", "task"),
    [
        (np.array(["a"], object), "classification"),
        (np.array([True]), "classification"),
        (np.arange(20), "classification"),
        (np.arange(20, dtype=np.uint64), "classification"),
        (np.arange(21), "regression"),
        (np.array([0.0, 1.0]), "regression"),
    ],
)
def test_what_is_a_class(target, task):
    assert tables.detect_task(target) == task


class Recorded(Regressor):
    """Remembers what it was given to learn from."""

    fits: list[Any]

    def __init__(self, random_state, progress):
        super().__init__(np.zeros(100), np.ones(100))
        self.fits = []

    def get_params(self):
        return {"seed": 3}

    def fit(self, x, y):
        self.fits.append((x, y))

    partial_fit = fit


@pytest.fixture
def alone(monkeypatch):
    """Nothing is compared with the model, or asked of it."""
    monkeypatch.setattr(tables, "compare", lambda *_: {"troubles": [], "cares": []})
    monkeypatch.setattr(tables, "inspect", lambda *_: {})


@pytest.mark.usefixtures("alone")
def test_the_model_is_judged_on_rows_that_it_has_not_seen_and_then_takes_them_in(monkeypatch):
    monkeypatch.setitem(tables.KINDS, ("regression", "mlp"), Recorded)
    table = {"row": np.arange(50.0), "y": 100 + np.arange(50.0)}
    found = tables.fit_table(table, "y", test_fraction=0.2, seed=3)
    (x, y), (held_x, held_y) = found.model.fits
    assert (
        (len(y), len(held_y)) == (found.result["num_train"], found.result["num_test"]) == (40, 10)
    )
    np.testing.assert_array_equal(np.sort(np.append(x, held_x)), table["row"])
    for inputs, targets in ((x, y), (held_x, held_y)):
        np.testing.assert_array_equal(inputs[:, 0] + 100, targets)
    listed = list(csv.DictReader(io.StringIO(found.predictions)))
    assert [int(row["row"]) - 1 for row in listed] == held_x[:, 0].tolist()
    assert [float(row["truth"]) for row in listed] == held_y.tolist()
    assert found.result["rmse"] == pytest.approx(np.sqrt(np.mean(held_y**2)))
    predicted = tables.predict_table(found.model, {"row": np.array([7.0])})
    assert (predicted["row"], predicted["prediction"], predicted["flag"]) == ([1], [0.0], [""])
    assert found.result["settings"] == {"seed": "3"}
    assert found.result["verdict"] == table_page.verdict_of(found.result).verdict


def test_labels_are_no_formulas():
    """Whoever opens predictions in a spreadsheet runs what begins with one of these letters."""
    labels = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "fine", "a=b", ""]
    text = tables.as_csv({"=name": labels, "number": [-1.5] * len(labels)})
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == ["'=name", "number"]
    wanted = [f"'{each}".replace("\r", "\n") for each in labels[:6]] + labels[6:]
    assert [row[0] for row in rows[1:]] == wanted
    assert {row[1] for row in rows[1:]} == {"-1.5"}
    hidden = [" =1", "\N{FULLWIDTH EQUALS SIGN}1", "\u200b=1", "\ufeff @x", "\u00a0+1", " a"]
    found = tables.as_csv({"name": hidden}).splitlines()[1:]
    assert [each.strip('"').startswith("'") for each in found] == [True] * 5 + [False]


def test_a_table_that_cannot_be_fitted():
    table = {"x": np.arange(4.0), "y": np.array(["a", "b", "a", "b"], object)}
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"task": "clustering"}, "task must be one of classification, regression"),
        ({"kind": "forest"}, "model mlp or linear, but they are 'classification' and 'forest'"),
        ({"task": "regression"}, "'y' holds text such as 'a', but a regression needs numbers"),
    )
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            tables.fit_table(table, "y", **options)
    with pytest.raises(ValueError, match="was not fitted to a table"):
        tables.predict_table(object(), table)


def test_the_picture_shows_what_was_promised_against_what_was_seen():
    result = {
        "task": "regression",
        "num_test": 7,
        "ece": 0.25,
        "reliability": {"expected": [0.1, 0.9], "observed": [0.2, 0.7], "count": [7, 7]},
    }
    diagonal, curve = table_page.plot_reliability(result).axes[0].lines
    assert (
        np.asarray(diagonal.get_xdata()).tolist(),
        np.asarray(diagonal.get_ydata()).tolist(),
    ) == ([0, 1], [0, 1])
    assert (np.asarray(curve.get_xdata()).tolist(), np.asarray(curve.get_ydata()).tolist()) == (
        [0.1, 0.9],
        [0.2, 0.7],
    )


RESULT = {"model": "M", "num_train": 8, "num_test": 2, "inputs": ["x"], "accuracy": 0.5,
          "log_likelihood": -1.25, "ece": 0.125, "r2": None,
          "reliability": {"expected": [0.5], "observed": [0.5], "count": [9]}}  # fmt: skip


def test_words_for_people():
    lines = table_page.summary(RESULT | {"columns": ["numbers: x"], "convergence": "agree"})
    assert lines[:4] == [
        "Verdict: trustworthy: as sure as it should be, as far as 2 held-out cases can\n  tell.",
        "M on 8 rows, 1 inputs.",
        "Numbers: x.",
        "On 2 held-out rows:",
    ]
    assert [line.split() for line in lines[4:-1]] == [
        ["accuracy", "0.5000"],
        ["mean", "log-likelihood", "-1.2500"],
        ["calibration", "error", "(ECE)", "0.1250"],
    ]
    assert lines[-1] == "Chains: agree."


def test_what_is_wrong_comes_first():
    found = table_page.summary(RESULT | {"cares": ["boosting is better"]})
    assert found[0] == "Verdict: usable with care: boosting is better."
    both = RESULT | {"troubles": ["no better than a constant"], "cares": ["boosting is better"]}
    assert table_page.summary(both)[:2] == [
        "Verdict: not trustworthy: no better than a constant.",
        "Mind also: boosting is better.",
    ]
    assert table_page.verdict_of(both).verdict.endswith("a constant; boosting is better")


X = np.array([[0.5], [-2.0]])


def test_ninety_means_ninety():
    model = by_hand(
        BayesianLinearRegression(),
        {"coef": np.ones((1, 1, 1)), "intercept": np.zeros((1, 1)), "noise": np.array([4.0])},
        input_scaling_=Scaling(np.zeros(1), np.ones(1)),
        target_scaling_=Scaling(np.array(0.0), np.array(1.0)),
        n_features_in_=1,
    )
    columns = tables.predicted(model, X, rows=np.arange(2))
    assert columns["row"] == [1, 2]
    np.testing.assert_allclose(columns["prediction"], X[:, 0])
    np.testing.assert_allclose(columns["std"], 0.5)
    np.testing.assert_allclose(columns["low_90"], X[:, 0] - 0.5 * 1.6448536, rtol=1e-6)
    np.testing.assert_allclose(columns["high_90"], X[:, 0] + 0.5 * 1.6448536, rtol=1e-6)


def test_classes_come_with_their_uncertainty():
    model = by_hand(
        BayesianLogisticRegression(),
        {"coef": np.array([[[2.0]], [[-1.0]]]), "intercept": np.zeros((2, 1))},
        input_scaling_=Scaling(np.zeros(1), np.ones(1)),
        classes_=np.array(["no", "yes"]),
        n_features_in_=1,
    )
    columns = tables.predicted(model, X, rows=np.arange(2))
    yes = (1 / (1 + np.exp(-2 * X[:, 0])) + 1 / (1 + np.exp(X[:, 0]))) / 2
    np.testing.assert_allclose(columns["p(yes)"], yes)
    np.testing.assert_allclose(columns["confidence"], np.maximum(yes, 1 - yes))
    entropy = -yes * np.log(yes) - (1 - yes) * np.log(1 - yes)
    np.testing.assert_allclose(columns["entropy"], entropy)
    assert np.all(np.array(columns["mutual_information"]) > 0)


def test_a_rare_class_is_never_held_out_whole():
    """Shares are rounded, and one row of every class stays to be fitted."""
    y = np.array(["pair"] * 2 + ["common"] * 10 + ["single"] + ["few"] * 5, object)
    for fraction, wanted in (
        (0.75, {"pair": 1, "common": 8, "single": 0, "few": 4}),
        (0.9, {"pair": 1, "common": 9, "single": 0, "few": 4}),
        (0.99, {"pair": 1, "common": 9, "single": 0, "few": 4}),
        (0.5, {"pair": 1, "common": 5, "single": 0, "few": 2}),
    ):
        train, held = tables._split(y, "classification", fraction, seed=0)
        assert {label: int((y[held] == label).sum()) for label in wanted} == wanted
        assert set(y[train]) == set(y)
        assert held.tolist() == sorted(held)
    # Numbers are one group, of which one row stays.
    train, held = tables._split(np.arange(5.0), "regression", 0.99, seed=0)
    assert (len(train), len(held)) == (1, 4)


def test_classes_are_judged_by_scores_computed_by_hand():
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.25, 0.35, 0.4], [0.05, 0.9, 0.05]])
    y = np.array(["a", "c", "a", "b"], object)
    found = table_scores._judge_classes(
        Classifier(p, np.array(["a", "b", "c"], object)), ROWS[:4], y
    )
    assert found["accuracy"] == pytest.approx(0.75)
    assert found["log_likelihood"] == pytest.approx(np.log([0.7, 0.6, 0.25, 0.9]).mean(), rel=1e-5)
    truth = np.eye(3)[[0, 2, 0, 1]]
    assert found["brier"] == pytest.approx(((p - truth) ** 2).sum(1).mean(), rel=1e-5)
    # Four bins of one row each: |accuracy − confidence| is 0.3, 0.4, 0.4 and 0.1.
    assert found["ece"] == pytest.approx(0.3, rel=1e-4)
    assert found["reliability"]["expected"] == pytest.approx([0.4, 0.6, 0.7, 0.9])
    assert found["reliability"]["observed"] == [0, 1, 1, 1]
    assert found["reliability"]["count"] == [1, 1, 1, 1]


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*looks like an identifier")
def test_settings_reach_the_model_and_the_seed_its_split(monkeypatch):
    made: list[dict[str, Any]] = []

    class Network(Recorded):
        def __init__(self, **settings):
            made.append(settings)
            super().__init__(None, None)

        def diagnostics(self):
            return Diagnostics(1.0, 1.0, 99.0, (0.1,), ())

    monkeypatch.setitem(tables.KINDS, ("regression", "mlp"), Network)
    table = {"row": np.arange(10.0), "id": np.arange(10.0), "y": np.arange(10.0)}
    options: dict[str, Any] = {"num_steps": 77, "num_chains": 3, "options": Options(["id"])}
    found = tables.fit_table(table, "y", seed=5, progress=True, **options)
    wanted = {"random_state": 5, "progress": True, "num_steps": 77, "num_chains": 3}
    assert made == [wanted]
    assert found.result["convergence"].startswith("R-hat of observations 1.000")
    assert "a chain accepts 10%" in found.result["troubles"][-1]
    assert found.result["inputs"] == ["row"]
    assert (found.result["task"], found.result["model"]) == ("regression", "Network")
    # A fifth is held out unless another share is asked for.
    assert (found.result["num_train"], found.result["num_test"]) == (8, 2)
    held = tables._split(table["y"], "regression", 0.2, seed=5)[1]
    np.testing.assert_array_equal(found.model.fits[1][0][:, 0], held)
    assert found.model.table_["target"] == "y"
    tables.fit_table(table, "y")
    assert made[1] == {"random_state": 0, "progress": False}
    with pytest.raises(ValueError, match="num_steps is a setting of networks"):
        tables.fit_table(table, "y", kind="linear", num_steps=9)


def test_the_picture_names_what_it_shows():
    reliability = {"expected": [0.1, 0.9], "observed": [0.2, 0.7], "count": [7, 7]}
    for task, across, up in (
        ("regression", "level of the interval", "share of held-out rows inside"),
        ("classification", "confidence", "accuracy"),
    ):
        result = {"task": task, "num_test": 7, "ece": 0.25, "reliability": reliability}
        axis = table_page.plot_reliability(result).axes[0]
        assert (axis.get_xlabel(), axis.get_ylabel()) == (across, up)
        assert (axis.get_xlim(), axis.get_ylim()) == ((0, 1), (0, 1))
        assert axis.get_title() == "7 held-out rows, calibration error 0.250"


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_constant_has_the_likelihood_of_the_rows_that_were_seen(task):
    seen, y = np.array([0.0, 1, 1, 2]), np.array([1.0, 1, 2])
    found = table_scores._constant(task, seen, y).log.mean()
    if task == "classification":
        assert found == pytest.approx(np.log([0.5, 0.5, 0.25]).mean())
    else:
        assert found == pytest.approx(stats.norm.logpdf(y, 1, np.sqrt(0.5)).mean())


def test_rivals_that_are_clearly_better_are_told():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2))
    y = 3 * x[:, 0] + 0.1 * generator.normal(size=300)
    x[:20, 1] = np.nan
    seen, held = slice(200), slice(200, None)

    class Scaled(Regressor):
        def __init__(self, slope, std):
            self.slope, self.std = slope, std

        def predict(self, x):
            return self.slope * x[:, 0]

        def log_likelihood(self, x, y):
            return stats.norm.logpdf(y, self.predict(x), self.std)

    def compared(slope, std):
        model = Scaled(slope, std)
        return table_scores.compare("regression", model, x[seen], y[seen], x[held], y[held])

    right, flat, wrong = compared(3, 0.1), compared(2.5, 0.5), compared(-3, 0.1)
    assert right["troubles"] == right["cares"] == flat["troubles"] == []
    assert right["rivals"]["a linear model"]["rmse"] == pytest.approx(0.1, rel=0.3)
    assert flat["cares"][0].startswith("a linear model predicts these held-out rows better")
    assert wrong["troubles"][0].startswith("no better than a constant")


def test_columns_that_matter_are_told():
    generator = np.random.default_rng(0)
    table = {
        "x": generator.normal(size=90),
        "town": np.array(["A", "B", "C"] * 30, object),
        "idle": generator.normal(size=90),
        "y": np.zeros(90),
    }
    encoding = Encoding.of(table, "y")[0]
    values = encoding.read(table).values
    inputs = encoding.expanded(values)
    y = 2 * inputs[:, 0] + 5 * inputs[:, 2]
    model = BayesianLinearRegression()
    columns = inputs.shape[1]
    coef = np.zeros((1, 1, columns))
    coef[0, 0, [0, 2]] = 2, 5
    by_hand(model, {"coef": coef, "intercept": np.zeros((1, 1)), "noise": np.ones(1)},
            n_features_in_=columns, input_scaling_=Scaling(np.zeros(columns), np.ones(columns)),
            target_scaling_=Scaling(np.array(0.0), np.array(1.0)))  # fmt: skip
    found = table_scores.inspect("regression", model, encoding, values, y)
    loss = {name: mean for name, (mean, _) in found["importance"].items()}
    # Shuffling doubles the variance: √2 standard deviations of 2 x.
    assert loss["x"] == pytest.approx(2 * 2**0.5, rel=0.2)
    assert loss["town"] > 2
    assert loss["idle"] == 0
    effects = {each["column"]: each for each in found["dependence"]}
    assert effects["town"]["at"] == ["A", "B", "C"]
    np.testing.assert_allclose(np.diff(effects["town"]["mean"][0]), [5, -5])
    slope = np.diff(effects["x"]["mean"][0]) / np.diff(effects["x"]["at"])
    np.testing.assert_allclose(slope, 2)


def test_new_rows_are_predicted_where_they_can_be_and_told_where_they_are_odd():
    table = {
        "x": np.array([1.0, 2.0, 3.0]),
        "town": np.array(["A", "B", "A"], object),
        "y": np.zeros(3),
    }
    model = Regressor(np.arange(9.0), np.ones(9))
    model.table_ = Encoding.of(table, "y")[0].plain()  # pyright: ignore
    model.outside_range = lambda x: np.abs(x) > 3  # pyright: ignore
    new = {
        "x": np.array(["2", "big", "4", "inf", "1"], object),
        "town": np.array(["A", "A", "C", None, None], object),
    }
    found = tables.predict_table(model, new)
    assert found["row"] == [1, 2, 3, 4, 5]
    assert found["prediction"] == [2, None, 4, None, 1]
    assert found["flag"] == [
        "",
        "x cannot be read: big",
        "town has an unseen category: C; x is outside the range of the fitted rows",
        "x cannot be read: inf; town is missing",
        "town is missing",
    ]
    assert tables.as_csv(found).splitlines()[2] == "2,,,,,,,x cannot be read: big"
    with pytest.raises(ValueError, match="No row can be predicted: in row 1 x cannot be read"):
        tables.predict_table(model, {name: column[1:2] for name, column in new.items()})


def test_all_problems_of_a_table_are_one_message_with_the_target_first():
    table = {
        "a": np.array([np.inf, 1]),
        "b": np.array([["x"], None], object),
        "y": np.array([np.nan, 1]),
    }
    with pytest.raises(ValueError, match="problem") as error:
        tables.fit_table(table, "y", options=Options(ignored=["problem"]))
    starts = [
        "The target 'y' has 1 missing",
        "There is no column 'problem'",
        "The column 'a' has 1 infinite",
        "The column 'b' holds values such as ['x']",
    ]
    lines = str(error.value).splitlines()
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
