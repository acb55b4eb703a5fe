import numpy as np
import pytest

from sghmc.core.checks import checked_codes


def test_codes_come_back_as_they_are():
    assert checked_codes([0, 2, 1], 3, "y").tolist() == [0, 2, 1]
    assert checked_codes(np.zeros(0, int), 3, "y").size == 0


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        ([0.0, 1.0], TypeError, "y must be a vector of whole numbers, but is float64"),
        ([[0, 1]], TypeError, "y must be a vector"),
        ([True, False], TypeError, "y must be a vector of whole numbers, but is bool"),
        ([0, 3], ValueError, "y must be codes from 0 to 2, but they range from 0 to 3"),
        ([-1, 2], ValueError, "range from -1 to 2"),
    ],
)
def test_others_are_refused(codes, error, message):
    with pytest.raises(error, match=message):
        checked_codes(codes, 3, "y")
