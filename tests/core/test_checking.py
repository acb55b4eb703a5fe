import numpy as np
import pytest

from sghmc.core.checking import check_choice, check_count


def test_whole_numbers_from_the_lowest_pass():
    for value in (1, 7, np.int32(1), np.uint8(3)):
        check_count(value, "count")
    check_count(0, "count", 0)
    check_count(None, "count", or_none="for all")


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, np.float32(2), np.array([1])])
def test_others_are_refused_by_name(value):
    with pytest.raises(ValueError, match="count must be a whole number from 1, but is "):
        check_count(value, "count")


def test_what_none_means_and_why_it_is_so_many_are_said():
    with pytest.raises(ValueError, match="n must be None, for all, or a whole number from 2, but"):
        check_count(1, "n", 2, or_none="for all")
    with pytest.raises(ValueError, match="n must be a whole number from 2, for a scatter, but"):
        check_count(1, "n", 2, reason="for a scatter")


def test_choices():
    check_choice("end", "observe", ("end", "middle"))
    check_choice(True, "replacement", (True, False, "epochs"))
    for value in ("start", None, 1):
        with pytest.raises(ValueError, match='observe must be "end", True or "middle", but is'):
            check_choice(value, "observe", ("end", True, "middle"))
