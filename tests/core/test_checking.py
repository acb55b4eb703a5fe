import numpy as np
import pytest

from sghmc.core.checks import check_choice, check_count


@pytest.mark.parametrize("value", [1, 7, np.int32(3), np.uint8(1)])
def test_whole_numbers_pass(value):
    check_count(value, "every")
    check_count(value, "every", or_none="")


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, np.float32(2), None, np.array(3)])
def test_what_is_no_whole_number_from_1_is_refused(value):
    with pytest.raises(ValueError, match="every must be a whole number from 1, but is "):
        check_count(value, "every")


def test_a_message_says_what_none_means_and_why_there_is_a_lowest():
    check_count(None, "size", 10, or_none="for all data")
    wanted = "None, for all data, or a whole number from 10, for normal means"
    with pytest.raises(ValueError, match=f"^size must be {wanted}, but is 9[.]$"):
        check_count(9, "size", 10, or_none="for all data", reason="for normal means")
    with pytest.raises(ValueError, match="size must be None or a whole number from 1, but is 0"):
        check_count(0, "size", or_none="")


def test_a_choice_is_one_of_its_kind():
    check_choice("epochs", "replacement", (True, False, "epochs"))
    check_choice(False, "replacement", (True, False, "epochs"))
    for value in (1, 0, "Epochs", None, np.True_):
        with pytest.raises(ValueError, match='must be True, False or "epochs", but is '):
            check_choice(value, "replacement", (True, False, "epochs"))
