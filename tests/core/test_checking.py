import numpy as np
import pytest

from sghmc.core.checking import check_whole


def test_whole_numbers_from_the_lowest_pass():
    for value in (1, 7, np.int32(1), np.uint8(3)):
        check_whole(value, "count", 1)
    check_whole(0, "count", 0)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, np.float32(2), np.array([1])])
def test_others_are_refused_by_name(value):
    with pytest.raises(ValueError, match="count must be a whole number from 1, but is "):
        check_whole(value, "count", 1)
