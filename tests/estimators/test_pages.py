"""Pages of what was fitted: the verdict follows the numbers, in both directions."""

import math

import pytest

from command_results import SCRIPT, fit_result, ratings_result
from sghmc.estimators import table_page
from sghmc.recommender import evaluation


def points(expected, observed, count):
    return {"expected": [expected], "observed": [observed], "count": [count]}


def test_a_doubtful_fit_is_no_good_verdict_however_calibrated_it_is():
    result = fit_result(reliability=points(0.5, 0.5, 100), troubles=["no better than a constant"])
    page = table_page.table_page(result)
    assert "Verdict: not trustworthy: no better than a constant" in page
    assert "Nothing needs mending" not in page


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (0.5, "trustworthy: as sure as it should be"),
        (0.5 - 3.4 * 0.5 / math.sqrt(100), "trustworthy: as sure as it should be"),
        (0.5 + 3.4 * 0.5 / math.sqrt(100), "trustworthy: as sure as it should be"),
        (0.5 - 3.6 * 0.5 / math.sqrt(100), "not trustworthy: too sure"),
        (0.5 + 3.6 * 0.5 / math.sqrt(100), "usable with care: not sure enough"),
    ],
)
def test_the_verdict_is_a_test_at_three_and_a_half_standard_errors(observed, words):
    page = table_page.table_page(fit_result(reliability=points(0.5, observed, 100)))
    assert f"Verdict: {words}" in page


def test_the_worst_of_all_levels_counts():
    reliability = {"expected": [0.1, 0.5, 0.9], "observed": [0.1, 0.5, 0.6], "count": [100] * 3}
    page = table_page.table_page(fit_result(reliability=reliability))
    assert "Verdict: not trustworthy: too sure" in page
    assert 'class="verdict bad"' in page


def test_few_rows_cannot_tell():
    page = table_page.table_page(fit_result(reliability=points(0.5, 0.0, 4), num_test=4))
    assert "as far as 4 held-out cases can tell" in page
    assert 'class="verdict good"' in page


def test_every_score_is_there_and_words_are_escaped():
    page = table_page.table_page(fit_result(r2=None))
    for words in ("root mean squared error", "1.5000", "not known", "-2.0000", "400"):
        assert words in page
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    classes = table_page.table_page(fit_result(task="classification", accuracy=0.75, brier=0.375))
    for words in ("0.7500", "Brier score", "0.3750", "confidence"):
        assert words in classes


def test_a_page_says_who_else_is_good_and_what_matters():
    rivals = {"a linear model": {"log_likelihood": -2.25, "rmse": 1.75}}
    effect = {"column": "size", "at": ["a", "b"], "mean": [[1.0, 2.0]]}
    page = table_page.table_page(
        fit_result(
            rivals=rivals, cares=["a linear model predicts better"], columns=["numbers: size"],
            doubts=["doubt"], version="1.2", date="2026-01-02", settings={"num_draws": "77"},
            importance={"size": [0.5, 0.125]}, dependence=[effect],
        )
    )  # fmt: skip
    for words in ("usable with care: a linear model predicts better", "1.7500", "numbers: size",
                  "doubt", "sghmc 1.2", "2026-01-02", "77", "Permutation importance", "0.125",
                  "Partial dependence", "effect of size"):  # fmt: skip
        assert words in page, words


def test_ratings_are_judged_by_their_intervals():
    assert "as sure as it should be" in evaluation.ratings_page({}, ratings_result(0.9))
    assert "Verdict: too sure" in evaluation.ratings_page({}, ratings_result(0.8))
    assert "Verdict: not sure enough" in evaluation.ratings_page({}, ratings_result(0.99))
    result = ratings_result(0.9)
    del result["held_out"]
    page = evaluation.ratings_page({"ratings": SCRIPT}, result)
    assert "No ratings were held out" in page
    assert "Verdict" not in page
    assert SCRIPT not in page
    assert "10,000" in page
