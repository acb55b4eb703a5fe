"""Paired comparisons against scipy's own test, and their signs."""

import numpy as np
import pytest
from scipy import stats

from sghmc.paper import methods

VALUES, REFERENCE = [0.21, 0.19, 0.24, 0.22], [0.17, 0.18, 0.19, 0.2]


def test_the_difference_its_interval_and_its_p_value():
    found = methods.compare(VALUES, REFERENCE)
    test = stats.ttest_rel(VALUES, REFERENCE)
    assert found["difference"] == pytest.approx(np.mean(VALUES) - np.mean(REFERENCE))
    assert found["p_value"] == pytest.approx(test.pvalue, rel=1e-9)
    # By hand: mean ± t(0.975; 3) sd/√4.
    differences = np.subtract(VALUES, REFERENCE)
    reach = 3.18244631 * differences.std(ddof=1) / 2
    expected = [differences.mean() - reach, differences.mean() + reach]
    np.testing.assert_allclose(found["interval"], expected, rtol=1e-6)


def test_a_difference_is_positive_where_the_reference_is_smaller():
    assert methods.compare(VALUES, REFERENCE)["difference"] > 0
    assert methods.compare(REFERENCE, VALUES)["difference"] < 0


@pytest.mark.parametrize(
    ("values", "reference"), [([0.3], [0.1]), ([0.3, 0.3], [0.1, 0.1]), ([0.3, 0.4], [0.1, 0.2])]
)
def test_without_spread_there_is_nothing_to_judge_by(values, reference):
    """In the last pair 0.3 − 0.1 and 0.4 − 0.2 differ by rounding alone."""
    found = methods.compare(values, reference)
    assert found == {"difference": pytest.approx(0.2), "interval": None, "p_value": None}


def test_the_standard_deviation_is_that_of_a_sample():
    assert methods.mean_and_sd(np.array([1.0, 3.0])) == {"mean": 2.0, "sd": pytest.approx(2**0.5)}
    assert methods.mean_and_sd(np.array([1.0])) == {"mean": 1.0, "sd": 0.0}
